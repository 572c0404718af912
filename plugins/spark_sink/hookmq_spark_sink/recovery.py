"""Check the contents of a stream's folder before it is used."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hookmq.plugin import StoreError
from hookmq_toolkit.segment_log import SegmentLog

from hookmq_spark_sink import files, placement
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.index import SegmentIndex


def check_description(
    folder: Path, config: StreamConfig, described: files.Description | None
) -> None:
    """Raise StoreError if the folder's description contradicts the configuration."""
    if described is None:
        return
    if described.name != config.name:
        raise StoreError(
            f"{folder} contains the stream {described.name!r}, not {config.name!r}: it was renamed, or folders "
            "were swapped; restore its name, or move the folder away for a new stream"
        )
    if described.partitions != config.partitions:
        raise StoreError(
            f"{folder} has {described.partitions} partitions, but the configuration says {config.partitions}:"
            " that would break the order per topic; restore the number, or create a stream with another name"
        )
    if (described.placement == placement.ROUND_ROBIN) != (
        config.placement == placement.ROUND_ROBIN
    ):
        raise StoreError(
            f"{folder} was created with partition_by: {placement.setting(described.placement)}, but the "
            f"configuration says {config.partition_by}: restore it, or create a stream with another name"
        )


def check_log(folder: Path, log: SegmentLog, described: files.Description | None) -> None:
    """Raise StoreError if the log does not belong to the description."""
    if described is None:
        if log.next or any(segment.base for segment in log.segments):
            raise StoreError(
                f"{folder / files.STREAM} is missing, but there are records; restore it"
            )
        return
    if not log.segments:
        raise StoreError(
            f"{folder / files.LOG} is empty, but {files.STREAM} describes a log; restore it, or move "
            "the whole folder away for a new stream"
        )
    if log.id != described.log_id:
        raise StoreError(
            f"{folder / files.LOG} is not the log that {files.STREAM} describes: folders were swapped"
        )


def edges(
    folder: Path, partitions: int, segments: Sequence[SegmentIndex], trimmed: Mapping[int, int]
) -> tuple[list[int], list[int]]:
    """Return each partition's first offset and next offset. Raises StoreError if offsets are missing."""
    first = segments[0].base if segments else 0
    if first and not trimmed:
        raise StoreError(f"{folder / files.TRIMMED} is missing: records were deleted before")
    ends: dict[int, int] = {}
    for one in segments:
        for number, part in one.parts.items():
            if number >= partitions:
                raise StoreError(f"{one.path} has a partition {number}, but the stream has fewer")
            expected = ends.get(number, trimmed.get(number, 0))
            begins = part.bases[0]
            # Retention may have been interrupted before it deleted every segment that was due.
            if begins > expected or (begins != expected and number in ends):
                raise StoreError(
                    f"{one.path}: partition {number} goes from offset {expected} to {begins}"
                )
            ends[number] = part.end
    first_of = {
        number: part.bases[0] for one in reversed(segments) for number, part in one.parts.items()
    }
    earliest, after = [], []
    for number in range(partitions):
        at = trimmed.get(number, 0)
        earliest.append(max(at, first_of.get(number, 0)))
        after.append(max(ends.get(number, 0), at))
    return earliest, after
