"""What a table notes with each batch, in the same commit as the batch's rows, and what it concludes from that.

No Spark and no table format: a ledger is a mapping of names to whole numbers, which Delta keeps as application
transactions and Iceberg as table properties. Per query (`owner`, an `app` without the id of its checkpoint) it says

- which batch of an `app` was the last, and its `shape`: a batch that comes again is known;
- that the owner wrote here: an `app` that is new while its owner is known has lost its checkpoint;
- how many checkpoints it had (`term`): what still writes with an older one is another driver, and is refused;
- the last offset of each log and partition: such a query begins anew, and what it had written is left out;
- whether it ever wrote a row behind that offset: then the offset does not tell what is there, and it cannot begin anew.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

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
    """The entry that says how often an `app` began, or was taken back by an older checkpoint, behind what is there."""
    return f"{app}#resumed"


def shape_of(app: str) -> str:
    """The entry with the `shape` of an app's last batch."""
    return f"{app}#shape"


def shape(found: Iterable[Span], rows: int) -> int:
    """A number that differs for two batches unless they have as many rows and the same spans."""
    text = repr((spans(found), rows)).encode()
    return int.from_bytes(blake2b(text, digest_size=7).digest())


def term(app: str) -> str:
    """The entry that says how many checkpoints its owner had before this one."""
    return f"{app}#term"


def unordered(name: str) -> str:
    """The entry that says that an owner wrote rows behind others of their partition that it had written before."""
    return f"{name}#unordered"


def begun(app: str, times: int, log_id: str, partition: int) -> str:
    """The entry with the mark that an `app` found when it first wrote rows of a partition, and that it does not move,
    since it was `resumed` so many times."""
    return f"{app}#{f'{times}#' if times > 1 else ''}{log_id}/{partition}"


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
    note: bool = False
    """Whether that is to be noted even if no row is to be written."""


def judge(
    get: Callable[[str], int | None],
    app: str,
    batch_id: int,
    found: Iterable[Span],
    keyed: bool,
    whole: int | None = None,
) -> Verdict:
    """What to do with a batch of which the rows with the offsets `found` are left; `whole` is the shape of all of it, as
    far as that is known; `get` looks an entry up, `keyed` is whether rows have KEY.

    A batch whose number is noted is not always the one that was written: of a checkpoint that is older than the table,
    a backup perhaps, Spark makes other batches with the same numbers. Their rows and offsets tell.

    Raises MqttError for a query whose checkpoint is lost or too old and whose rows do not say what they were made of, and
    for one that goes on while another checkpoint has taken its place.
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
    """Raises MqttError where the last offset of a partition does not tell what is there."""
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
    """A batch whose number is noted."""
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
    # Where it is not the batch that was written, the checkpoint is older than the table, and the batches behind it may
    # hold what is there under numbers that the table has not seen.
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
