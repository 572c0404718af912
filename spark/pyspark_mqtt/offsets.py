"""Compute offsets: where reading begins, where a batch ends, and what each task reads. Also check that the log is still
the same.

These are plain objects that need neither Spark nor a network. All decisions that make sure each message is read once
are made here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark_mqtt.errors import DataLossError, MqttError, OptionError

EARLIEST, LATEST = -2, -1
"""The numbers for the earliest and latest offset, as in Kafka's JSON offsets."""

Json = dict[str, str | int]


@dataclass(frozen=True)
class Log:
    """A log's contents: for each partition, the first remaining offset and the offset after the last durable record."""

    stream: str
    log_id: str
    earliest: Mapping[int, int]
    latest: Mapping[int, int]


@dataclass(frozen=True)
class Offsets:
    """The next offset of each partition, and the id of the log that the offsets belong to."""

    log_id: str
    next: Mapping[int, int]

    def json(self) -> Json:
        """Return the offsets as JSON for Spark's checkpoint. Their order is fixed, because Spark compares the text."""
        return {"log_id": self.log_id, **{str(p): self.next[p] for p in sorted(self.next)}}

    @classmethod
    def of(cls, json: Mapping[str, str | int]) -> "Offsets":
        """Parse the result of ``json``. Raises MqttError if the offsets belong to another source."""
        log_id = json.get("log_id")
        try:
            if not isinstance(log_id, str):
                raise ValueError
            return cls(log_id, {int(p): int(o) for p, o in json.items() if p != "log_id"})
        except ValueError:
            raise MqttError(
                f"The checkpoint holds offsets of another source ({dict(json)}): give this query a "
                "checkpointLocation of its own."
            ) from None


@dataclass(frozen=True)
class Range:
    """The offsets of a partition with start <= offset < end."""

    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Return the number of offsets."""
        return self.end - self.start


def resolve(given: str | Mapping[str, int], log: Log, name: str) -> Offsets:
    """Resolve an option's offsets: ``earliest``, ``latest``, or a number for each partition. -2 means earliest, -1
    means latest.

    Raises OptionError if a partition is missing or unknown, and DataLossError if an offset is not in the log.
    """
    if given == "earliest":
        return Offsets(log.log_id, log.earliest)
    if given == "latest":
        return Offsets(log.log_id, log.latest)
    assert not isinstance(given, str)
    if given.get("log_id", log.log_id) != log.log_id:
        raise DataLossError(
            f"Option {name} names log {given['log_id']}, but stream {log.stream} is log {log.log_id} now: "
            "take offsets from this log, or earliest."
        )
    numbers = {int(p): o for p, o in given.items() if p != "log_id"}
    name_each(numbers, log, name, "(-2 is earliest, -1 latest)")
    special = {EARLIEST: log.earliest, LATEST: log.latest}
    return Offsets(
        log.log_id, {p: special[o][p] if o in special else o for p, o in sorted(numbers.items())}
    )


def name_each(given: Mapping[int, int], log: Log, name: str, hint: str = "") -> None:
    """Raise OptionError unless an option names exactly the partitions that are read."""
    if given.keys() != log.latest.keys():
        known = ", ".join(map(str, sorted(log.latest)))
        raise OptionError(
            f"Option {name} names partitions {', '.join(map(str, sorted(given)))}, but stream "
            f"{log.stream} has {known}: name each of them {hint}".rstrip()
            + "."
        )


def assigned(log: Log, partitions: Sequence[int]) -> Log:
    """Return the log's contents, limited to these partitions. Raises OptionError if the stream lacks one of them."""
    for p in partitions:
        if p not in log.latest:
            raise OptionError(
                f"Option assign names partition {p}, but stream {log.stream} has 0 to {max(log.latest)}."
            )
    return Log(
        log.stream,
        log.log_id,
        {p: log.earliest[p] for p in partitions},
        {p: log.latest[p] for p in partitions},
    )


def at_time(found: Mapping[int, int | None], log: Log, name: str, strategy: str) -> Offsets:
    """For each partition, return the offset of the first message at or after the given time.

    If a partition has no such message, the strategy ``latest`` uses the partition's latest offset. Any other strategy
    raises OptionError.
    """
    missing = [p for p, offset in sorted(found.items()) if offset is None]
    if missing and strategy == "error":
        raise OptionError(
            f"Option {name} is later than all of partition {', '.join(map(str, missing))} of stream {log.stream}: "
            'give an earlier time, or .option("startingOffsetsByTimestampStrategy", "latest").'
        )
    return Offsets(log.log_id, {p: log.latest[p] if o is None else o for p, o in found.items()})


def check(start: Offsets, log: Log, fail: bool, warn: "list[str]") -> Offsets:
    """Return ``start`` if the log still has all records from these offsets on.

    Otherwise, raise DataLossError. If ``fail`` is false, add a message to ``warn`` instead, and return the log's
    earliest offsets.
    """
    faults = _faults(start, log)
    if not faults:
        return start
    if fail:
        raise DataLossError(
            f"{faults[0]} To go on without, set failOnDataLoss=false, which reads from what is left; "
            "to begin anew, use a new checkpointLocation."
        )
    warn.extend(f"{fault} Reading continues at the earliest offset." for fault in faults)
    if start.log_id != log.log_id:
        return Offsets(log.log_id, log.earliest)
    inside = {
        p: start.next[p] if p in start.next and e <= start.next[p] <= log.latest[p] else e
        for p, e in log.earliest.items()
    }
    return Offsets(log.log_id, inside)


def _faults(start: Offsets, log: Log) -> list[str]:
    name = f"Stream {log.stream}"
    if start.log_id != log.log_id:
        return [
            f"{name} is not the log that the checkpoint belongs to (log_id {start.log_id} then, "
            f"{log.log_id} now): it was deleted and created anew, or `url` or `stream` lead to another one."
        ]
    if start.next.keys() != log.latest.keys():
        return [
            f"{name} had {len(start.next)} partitions in the checkpoint and has {len(log.latest)} now: "
            "they are fixed when a stream is created, so this is another one, or `assign` was changed."
        ]
    faults = []
    for p, offset in sorted(start.next.items()):
        if offset < log.earliest[p]:
            faults.append(
                f"{name} has lost offsets {offset} to {log.earliest[p] - 1} of partition {p} to its "
                "retention before they were read: keep messages for longer, or declare this consumer."
            )
        elif offset > log.latest[p]:
            faults.append(
                f"{name} ends at offset {log.latest[p]} of partition {p}, but {offset} was read "
                "already: the log is older than the checkpoint, restored from a backup perhaps."
            )
    return faults


def advance(start: Offsets, latest: Mapping[int, int], most: int | None) -> Offsets:
    """Return the end of a batch that begins at ``start`` and has at most ``most`` messages. The end is never after
    ``latest``.

    The limit is divided in proportion to the waiting messages, so that no partition starves. The batch is not empty if
    messages are waiting and the limit is not 0.
    """
    waiting = {p: max(0, latest[p] - o) for p, o in start.next.items()}
    total = sum(waiting.values())
    if most is None or total <= most:
        return Offsets(start.log_id, {p: o + waiting[p] for p, o in start.next.items()})
    shares = {p: rows * most // total for p, rows in waiting.items()}
    left = most - sum(shares.values())
    # The remainder after rounding is given to the partitions with the smallest share.
    for p in sorted(waiting, key=lambda p: (waiting[p] * most % total, waiting[p]), reverse=True):
        if left and shares[p] < waiting[p]:
            shares[p] += 1
            left -= 1
    return Offsets(start.log_id, {p: o + shares[p] for p, o in start.next.items()})


def waiting(start: Offsets, latest: Mapping[int, int]) -> int:
    """Return the number of messages from ``start`` to ``latest``."""
    return sum(max(0, latest[p] - o) for p, o in start.next.items())


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """Return the ranges between two offsets in one log. Empty ranges are omitted."""
    return [
        Range(p, start.next[p], end.next[p])
        for p in sorted(end.next)
        if start.next[p] < end.next[p]
    ]


def split(whole: Sequence[Range], least: int | None, most_rows: int | None) -> list[Range]:
    """Split ranges, in order, into at least ``least`` pieces of about equal size with at most ``most_rows`` rows
    each.

    There are fewer pieces only if there are fewer messages.
    """
    total = sum(one.rows for one in whole)
    pieces: list[Range] = []
    for one in whole:
        parts = 1
        if most_rows is not None:
            parts = -(-one.rows // most_rows)
        if least is not None and least > len(whole):
            parts = max(parts, -(-one.rows * least // total))
        parts = min(parts, one.rows)
        cuts = [one.start + one.rows * i // parts for i in range(parts + 1)]
        pieces += [Range(one.partition, a, b) for a, b in pairwise(cuts)]
    return pieces


def combined(pieces: Sequence[Range], least: int | None, least_rows: int) -> list[list[Range]]:
    """Group consecutive pieces into tasks of at least ``least_rows`` rows each, but into at least ``least`` tasks.

    There are fewer tasks than ``least`` only if there are fewer pieces. Each task costs about 10 ms, regardless of how
    much it reads.
    """
    total = sum(one.rows for one in pieces)
    tasks = max(total // least_rows, least or 1)
    if tasks >= len(pieces):
        return [[one] for one in pieces]
    found: list[list[Range]] = []
    rows = 0
    for number, one in enumerate(pieces):
        missing = tasks - len(found)
        # A new task begins when those before have their share, or when each piece left is needed for a task.
        if not found or rows * tasks >= total * len(found) or missing >= len(pieces) - number:
            found.append([])
        found[-1].append(one)
        rows += one.rows
    return found


def bounded(chosen: Offsets, log: Log, name: str, fail: bool, warn: list[str]) -> Offsets:
    """Return an option's offsets if the log has them. Otherwise, raise DataLossError or, if ``fail`` is false, return
    the nearest offsets and add a warning to ``warn``.
    """
    inside = {
        p: min(max(o, log.earliest[p]), log.latest[p]) for p, o in sorted(chosen.next.items())
    }
    for p, offset in inside.items():
        if offset != chosen.next[p]:
            text = (
                f"Option {name} names offset {chosen.next[p]} of partition {p} of stream {log.stream}, "
                f"which holds {log.earliest[p]} to {log.latest[p]}."
            )
            if fail:
                raise DataLossError(f"{text} Name one of these, or set failOnDataLoss=false.")
            warn.append(f"{text} Taking {offset}.")
    return Offsets(chosen.log_id, inside)
