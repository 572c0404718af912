"""Export one stream: find out what has already been exported, and write files for the rest.

A file's name contains its offsets: STREAM/LOG_ID/PARTITION-FIRST-LAST.parquet. With `by_day`, each day's files are in a
separate folder, such as STREAM/LOG_ID/date=2026-11-20. Files appear complete or not at all.

The manifest is written after the files, and the consumer's offsets after the manifest. If the process ends in between,
the next run finds the files that the manifest does not list yet, and adds them to it.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from hookmq.plugin import StoreError

from hookmq_spark_sink import block, files, packed
from hookmq_spark_sink.export.manifest import File, Manifest, read_last
from hookmq_spark_sink.export.parquet import Part
from hookmq_spark_sink.export.places import Place
from hookmq_spark_sink.index import parse
from hookmq_spark_sink.reading import Removed, StreamReader, Unavailable, Wanted

_NAME: Final = re.compile(r"(?:date=\d{4}-\d\d-\d\d/)?(\d{5})-(\d{20})-(\d{20})")
_DAY: Final = re.compile(r"date=\d{4}-\d\d-\d\d")
_DAY_LENGTH: Final = 86_400_000_000
"""Microseconds."""
_TIMES: Final = frozenset({block.TIMESTAMP})
MOST: Final = 32
"""Number of files after which the manifest is written."""


class Format(Protocol):
    """Converts rows to a file, as `hookmq_spark_sink.export.parquet.Parquet` does."""

    @property
    def suffix(self) -> str:
        """Return the file name suffix of this format."""

    def write(self, file: BinaryIO, parts: Iterable[Part], facts: dict[str, str]) -> int:
        """Write a file. Return the number of rows."""

    def inspect(self, data: bytes) -> tuple[int, dict[str, str]]:
        """Return the number of rows in a file, and its facts. Raises StoreError if the file does not have this format."""


@dataclass(frozen=True)
class Rules:
    """Rules that decide which files to export and when."""

    tail: bool = False
    roll: float = 60.0
    size: int = 64 << 20
    consumer: str = ""
    once: bool = False
    by_day: bool = False
    """Whether each file contains messages of one day (UTC). Without `tail` or `once`, a file that is not full yet waits
    until its day is over."""


class Piece(NamedTuple):
    """The range of offsets that goes into one file."""

    partition: int
    first: int
    end: int
    day: int | None = None
    """The number of days from the epoch, or None if files are not divided by day."""

    @property
    def folder(self) -> str:
        """Return the file's folder with a trailing slash, or an empty string."""
        return "" if self.day is None else f"date={_date(self.day)}/"


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


class Exporter:
    """Exports one stream; call `round` repeatedly. `manifest` lists what has been exported from the current log."""

    def __init__(
        self,
        folder: Path,
        place: Place,
        format: Format,
        rules: Rules,
        report: Callable[[str], None],
        today: Callable[[], int] = lambda: int(time.time()) // 86_400,
    ) -> None:
        self.folder = folder
        self.name = folder.name
        self.manifest: Manifest | None = None
        self.waiting = 0
        """Number of readable messages that have not been exported yet."""
        self.gaps = 0
        """Number of messages that were removed before this exporter reached them."""
        self._place = place
        self._format = format
        self._rules = rules
        self._report = report
        self._today = today
        self._reader = StreamReader(folder, None)
        self._since: dict[int, float] = {}
        self._limit: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._failed: dict[int, Piece] = {}
        """Pieces that could not be written. The target may have stored them anyway, so the same file is written
        again."""
        self._unsure = True
        """Whether the target's contents are unknown and must be examined first."""

    def round(self, now: float, stop: Callable[[], bool] = bool) -> int:
        """Export some of the files that are due. Return the number of files.

        `now` is a time in seconds from any clock that never goes back. `stop` is called between files. Raises
        StoreError, PlaceError or OSError if the log or the target fails. Raises Unavailable if the readable offsets are
        not known yet.
        """
        unsure, self._unsure = self._unsure, True
        described = files.read_description(self.folder)
        if described is None:
            raise StoreError(f"{self.folder} contains no stream")
        manifest = self.manifest
        if manifest is not None and manifest.log_id != described.log_id:
            self._report(f"the log was replaced; its id is now {described.log_id}")
            manifest, self._reader = None, StreamReader(self.folder, None)
            self._since, self._told, self._failed = {}, {}, {}
        state = self._reader.refresh().state
        if self._reader.index.segments and self._reader.log_id != described.log_id:
            raise Unavailable  # the stream is being replaced
        if manifest is None or unsure:
            self.manifest = self._open(described, state)
            if self._rules.once and not self._limit:
                self._limit = dict(enumerate(state.latest))
        done = self._go_on(state, now, stop)
        self._unsure = False
        return done

    def _go_on(self, state: files.State, now: float, stop: Callable[[], bool]) -> int:
        assert self.manifest is not None
        if self._check(state):
            # Record the gap before writing the first file after it, so that readers of that file find the explanation.
            self.manifest.write(self._place, self._at)
        done = 0
        for piece in self._due(state, now):
            if stop():
                break
            self._failed[piece.partition] = piece
            self._export(piece)
            del self._failed[piece.partition]
            self._since[piece.partition] = now
            done += 1
        ends = self.manifest.next
        self.waiting = sum(max(0, state.latest[place] - at) for place, at in ends.items())
        if done:
            self.manifest.write(self._place, self._at)
        self._tell()
        return done

    @property
    def _at(self) -> str:
        assert self.manifest is not None
        return f"{self.name}/{self.manifest.log_id}"

    # existing files ---------------------------------------------------------------------------------------------------

    def _open(self, described: files.Description, state: files.State) -> Manifest:
        at = f"{self.name}/{described.log_id}"
        there: dict[int, list[tuple[int, int, str]]] = {}
        for name in self._names(at):
            match = _NAME.fullmatch(name.removesuffix(self._format.suffix))
            if match and name.endswith(self._format.suffix):
                place, first, last = map(int, match.groups())
                there.setdefault(place, []).append((first, last, name))
        manifest = read_last(self._place, at)
        if manifest is None:
            start = {
                place: min(there[place])[0] if place in there else earliest
                for place, earliest in enumerate(state.earliest)
            }
            manifest = Manifest(described.name, described.log_id, 1, start, dict(start))
            manifest.write(self._place, at)
        elif manifest.log_id != described.log_id or set(manifest.next) != set(
            range(described.partitions)
        ):
            raise StoreError(f"{self._place.url}/{at} contains the export of another stream")
        before = manifest.totals.files
        for place, found in sorted(there.items()):
            for first, last, name in sorted(found):
                if last < manifest.next.get(place, 0):
                    continue
                if place not in manifest.next or first != manifest.next[place] or last < first:
                    raise StoreError(
                        f"{self._place.url}/{at}/{name} does not continue the export, which is at offset "
                        f"{manifest.next.get(place)}: move it away"
                    )
                manifest.add(self._adopt(at, name, Piece(place, first, last + 1), described))
        if manifest.totals.files > before:
            manifest.write(self._place, at)
        return manifest

    def _names(self, at: str) -> Iterator[str]:
        """Yield the names of all files, including those in the folders of days.

        Raises StoreError if earlier files were exported with a different value of `by_day`, because Spark could not
        read files in both places.
        """
        days = self._rules.by_day
        for name in self._place.names(at):
            if _DAY.fullmatch(name):
                inner = [f"{name}/{one}" for one in self._place.names(f"{at}/{name}")]
            else:
                inner = [name] if name.endswith(self._format.suffix) else []
            if inner and bool(_DAY.fullmatch(name)) != days:
                given = "without" if days else "with"
                raise StoreError(
                    f"{self._place.url}/{at} was exported {given} --by-day: use another target"
                )
            yield from inner

    def _adopt(self, at: str, name: str, piece: Piece, described: files.Description) -> File:
        data = self._place.read(f"{at}/{name}")
        where = f"{self._place.url}/{at}/{name}"
        try:
            rows, facts = self._format.inspect(data)
        except StoreError as error:
            raise StoreError(f"{where} {error}: move it away") from None
        if rows != piece.end - piece.first or facts.get("hookmq.log_id") != described.log_id:
            raise StoreError(f"{where} does not contain what its name says; move it away")
        sha256 = hashlib.sha256(data).hexdigest()
        return File(name, piece.partition, piece.first, piece.end - 1, rows, len(data), sha256)

    # pending files ----------------------------------------------------------------------------------------------------

    def _check(self, state: files.State) -> bool:
        """Return whether there are new gaps."""
        assert self.manifest is not None
        gaps = False
        for place, offset in self.manifest.next.items():
            if state.latest[place] < offset:
                raise StoreError(
                    f"{self.folder}: partition {place} ends at {state.latest[place]}, but up to {offset} was exported: "
                    "the log was restored from an older copy, or no broker has started since a power cut"
                )
            if state.earliest[place] > offset:
                self._gap(place, state.earliest[place])
                gaps = True
        return gaps

    def _gap(self, place: int, end: int) -> None:
        assert self.manifest is not None
        gap = self.manifest.skip(place, end)
        missing = gap.last - gap.first + 1
        self.gaps += missing
        self._report(
            f"partition {place}: {missing:,} messages from offset {gap.first} to {gap.last} were removed by retention "
            "before they were exported"
        )

    def _due(self, state: files.State, now: float) -> list[Piece]:
        assert self.manifest is not None
        index, rules = self._reader.index, self._rules
        sealed = {
            place: part.end for one in index.segments[:-1] for place, part in one.parts.items()
        }
        due: list[Piece] = []
        for place, first in self.manifest.next.items():
            latest = min(state.latest[place], self._limit.get(place, 1 << 63))
            whole = min(latest, sealed.get(place, 0))
            if first >= latest:
                self._since.pop(place, None)
                continue
            failed = self._failed.get(place)
            if failed is not None and failed.first == first and failed.end <= latest:
                due.append(failed)
                continue
            old = rules.once or now - self._since.setdefault(place, now) >= rules.roll
            end = latest if rules.tail else whole
            for piece in self._cut(place, first, end):
                last = piece.end == end
                waits = last and piece.end > whole and not old
                if piece.day is not None and not (rules.tail or rules.once):
                    waits = last and piece.day >= self._today()
                if waits and self._bytes(piece) < rules.size:
                    break
                due.append(piece)
        return due[:MOST]

    def _cut(self, place: int, first: int, end: int) -> Iterator[Piece]:
        """Yield pieces of roughly the requested size, cut between blocks. With `by_day`, also cut between days."""
        for begin, stop, day in self._days(place, first, end):
            size, at = 0, begin
            for _, where in self._reader.index.blocks(place, begin, stop):
                if size and size + where.length > self._rules.size:
                    yield Piece(place, at, where.base, day)
                    size, at = 0, where.base
                size += where.length
            yield Piece(place, at, stop, day)

    def _days(self, place: int, first: int, end: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield ranges of offsets that each belong to one day, together with the day.

        A new range starts at each day's first message. If the broker's clock is set back past midnight, the following
        messages stay in the current range.
        """
        if not self._rules.by_day:
            if first < end:
                yield first, end, None
            return
        index = self._reader.index
        while first < end:
            day = self._time(place, first) // _DAY_LENGTH
            border = index.at(place, (day + 1) * _DAY_LENGTH, first, end)
            yield first, end if border is None else border, day
            first = end if border is None else border

    def _time(self, place: int, offset: int) -> int:
        """Return a message's time in microseconds."""
        segment, where = next(iter(self._reader.index.blocks(place, offset, offset + 1)))
        times = block.fixed(parse(segment, where, _TIMES), block.TIMESTAMP)
        return times[offset - where.base]

    def _bytes(self, piece: Piece) -> int:
        found = self._reader.index.blocks(piece.partition, piece.first, piece.end)
        return sum(where.length for _, where in found)

    # files ------------------------------------------------------------------------------------------------------------

    def _export(self, piece: Piece) -> None:
        """Write the piece's file, unless retention deletes the records first."""
        manifest = self.manifest
        assert manifest is not None
        if manifest.next[piece.partition] != piece.first:
            return  # the preceding records were removed
        name = f"{piece.partition:05d}-{piece.first:020d}-{piece.end - 1:020d}{self._format.suffix}"
        name = piece.folder + name
        facts = {
            "hookmq.stream": manifest.stream,
            "hookmq.log_id": manifest.log_id,
            "hookmq.partition": str(piece.partition),
            "hookmq.first": str(piece.first),
            "hookmq.last": str(piece.end - 1),
        }
        rows = 0

        def fill(file: BinaryIO) -> None:
            nonlocal rows
            try:
                rows = self._format.write(file, self._parts(piece), facts)
            except block.Damaged as error:
                raise StoreError(f"{self.folder}: partition {piece.partition}: {error}") from None

        try:
            stored = self._place.write(f"{self._at}/{name}", fill)
        except Removed as removed:
            self._gap(piece.partition, removed.earliest)
            return
        if rows != piece.end - piece.first:
            raise StoreError(f"{self._place.url}/{self._at}/{name} has {rows} rows")
        first, last = piece.first, piece.end - 1
        manifest.add(File(name, piece.partition, first, last, rows, stored.size, stored.sha256))

    def _parts(self, piece: Piece) -> Iterator[Part]:
        try:
            wanted = Wanted(piece.partition, piece.first, piece.end, newest=packed.VERSION)
            for data in self._reader.blocks(wanted, 1 << 62):
                yield Part(packed.parse(data), piece.first, piece.end)
        except OSError as error:  # an error of the log; errors of the target have another type
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error

    def _tell(self) -> None:
        assert self.manifest is not None
        if not self._rules.consumer or not self._reader.log_id:
            return
        if self._told != self.manifest.next:
            self._told = dict(self.manifest.next)
            self._reader.commit(self._rules.consumer, self._told)
