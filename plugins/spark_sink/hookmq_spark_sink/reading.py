"""Reading a stream for others: what may be read, and the blocks of a range with what a reader asked to leave out. Nothing
here is asynchronous; all of it may block on the disk."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hookmq import topics
from hookmq.errors import StoreError

from hookmq_spark_sink import block, files
from hookmq_spark_sink.files import Consumer, State
from hookmq_spark_sink.index import StreamIndex, parse

_REMEMBERED: Final = 1 << 16
_SILENCE: Final = 16 << 20
"""Bytes looked at in vain after which a reader is told how far that was."""


class Unavailable(Exception):
    """The broker did not say yet how far readers may go."""


class Removed(Exception):
    """Retention was faster: the partition begins with `earliest` now."""

    def __init__(self, earliest: int) -> None:
        super().__init__(f"offsets begin at {earliest}")
        self.earliest = earliest


class Wanted(NamedTuple):
    """What of a partition is asked for. `columns` and `match` are None where nothing is left out."""

    partition: int
    start: int
    end: int
    columns: frozenset[int] | None = None
    match: Callable[[bytes], bool] | None = None


class Matcher:
    """Whether a topic, as bytes, matches any of some filters. Raises ProtocolError for what is no filter."""

    def __init__(self, filters: list[str]) -> None:
        for one in filters:
            topics.validate_filter(one)
        self._filters = [topics.compile_filter(one) for one in filters]
        self._known: dict[bytes, bool] = {}

    def __call__(self, topic: bytes) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            text = topic.decode("utf-8", "replace")
            known = self._known[topic] = any(matches(text) for matches in self._filters)
        return known


class StreamReader:
    """One stream's folder. `refresh` before everything else; one call at a time, but for `blocks`, which may go on beside
    others. `boot` is the life of the broker that readers may trust; None trusts whatever is there."""

    def __init__(self, folder: Path, boot: bytes | None) -> None:
        self.folder = folder
        self.state: State | None = None
        self.index = StreamIndex(folder)
        self._boot = boot

    def refresh(self) -> State:
        """How far readers may go now. Raises Unavailable, StoreError, OSError."""
        state = files.read_state(self.folder)
        if state is None or (self._boot is not None and state.boot != self._boot):
            raise Unavailable
        self.index.refresh(state)
        self.state = state
        return state

    @property
    def log_id(self) -> str:
        """Of the log that was read."""
        return self.index.log_id

    def at(self, state: State, timestamp: int) -> list[int | None]:
        """By partition the smallest offset at or after `timestamp` (µs). Raises StoreError."""
        ends = zip(state.earliest, state.latest, strict=True)
        return [
            self.index.at(place, timestamp, earliest, latest)
            for place, (earliest, latest) in enumerate(ends)
        ]

    def blocks(self, wanted: Wanted, max_bytes: int) -> Iterator[bytes]:
        """The blocks of a range, as PROTOCOL.md has them, ending after about `max_bytes`. Raises StoreError where they
        are not what was written, Removed where retention was here since `refresh`."""
        reached = seen = wanted.start
        sent = silent = 0
        for segment, place in self.index.blocks(wanted.partition, wanted.start, wanted.end):
            if sent >= max_bytes:
                return
            if place.base > seen:
                raise self._missing(wanted, seen, place.base)
            seen = place.end
            if wanted.match is None:
                if wanted.columns is None:
                    data = segment.read(place)
                    block.read_head(data)
                else:
                    data = block.assemble(block.project(parse(segment, place), wanted.columns))
                sent += len(data)
                reached = place.end
                yield data
                continue
            passed = list(_filtered(parse(segment, place), wanted, reached))
            silent += place.length
            if not passed and silent >= _SILENCE:
                passed = [block.empty(wanted.partition, reached, min(place.end, wanted.end))]
            for one in passed:
                data = block.assemble(
                    one if wanted.columns is None else block.project(one, wanted.columns)
                )
                sent += len(data)
                silent = 0
                reached = one.end
                yield data
        if seen < wanted.end:
            raise self._missing(wanted, seen, wanted.end)
        if wanted.match is not None and reached < wanted.end:
            yield block.assemble(block.empty(wanted.partition, reached, wanted.end))

    def _missing(self, wanted: Wanted, start: int, end: int) -> Exception:
        # It is said there before anything is deleted, and in the state only afterwards.
        earliest = files.read_trimmed(self.folder, self.log_id).get(wanted.partition, 0)
        if earliest > start:
            return Removed(earliest)
        return StoreError(
            f"{self.folder}: partition {wanted.partition} has nothing from offset {start} to {end}"
        )

    # consumers --------------------------------------------------------------------------------------------------------

    def consumers(self) -> dict[str, Consumer]:
        """By name. Raises StoreError."""
        return files.read_consumers(self.folder, self.log_id)

    def commit(self, name: str, offsets: dict[int, int]) -> Consumer:
        """Note how far a consumer is; safe when this returns. Raises StoreError, OSError."""
        with files.consumers_locked(self.folder):
            known = self.consumers()
            before = known[name].offsets if name in known else {}
            known[name] = Consumer(before | offsets, time.time())
            files.write_consumers(self.folder, self.log_id, known)
        return known[name]

    def forget(self, name: str) -> bool:
        """Whether there was such a consumer. Raises StoreError, OSError."""
        with files.consumers_locked(self.folder):
            known = self.consumers()
            if known.pop(name, None) is None:
                return False
            files.write_consumers(self.folder, self.log_id, known)
        return True


def _filtered(one: block.Block, wanted: Wanted, reached: int) -> Iterator[block.Block]:
    """What of a block passes; nothing if no row does. What was reached before it is part of what is covered."""
    assert wanted.match is not None
    first = max(0, wanted.start - one.base)
    last = min(one.count, wanted.end - one.base)
    names = block.column(one, block.TOPIC)
    rows = [row for row in range(first, last) if wanted.match(names[row] or b"")]
    if not rows:
        return
    if len(rows) == one.count:
        if reached < one.base:
            yield block.empty(one.partition, reached, one.base)
        yield one
        return
    yield block.take(one, rows, reached, min(one.end, wanted.end))
