"""Decide whether to write a batch, based on the notes that a table keeps. A batch's notes and rows share one commit.

This module depends on neither Spark nor a table format. A ledger maps names to integers. Delta stores it as application
transactions, and Iceberg as table properties. For each query (`owner`, an `app` without its checkpoint id), it records:

- the last batch of an `app` and its `shape`, to recognize a repeated batch;
- that the owner has written to this table: if a known owner appears with a new `app`, its checkpoint has been lost;
- the number of checkpoints that the owner has had (`term`): a driver that still uses an older one is refused;
- the last offset in each log and partition: a query without its checkpoint starts again and skips rows up to there;
- whether the owner ever wrote rows out of order: the last offset then does not show which rows exist, and the query
  cannot start again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from pyspark_mqtt.errors import MqttError

KEY = ("log_id", "partition", "offset")
"""The columns that identify a message."""


@dataclass(frozen=True, slots=True)
class Span:
    """The first and last offset in one partition of one log."""

    log_id: str
    partition: int
    first: int
    last: int


def spans(found: Iterable[Span]) -> list[Span]:
    """Merge spans so that there is only one for each log and partition."""
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
    """Return the owner of `app`. This is `app` without its last part, the checkpoint id."""
    return app.rpartition(".")[0] or app


def mark(name: str, log_id: str, partition: int) -> str:
    """Return the name of the entry for the last offset that an owner has written in a partition."""
    return f"{name}@{log_id}/{partition}"


def resumed(app: str) -> str:
    """Return the name of the entry that counts how often an `app` resumed from a position behind the table's contents.
    This happens if a query starts anew or an older checkpoint is restored.
    """
    return f"{app}#resumed"


def shape_of(app: str) -> str:
    """Return the name of the entry that holds the `shape` of an app's last batch."""
    return f"{app}#shape"


def shape(found: Iterable[Span], rows: int) -> int:
    """Return a number that represents a batch's shape. Two batches have the same number only if their row counts and
    spans are equal.
    """
    text = repr((spans(found), rows)).encode()
    return int.from_bytes(blake2b(text, digest_size=7).digest())


def term(app: str) -> str:
    """Return the name of the entry that counts the checkpoints that the owner had before this one."""
    return f"{app}#term"


def unordered(name: str) -> str:
    """Return the name of the entry that is set if an owner wrote older rows of a partition after newer ones."""
    return f"{name}#unordered"


def begun(app: str, times: int, log_id: str, partition: int) -> str:
    """Return the name of the entry that preserves a partition's mark as it was when an `app` first wrote to the
    partition.

    The entry does not change until the app is `resumed` again. `times` is how often it has been resumed so far.
    """
    return f"{app}#{f'{times}#' if times > 1 else ''}{log_id}/{partition}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a batch."""

    repeated: bool = False
    """Whether the table has the whole batch."""
    careful: bool = False
    """Whether the table may contain part of the batch: the checkpoint is older, or not the one used by the last write."""
    done: tuple[Span, ...] = ()
    """The part of the batch that is in the table."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """The notes to write with the batch's rows."""
    note: bool = False
    """Whether to write the notes even if there are no rows."""


def judge(
    get: Callable[[str], int | None],
    app: str,
    batch_id: int,
    found: Iterable[Span],
    keyed: bool,
    whole: int | None = None,
) -> Verdict:
    """Decide what to do with a batch. `found` contains the offsets of the batch's remaining rows.

    `whole` is the shape of the whole batch, if known. `get` looks up an entry. `keyed` states whether rows have KEY. A
    batch whose number is recorded is not necessarily the batch that was written. If the checkpoint is older than the
    table, for example because it is a backup, Spark creates other batches with the same numbers. Their row counts and
    offsets reveal this.

    Raises MqttError if the rows do not have KEY and the query's checkpoint is lost or too old. Also raises MqttError if
    another checkpoint has replaced that of a running query.
    """
    name, last = owner(app), get(app)
    terms = get(name) or 0
    if last is not None and terms > (get(term(app)) or 0):
        raise MqttError(
            f"{name} has written to this table with a newer checkpoint than {app.rpartition('.')[2]} since: of two "
            "drivers that run the same query with checkpoints of their own, the older one ends, or rows would be there "
            "twice. Stop one of them, and go on with the newer checkpoint."
        )
    if last is not None and batch_id <= last:
        return _again(get, app, batch_id, last, spans(found), keyed, whole)
    lost = last is None and name != app and get(name) is not None
    anew = 1 if lost else get(resumed(app)) or 0
    if anew and not keyed:
        raise MqttError(
            f"{name} wrote to this table with another checkpoint ({app.rpartition('.')[2]} is new), and would write "
            "everything again: restore the checkpoint; or delete the table, too; or give the query another name to "
            "add to what is there."
        )
    if lost:
        _in_order(get, name)
        terms += 1
    entries = {name: terms, app: batch_id}
    if terms:
        entries[term(app)] = terms
    if anew:
        entries[resumed(app)] = anew
    if whole is not None:
        entries[shape_of(app)] = whole
    done = []
    for span in spans(found):
        entry = mark(name, span.log_id, span.partition)
        at = before = _at(get, entry)
        entries[entry] = max(span.last, at)
        if anew:
            entry = begun(app, anew, span.log_id, span.partition)
            known = get(entry)
            before = at if known is None else known
            if known is None:
                entries[entry] = at
            if span.first <= before:
                done.append(Span(span.log_id, span.partition, span.first, before))
        if span.first <= at and (before < at or not anew):
            entries[unordered(name)] = 1
    return Verdict(careful=anew > 0, done=tuple(done), entries=entries)


def _in_order(get: Callable[[str], int | None], name: str) -> None:
    """Check that the last offset in a partition shows which rows exist. Raises MqttError if it does not."""
    if get(unordered(name)):
        raise MqttError(
            f"{name} writes rows of older messages after those of newer ones, and its checkpoint is new or older than "
            "the table: which rows are there already cannot be told by their offsets. Restore the checkpoint; or delete "
            "the table, too; or give the query another name to add to what is there."
        )


def _again(
    get: Callable[[str], int | None],
    app: str,
    batch_id: int,
    last: int,
    found: list[Span],
    keyed: bool,
    whole: int | None,
) -> Verdict:
    """Decide what to do with a batch whose number is already recorded."""
    name = owner(app)
    if not keyed:
        if batch_id < last:
            raise MqttError(
                f"The checkpoint of {name} is older than what it wrote: it is at batch {batch_id}, and the table has "
                f"{last}. Restore a newer one; or delete checkpoint and table."
            )
        return Verdict(repeated=True, careful=True)
    entries = {name: get(name) or 0, app: last}
    noted = get(shape_of(app))
    # If this batch is not the one that was written, the checkpoint is older than the table. Rows of later batches may
    # then be in the table under numbers that it did not record.
    older = batch_id < last or (None not in (whole, noted) and whole != noted)
    if older:
        _in_order(get, name)
        entries[resumed(app)] = (get(resumed(app)) or 0) + 1
        if whole is not None and batch_id == last:
            entries[shape_of(app)] = whole
    done, repeated = [], True
    for span in found:
        entry = mark(name, span.log_id, span.partition)
        at = _at(get, entry)
        if span.last > at:
            repeated = False
            entries[entry] = span.last
        if span.first <= at:
            done.append(Span(span.log_id, span.partition, span.first, at))
    return Verdict(repeated, True, tuple(done), entries, older)


def _at(get: Callable[[str], int | None], entry: str) -> int:
    found = get(entry)
    return -1 if found is None else found
