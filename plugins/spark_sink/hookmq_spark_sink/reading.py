"""Read a stream for clients: find the end of its readable part, and return the blocks of a range with only the
requested data.

Every function here may block on the disk.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from hookmq.mqtt_api import compile_filter, validate_filter
from hookmq.plugin import StoreError

from hookmq_spark_sink import block, building, files, packed
from hookmq_spark_sink.files import Consumer, Reported, State
from hookmq_spark_sink.index import StreamIndex

_REMEMBERED: Final = 1 << 16
_SILENCE: Final = 16 << 20
"""After this many bytes without a matching record, an empty block reports progress."""
_SMALL: Final = 16 << 10
"""Size in bytes below which blocks are merged. Each commit of the broker writes a block, often with only a few rows."""
_TOGETHER: Final = 256
"""Maximum number of blocks that are merged into one."""


class Unavailable(Exception):
    """The broker has not yet reported the position up to which readers may read."""


class NotServed(Exception):
    """The stream serves a queue that cannot be read. The text gives the reason."""


class Removed(Exception):
    """Retention has removed the records. The partition now begins at `earliest`."""

    def __init__(self, earliest: int) -> None:
        super().__init__(f"offsets begin at {earliest}")
        self.earliest = earliest


class Wanted(NamedTuple):
    """A request for a range of a partition. If `columns` is None, all columns are wanted. If `match` is None, all rows
    are wanted. `newest` is the newest block version that the client supports.
    """

    partition: int
    start: int
    end: int
    columns: frozenset[int] | None = None
    match: Callable[[bytes], bool] | None = None
    newest: int = block.VERSION


class Matcher:
    """Matches topics, given as bytes, against filters. Raises ProtocolError for an invalid filter."""

    def __init__(self, filters: list[str]) -> None:
        for one in filters:
            validate_filter(one)
        self._filters = [compile_filter(one) for one in filters]
        self._known: dict[bytes, bool] = {}

    def __call__(self, topic: bytes) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            text = topic.decode("utf-8", "replace")
            known = self._known[topic] = any(matches(text) for matches in self._filters)
        return known


class View(Protocol):
    """The readable part of a stream at one moment. `earliest` and `latest` contain an offset for each partition.

    The methods block, and may be called in parallel. They raise StoreError for a damaged block.
    """

    @property
    def log_id(self) -> str:
        """The id of the log."""

    @property
    def filters(self) -> Sequence[str]:
        """Filters that match the topics of all messages in the stream."""

    @property
    def earliest(self) -> Sequence[int]:
        """Each partition's first remaining offset."""

    @property
    def latest(self) -> Sequence[int]:
        """The offset of the next message in each partition."""

    def at(self, timestamp: int) -> list[int | None]:
        """For each partition, return the offset of the first message at or after `timestamp` (µs), or None."""

    def blocks(self, wanted: Wanted, max_bytes: int) -> Iterator[bytes]:
        """Yield the blocks of a range, as specified in PROTOCOL.md, up to about `max_bytes`. Raises Removed if
        retention has deleted records in the meantime.
        """


class Reader(Protocol):
    """Reads one stream. Make one call at a time."""

    def refresh(self) -> View:
        """Return the part that can be read now.

        Raises Unavailable if that part is unknown, NotServed if nothing can be read, and StoreError or OSError if the
        files cannot be read.
        """

    def let_go(self) -> None:
        """Close files that were deleted or replaced since the last `refresh`. Raises the same errors as `refresh`."""

    def consumers(self) -> dict[str, Consumer]:
        """Return the consumers by name. Raises StoreError if the file is invalid."""

    def commit(self, name: str, offsets: dict[int, int]) -> Consumer:
        """Durably record a consumer's offsets. Raises StoreError or OSError if that fails."""

    def report(self, name: str, query: str, batch: int, dead_letters: int) -> Consumer:
        """Add a batch's dead letters to the consumer's count, as in `ConsumerOffsets`."""

    def forget(self, name: str) -> bool:
        """Remove a consumer. Return whether it existed. Raises StoreError or OSError if that fails."""


class ConsumerOffsets:
    """The offsets of a stream's consumers, stored in `folder`. All processes that update them lock the file `locked`."""

    def __init__(self, folder: Path, locked: Path) -> None:
        self.folder = folder
        self._locked = locked

    @property
    def log_id(self) -> str:
        """The id of the log to which the offsets belong."""
        raise NotImplementedError

    def consumers(self) -> dict[str, Consumer]:
        """Return the consumers by name. Raises StoreError if the file is invalid."""
        return files.read_consumers(self.folder, self.log_id)

    def commit(self, name: str, offsets: dict[int, int]) -> Consumer:
        """Durably record a consumer's offsets. Raises StoreError or OSError if that fails."""
        with files.consumers_locked(self._locked):
            known = self.consumers()
            before = known.get(name, Consumer({}, 0.0))
            known[name] = Consumer(before.offsets | offsets, time.time(), before.reported)
            files.write_consumers(self.folder, self.log_id, known)
        return known[name]

    def report(self, name: str, query: str, batch: int, dead_letters: int) -> Consumer:
        """Durably add a batch's dead letters to the consumer's count. A batch that the query has already reported has
        no effect. Raises StoreError or OSError if that fails.
        """
        with files.consumers_locked(self._locked):
            known = self.consumers()
            before = known.get(name, Consumer({}, 0.0))
            said = before.reported or Reported(0, query, -1)
            if query == said.query and batch <= said.batch:
                return before
            made = Reported(said.dead_letters + dead_letters, query, batch)
            known[name] = before._replace(reported=made)
            files.write_consumers(self.folder, self.log_id, known)
        return known[name]

    def forget(self, name: str) -> bool:
        """Remove a consumer. Return whether it existed. Raises StoreError or OSError if that fails."""
        with files.consumers_locked(self._locked):
            known = self.consumers()
            if known.pop(name, None) is None:
                return False
            files.write_consumers(self.folder, self.log_id, known)
        return True


class StreamView:
    """Implements `View` for a stream that stores messages. The stream's filters and log do not change while it is
    open.
    """

    def __init__(self, reader: "StreamReader", state: State) -> None:
        self.log_id = reader.log_id
        self.filters = reader.filters
        self.earliest, self.latest = state.earliest, state.latest
        self.state = state
        self._reader = reader

    def at(self, timestamp: int) -> list[int | None]:
        """For each partition, return the offset of the first message at or after `timestamp` (µs), or None."""
        return self._reader.at(self.state, timestamp)

    def blocks(self, wanted: Wanted, max_bytes: int) -> Iterator[bytes]:
        """Yield the blocks of a range."""
        return self._reader.blocks(wanted, max_bytes)


class StreamReader(ConsumerOffsets):
    """Reads one stream's folder.

    Call `refresh` first. Make one call at a time, except for `blocks`, which may run in parallel. `boot` identifies the
    broker run whose state can be trusted. If it is None, any run is trusted.
    """

    def __init__(self, folder: Path, boot: bytes | None, filters: Sequence[str] = ()) -> None:
        super().__init__(folder, folder / files.STREAM)
        self.filters = filters
        self.state: State | None = None
        self.index = StreamIndex(folder)
        self._boot = boot

    def refresh(self) -> StreamView:
        """Return the part that can be read now. Raises Unavailable if that part is unknown, and StoreError or OSError
        if the files cannot be read.
        """
        state = files.read_state(self.folder)
        if state is None or (self._boot is not None and state.boot != self._boot):
            raise Unavailable
        self.index.refresh(state)
        self.state = state
        return StreamView(self, state)

    def let_go(self) -> None:
        """Close files that were deleted or replaced since the last `refresh`, which frees their disk space.

        Raises the same errors as `refresh`.
        """
        if self.state is None:
            return
        state = files.read_state(self.folder)
        if state is not None and state.generation != self.state.generation:
            self.refresh()

    @property
    def log_id(self) -> str:
        """Return the id of the log."""
        return self.index.log_id

    def at(self, state: State, timestamp: int) -> list[int | None]:
        """For each partition, return the offset of the first message at or after `timestamp` (µs), or None.

        Raises StoreError for a damaged block.
        """
        ends = zip(state.earliest, state.latest, strict=True)
        return [
            self.index.at(place, timestamp, earliest, latest)
            for place, (earliest, latest) in enumerate(ends)
        ]

    def blocks(self, wanted: Wanted, max_bytes: int) -> Iterator[bytes]:
        """Yield the blocks of a range, as specified in PROTOCOL.md, up to about `max_bytes`. Without a filter, small
        blocks are merged.

        Raises StoreError for a damaged block, and Removed if retention deleted the records after `refresh`.
        """
        reached = seen = wanted.start
        sent = silent = 0
        small: list[block.Block] = []
        for segment, place in self.index.blocks(wanted.partition, wanted.start, wanted.end):
            if sent >= max_bytes:
                yield from _merged(small)
                return
            if place.base > seen:
                raise self._missing(wanted, seen, place.base)
            seen = place.end
            data = segment.read(place)
            try:
                if wanted.match is None and (one := _small(data, wanted)) is not None:
                    small.append(one)
                    sent += place.length
                    if len(small) == _TOGETHER:
                        yield from _merged(small)
                    continue
                passed = list(_encoded(data, wanted, reached))
            except block.Damaged as error:
                raise StoreError(f"{segment.path}, byte {place.position}: {error}") from None
            yield from _merged(small)
            silent += place.length
            if not passed and silent >= _SILENCE:
                skipped = block.empty(wanted.partition, reached, min(place.end, wanted.end))
                passed = [(block.assemble(skipped), skipped.end)]
            for encoded, end in passed:
                sent += len(encoded)
                silent = 0
                reached = end
                yield encoded
        yield from _merged(small)
        if seen < wanted.end:
            raise self._missing(wanted, seen, wanted.end)
        if wanted.match is not None and reached < wanted.end:
            yield block.assemble(block.empty(wanted.partition, reached, wanted.end))

    def _missing(self, wanted: Wanted, start: int, end: int) -> Exception:
        # Retention updates this file before it deletes anything, and the state only after that.
        earliest = files.read_trimmed(self.folder, self.log_id).get(wanted.partition, 0)
        if earliest > start:
            return Removed(earliest)
        return StoreError(
            f"{self.folder}: partition {wanted.partition} has no block from offset {start} to {end}"
        )


def _small(data: bytes, wanted: Wanted) -> block.Block | None:
    """Decode a block that is small enough to merge with its neighbors. Return None for larger blocks.

    Raises Damaged if the block is invalid.
    """
    if len(data) >= _SMALL:
        return None
    head = block.read_head(data)
    if head.version != block.VERSION or head.sparse:
        return None
    found = block.parse(data)
    return found if wanted.columns is None else block.project(found, wanted.columns)


def _merged(small: list[block.Block]) -> Iterator[bytes]:
    """Merge the blocks into one, yield it, and empty the list. If the list is empty, yield nothing."""
    if small:
        yield block.assemble(building.merge(small) if small[1:] else small[0])
        small.clear()


def _encoded(data: bytes, wanted: Wanted, reached: int) -> Iterator[tuple[bytes, int]]:
    """Yield a stored block in the form that the client requested, together with the offset after it.

    Yield nothing if no row passes the filter. With a filter, the block also covers the offsets from `reached` on.
    Raises Damaged if the block is invalid.
    """
    head = block.read_head(data)
    if wanted.match is None:
        yield _unfiltered(data, head, wanted), head.end
        return
    first = max(0, wanted.start - head.base)
    last = min(head.rows, wanted.end - head.base)
    rows = _passing(data, head, wanted.match, first, last)
    if not rows:
        return
    if len(rows) == head.rows:
        if reached < head.base:
            yield block.assemble(block.empty(head.partition, reached, head.base)), head.base
        yield _unfiltered(data, head, wanted), head.end
        return
    needed = None if wanted.columns is None else wanted.columns | {block.TIMESTAMP}
    end = min(head.end, wanted.end)
    one = building.take(packed.parse(data, needed, verify=False), rows, reached, end)
    if wanted.columns is not None:
        one = block.project(one, wanted.columns)
    yield block.assemble(one), end


def _unfiltered(data: bytes, head: block.Head, wanted: Wanted) -> bytes:
    """Return a block with the wanted columns, in a version that the client supports."""
    if head.version > wanted.newest:
        return block.assemble(packed.parse(data, wanted.columns))
    if wanted.columns is None:
        return data
    if head.version == packed.VERSION:
        return packed.select(packed.read(data), wanted.columns)
    return block.assemble(block.project(block.parse(data), wanted.columns))


def _passing(
    data: bytes, head: block.Head, match: Callable[[bytes], bool], first: int, last: int
) -> list[int]:
    """Return the rows from `first` to `last` whose topic matches."""
    if head.version == packed.VERSION:
        names, indices = packed.dictionary(packed.read(data), block.TOPIC)
        passes = list(map(match, names))
        return [row for row in range(first, last) if passes[indices[row]]]
    topics = block.column(block.parse(data), block.TOPIC)
    return [row for row in range(first, last) if match(topics[row] or b"")]
