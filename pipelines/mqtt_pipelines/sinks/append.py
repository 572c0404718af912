"""Appending a batch once: look whether it is there, have its files written, add them and the note of it in one commit.

What is particular to a table format is behind `Store`.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark import StorageLevel
from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.sinks import Written, columns, ledger, parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("mqtt_pipelines")
TRIES = 12
"""Commits that others may come before, one after the other."""
WAIT = 0.05
"""Seconds before the second try; twice that before the next, and so on, up to `MOST`."""
MOST = 2.0


@dataclass(frozen=True, slots=True)
class Times:
    """A range of a column with times, both ends within."""

    column: str
    first: datetime.datetime
    last: datetime.datetime


class State(Protocol):
    """A table as it was when it was loaded; a commit holds only if nobody changed what it depends on since."""

    version: str

    def get(self, entry: str) -> int | None:
        """What the table notes under a name."""

    def target(self, schema: pa.Schema) -> parts.Target:
        """Where files go."""

    def commit(self, made: Sequence[parts.Part], entries: Mapping[str, int], app: str) -> bool:
        """Add files and notes; True if done, False if others came first. Sets `version`."""

    def keys(
        self, names: Sequence[str], spans: Iterable[ledger.Span], times: Times | None = None
    ) -> pa.Table:
        """Columns of the rows whose offsets are within spans, or whose time is within `times`."""

    def spans(self) -> list[ledger.Span]:
        """The first and the last offset of each log and partition."""


class Store(Protocol):
    """A table that may not exist yet."""

    @property
    def name(self) -> str:
        """For messages."""

    def load(self, schema: pa.Schema) -> State:
        """The table as it is now, made if there is none, with the columns of `schema`.

        Raises MqttError if they do not fit.
        """

    def look(self) -> State | None:
        """The table as it is now, if there is one."""


def append(
    store: Store,
    batch: DataFrame,
    batch_id: int,
    app: str,
    wait: Callable[[float], None] = time.sleep,
) -> Written:
    """Append a batch unless the table has it. Blocks. Raises MqttError if the table will not take it."""
    schema = columns.arrow(batch.schema)
    keyed = set(ledger.KEY) <= set(schema.names)
    state = store.look()
    if state is None:
        return _append(store, batch, batch_id, app, keyed, wait)
    verdict = ledger.judge(state.get, app, batch_id, (), keyed)
    if not verdict.careful:
        return _append(store, batch, batch_id, app, keyed, wait)
    if not keyed:
        return Written(0, True, state.version)
    # After a crash, or with another checkpoint: which of the rows are there is looked at before any is written. Once, as
    # what computes them may remember what it saw.
    held = batch.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        found, total = spans(held)
        whole = ledger.shape(found, total)
        verdict = ledger.judge(state.get, app, batch_id, found, keyed, whole)
        if verdict.repeated and not verdict.note:
            return Written(0, True, state.version)
        return _append(store, _rest(store, held, verdict, app), batch_id, app, keyed, wait, whole)
    finally:
        held.unpersist()


def _append(
    store: Store,
    rows: DataFrame,
    batch_id: int,
    app: str,
    keyed: bool,
    wait: Callable[[float], None],
    whole: int | None = None,
) -> Written:
    """`rows` are what is left of a batch of the shape `whole`, or all of it."""
    schema = columns.arrow(rows.schema)
    with told(store):
        state = store.load(schema)
    target = state.target(schema)
    made = parts.write(rows, target)
    if whole is None:
        every = [span for part in made for span in part.spans]
        whole = ledger.shape(every, sum(part.rows for part in made))
    failures = 0
    while True:
        found = [span for part in made for span in part.spans]
        try:
            verdict = ledger.judge(state.get, app, batch_id, found, keyed, whole)
        except MqttError:
            parts.remove(target, made)
            raise
        if verdict.repeated:
            parts.remove(target, made)
            made = []
        if not made and not verdict.note:
            return Written(0, verdict.repeated, state.version)
        if verdict.done and not verdict.repeated:  # Another driver wrote some of it meanwhile.
            parts.remove(target, made)
            made = parts.write(_rest(store, rows, verdict, app), target)
            continue
        with told(store):
            done = state.commit(made, verdict.entries, app)
        if done:
            return Written(sum(part.rows for part in made), verdict.repeated, state.version)
        failures += 1
        if failures == TRIES:
            parts.remove(target, made)
            raise MqttError(
                f"{store.name}: other writers came first {TRIES} times in a row, so the batch was not added. Let fewer "
                "write to it at once; started again, the query goes on with this batch."
            )
        wait(min(MOST, WAIT * 2**failures))
        with told(store):
            state = store.load(schema)


@contextlib.contextmanager
def told(
    store: Store, cure: str = "started again, the query goes on with this batch"
) -> Iterator[None]:
    """Whatever a format's library raises as MqttError, in a line that names the table."""
    try:
        yield
    except MqttError:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise MqttError(
            f"{store.name} could not be written ({why}). Nothing is lost or there twice; {cure}."
        ) from error


def _rest(store: Store, rows: DataFrame, verdict: ledger.Verdict, app: str) -> DataFrame:
    """The rows that are not in the table."""
    if not verdict.done:
        return rows
    log.warning(
        "%s: the checkpoint of %s is not the one that it was last written with; what is there already is left out",
        store.name,
        ledger.owner(app),
    )
    return rows.where(~within(verdict.done))


def spans(rows: DataFrame) -> tuple[list[ledger.Span], int]:
    """The first and the last offset of each log and partition, of rows with their whole key; and how many rows there are
    with and without it. Runs the rows."""
    from pyspark.sql import functions as f

    by = rows.groupBy("log_id", "partition")
    edges = by.agg(f.min("offset"), f.max("offset"), f.count(f.lit(1))).collect()
    return [ledger.Span(*row[:4]) for row in edges if None not in row[:4]], sum(
        row[4] for row in edges
    )


def within(spans: Iterable[ledger.Span]) -> Column:
    """Whether a row's offset is in one of some spans; false where one of its key is null."""
    from pyspark.sql import functions as f

    arms = f.lit(False)
    for span in spans:
        arms |= (
            (f.col("log_id") == span.log_id)
            & (f.col("partition") == span.partition)
            & f.col("offset").between(span.first, span.last)
        )
    return f.coalesce(arms, f.lit(False))
