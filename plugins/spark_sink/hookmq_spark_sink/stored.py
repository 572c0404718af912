"""Read the state of a stream from its folder, whether or not a broker is running."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hookmq.plugin import StoreError

from hookmq_spark_sink import files
from hookmq_spark_sink.consumers import ConsumerState, states
from hookmq_spark_sink.index import StreamIndex, raise_file_limit


class StoredStream:
    """What a stream's folder currently contains."""

    def __init__(self, folder: Path) -> None:
        described = files.read_description(folder)
        if described is None:
            raise StoreError(f"{folder} contains no stream")
        self.folder = folder
        self.described = described
        raise_file_limit()
        self.index = StreamIndex(folder)
        self.state = files.read_state(folder)
        self.index.refresh(self.state)
        if self.index.segments and self.index.log_id != described.log_id:
            raise StoreError(
                f"{folder}: {files.STREAM} describes another log: folders were swapped"
            )
        if self.state is not None:
            self.earliest, self.latest = list(self.state.earliest), list(self.state.latest)
            return
        # The readable offsets are unknown: this is a copy, or no broker has run since a power cut.
        trimmed = files.read_trimmed(folder, described.log_id)
        ends = self.index.ends()
        self.earliest, self.latest = [], []
        for place in range(described.partitions):
            at = trimmed.get(place, 0)
            first, last = ends.get(place, (at, at))
            self.earliest.append(max(at, first))
            self.latest.append(max(at, last))

    def consumers(self) -> list[ConsumerState]:
        """Return the declared consumers and those that have committed."""
        known = files.read_consumers(self.folder, self.described.log_id)
        declared = files.read_declared(self.folder)
        return states(declared, known, self.earliest, self.latest, self.time)

    def time(self, partition: int, offset: int) -> int | None:
        """Return the newest time in µs in the block that contains this offset, or None if there is no such block."""
        return self.index.newest(partition, offset)

    @property
    def oldest(self) -> int | None:
        """Return the time of the oldest message in µs, or None if the stream is empty."""
        ends = enumerate(zip(self.earliest, self.latest, strict=True))
        times = [self.time(place, first) for place, (first, last) in ends if first < last]
        return min((one for one in times if one is not None), default=None)


def describe(found: StoredStream, now: float) -> dict[str, Any]:
    """Return a stream's state as JSON values. `now` is the time in epoch seconds. Raises StoreError or OSError if a
    file cannot be read.
    """
    size = sum(path.stat().st_size for path in (found.folder / files.LOG).glob("*.segment"))
    records = sum(found.latest) - sum(found.earliest)
    oldest = found.oldest
    return {
        "name": found.described.name,
        "log_id": found.described.log_id,
        "placement": found.described.placement,
        "bytes": size,
        "bytes_per_record": round(size / records, 1) if records else None,
        "segments": len(found.index.segments),
        "blocks": sum(one.blocks for one in found.index.segments),
        "records": records,
        "oldest": None if oldest is None else max(0.0, round(now - oldest / 1e6, 3)),
        **files.read_operation(found.folder)._asdict(),
        "partitions": {
            str(place): {"earliest": earliest, "latest": latest}
            for place, (earliest, latest) in enumerate(
                zip(found.earliest, found.latest, strict=True)
            )
        },
        "consumers": {one.name: _consumer(one, now) for one in found.consumers()},
    }


def _consumer(one: ConsumerState, now: float) -> dict[str, Any]:
    seconds = None if one.lag else 0.0
    if one.behind_at is not None:
        seconds = max(0.0, round(now - one.behind_at, 3))
    return {
        "lag": one.lag,
        "lag_seconds": seconds,
        "declared": one.declared,
        "silent": one.silent,
        "updated": one.updated or None,
        "dead_letters": one.dead_letters,
    }


def lines(shown: dict[str, Any]) -> Iterator[str]:
    """Yield lines that present the result of `describe` to users."""
    yield f"{shown['name']}  (log {shown['log_id']})"
    for name in ("records", "bytes", "segments", "blocks"):
        yield f"  {name:<10} {shown[name]:,}"
    if shown["records"]:
        yield f"  {'per record':<10} {shown['bytes_per_record']:,} bytes"
    if shown["oldest"] is not None:
        yield f"  {'oldest':<10} {_age(shown['oldest'])}"
    if shown["refused"] or shown["full"]:
        state = "; it is full" if shown["full"] else ""
        yield f"  refused    {shown['refused']:,} since the broker started{state}"
    if shown["dropped"]:
        yield f"  dropped    {shown['dropped']:,} since the broker started, which a consumer had not committed"
    if shown["held"]:
        yield "  retention waits for a consumer"
    for place, ends in shown["partitions"].items():
        yield f"  partition {place:<4} {ends['earliest']:,} to {ends['latest']:,}"
    for name, one in shown["consumers"].items():
        behind = f", {_age(one['lag_seconds'])}" if one["lag_seconds"] else ""
        last = ""
        if one["updated"]:
            at = datetime.fromtimestamp(one["updated"], UTC)
            last = f", last commit {at:%Y-%m-%d %H:%M:%S} UTC"
        letters = f", {one['dead_letters']:,} dead letters" if one["dead_letters"] else ""
        yield f"  consumer {name} lags {one['lag']:,}{behind}{last}{letters}{_remark(one)}"


def _remark(one: dict[str, Any]) -> str:
    if one["silent"]:
        return ": it has never committed, so all messages are kept for it"
    return "" if one["declared"] else ": it is not declared, so messages are not kept for it"


def _age(seconds: float) -> str:
    left = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if left >= 2 * size:
            return f"{left // size} {unit}"
    return f"{seconds:.1f} s"
