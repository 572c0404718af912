"""Record which messages have been exported from a log, in STREAM/LOG_ID/_manifest/000001.json and so on.

Each manifest is written after the files that it lists. The last manifest contains the position at which to continue.
Spark ignores names that begin with _.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from hookmq.plugin import StoreError

from hookmq_spark_sink.export.places import Place

FOLDER: Final = "_manifest"
FORMAT: Final = 1
MOST: Final = 1000
"""Maximum number of files in one manifest. A new manifest then begins, so that writing it remains fast."""
_NAME: Final = re.compile(r"(\d{6,})\.json")


@dataclass(frozen=True)
class File:
    """An exported file with the offsets from `first` to `last`, inclusive."""

    name: str
    partition: int
    first: int
    last: int
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Gap:
    """A range of offsets that retention removed before they were exported. Both ends are inclusive."""

    partition: int
    first: int
    last: int
    found: str


@dataclass
class Totals:
    """Totals over all of the log's manifests."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    missing: int = 0


@dataclass
class Manifest:
    """A manifest. For each partition, `start` is the offset where the export began, and `next` is where it continues."""

    stream: str
    log_id: str
    sequence: int
    start: dict[int, int]
    next: dict[int, int]
    files: list[File] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)

    def add(self, file: File) -> None:
        """Add a file that has been written."""
        self.files.append(file)
        self.next[file.partition] = file.last + 1
        self.totals.files += 1
        self.totals.rows += file.rows
        self.totals.bytes += file.bytes

    def skip(self, partition: int, end: int) -> Gap:
        """Record that all offsets below `end` were removed."""
        gap = Gap(partition, self.next[partition], end - 1, _now())
        self.gaps.append(gap)
        self.next[partition] = end
        self.totals.missing += gap.last - gap.first + 1
        return gap

    def write(self, place: Place, folder: str) -> None:
        """Write the manifest durably. Raises PlaceError if that fails."""
        text = {"format": FORMAT, "updated": _now(), **asdict(self)}
        data = json.dumps(text, indent=1).encode() + b"\n"
        place.write(f"{folder}/{FOLDER}/{self.sequence:06d}.json", lambda file: _put(file, data))
        self.roll()

    def roll(self) -> None:
        """Begin a new manifest if this one is full."""
        if len(self.files) + len(self.gaps) >= MOST:
            self.sequence += 1
            self.files, self.gaps = [], []


def _put(file: Any, data: bytes) -> None:
    file.write(data)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_last(place: Place, folder: str) -> Manifest | None:
    """Return a log's last manifest, or None if there is none. Raises StoreError if it is invalid."""
    found = [
        match for name in place.names(f"{folder}/{FOLDER}") if (match := _NAME.fullmatch(name))
    ]
    if not found:
        return None
    name = f"{folder}/{FOLDER}/{max(found, key=lambda match: int(match[1]))[0]}"
    try:
        text = json.loads(place.read(name))
        if text["format"] != FORMAT:
            raise StoreError(f"{place.url}/{name} has format {text['format']}, not {FORMAT}")
        manifest = Manifest(
            str(text["stream"]),
            str(text["log_id"]),
            int(text["sequence"]),
            _offsets(text["start"]),
            _offsets(text["next"]),
            [File(**one) for one in text["files"]],
            [Gap(**one) for one in text["gaps"]],
            Totals(**text["totals"]),
        )
        _check(manifest)
        manifest.roll()
        return manifest
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"{place.url}/{name} is damaged ({error!r}): move it away, and the files are counted again"
        ) from None


def _check(manifest: Manifest) -> None:
    """Raise ValueError if the listed files do not end at `next`. In that case the manifest was edited, and continuing
    would skip messages.
    """
    at = dict(manifest.start) if manifest.sequence == 1 else {}
    listed = [(one.partition, one.first, one.last) for one in manifest.files]
    listed += [(one.partition, one.first, one.last) for one in manifest.gaps]
    for partition, first, last in sorted(listed):
        if first != at.get(partition, first) or last < first:
            raise ValueError(
                f"offset {first} of partition {partition} does not follow the last file"
            )
        at[partition] = last + 1
    for partition, end in at.items():
        if manifest.next.get(partition) != end:
            raise ValueError(f"next of partition {partition} is not {end}, the end of its files")


def _offsets(given: dict[str, Any]) -> dict[int, int]:
    return {int(place): int(offset) for place, offset in given.items()}
