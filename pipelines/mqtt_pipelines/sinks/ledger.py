"""What a table notes with each batch, in the same commit as the batch's rows, and what it concludes from that.

No Spark and no table format: a ledger is a mapping of names to whole numbers, which Delta keeps as application
transactions and Iceberg as table properties. Per query (`owner`, an `app` without the id of its checkpoint) it says

- which batch of an `app` was the last: a batch that comes again is known;
- that the owner wrote here: an `app` that is new while its owner is known has lost its checkpoint;
- the last offset of each log and partition: such a query begins anew, and what it had written is left out.

The last is right where rows have `log_id`, `partition` and `offset`, and the query wrote them in the order of offsets.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark_mqtt.errors import MqttError

KEY = ("log_id", "partition", "offset")
"""The columns that name a message."""


@dataclass(frozen=True, slots=True)
class Span:
    """The first and the last offset that a batch has of a partition of a log."""

    log_id: str
    partition: int
    first: int
    last: int


def spans(found: Iterable[Span]) -> list[Span]:
    """One span for each log and partition, which holds all of theirs."""
    merged: dict[tuple[str, int], Span] = {}
    for one in found:
        known = merged.get((one.log_id, one.partition), one)
        merged[one.log_id, one.partition] = Span(
            one.log_id,
            one.partition,
            min(known.first, one.first),
            max(known.last, one.last),
        )
    return [merged[key] for key in sorted(merged)]


def owner(app: str) -> str:
    """Who writes, whatever its checkpoint: `app` without its last part."""
    return app.rpartition(".")[0] or app


def mark(name: str, log_id: str, partition: int) -> str:
    """The entry with the last offset that an owner wrote of a partition."""
    return f"{name}@{log_id}/{partition}"


def resumed(app: str) -> str:
    """The entry that says that an `app` began with a table that its owner had written to."""
    return f"{app}#resumed"


def begun(app: str, log_id: str, partition: int) -> str:
    """The entry with the mark that an `app` found when it first wrote rows of a partition, and that it does not move."""
    return f"{app}#{log_id}/{partition}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a batch."""

    repeated: bool = False
    """All of it is in the table."""
    careful: bool = False
    """Some of it may be: the checkpoint is not the one that the table was last written with, or is older than it."""
    done: tuple[Span, ...] = ()
    """What of it is in the table."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """What to note with its rows."""


def judge(
    get: Callable[[str], int | None], app: str, batch_id: int, found: Iterable[Span], keyed: bool
) -> Verdict:
    """What to do with a batch that has the offsets `found`; `get` looks an entry up, `keyed` is whether rows have KEY.

    A batch whose number is noted is not always the one that was written: of a checkpoint that is older than the table,
    a backup perhaps, Spark makes other batches with the same numbers. Their offsets tell.

    Raises MqttError for a query whose checkpoint is lost or too old and whose rows do not say what they were made of.
    """
    name, last = owner(app), get(app)
    if last is not None and batch_id <= last:
        if not keyed and batch_id < last:
            raise MqttError(
                f"The checkpoint of {name} is older than what it wrote: it is at batch {batch_id}, and the table has "
                f"{last}. Restore a newer one; or delete checkpoint and table."
            )
        return _again(get, app, last, spans(found))
    anew = bool(get(resumed(app))) or (last is None and name != app and get(name) is not None)
    if anew and not keyed:
        raise MqttError(
            f"{name} wrote to this table with another checkpoint ({app.rpartition('.')[2]} is new), and would write "
            "everything again: restore the checkpoint; or delete the table, too; or give the query another name to "
            "add to what is there."
        )
    entries = {name: 0, app: batch_id}
    if anew:
        entries[resumed(app)] = 1
    done = []
    for span in spans(found):
        entry = mark(name, span.log_id, span.partition)
        at = _at(get, entry)
        entries[entry] = max(span.last, at)
        if not anew:
            continue
        entry = begun(app, span.log_id, span.partition)
        before = get(entry)
        if before is None:
            before = entries[entry] = at
        if span.first <= before:
            done.append(Span(span.log_id, span.partition, span.first, before))
    return Verdict(careful=anew, done=tuple(done), entries=entries)


def _again(get: Callable[[str], int | None], app: str, last: int, found: list[Span]) -> Verdict:
    """A batch whose number is noted."""
    entries, done, repeated = {owner(app): 0, app: last}, [], True
    for span in found:
        entry = mark(owner(app), span.log_id, span.partition)
        at = _at(get, entry)
        if span.last > at:
            repeated = False
            entries[entry] = span.last
        if span.first <= at:
            done.append(Span(span.log_id, span.partition, span.first, at))
    return Verdict(repeated=repeated, careful=True, done=tuple(done), entries=entries)


def _at(get: Callable[[str], int | None], entry: str) -> int:
    found = get(entry)
    return -1 if found is None else found
