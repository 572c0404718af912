"""Append a batch exactly once.

First check whether the table already has the batch. If not, write the files, then add them and a note in one commit.
`Store` hides the differences between table formats.
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
from mqtt_pipelines.sinks.errors import brief

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("mqtt_pipelines")
TRIES = 12
"""Number of attempts to commit before giving up, if other writers keep committing first."""
WAIT = 0.05
"""Seconds before the second attempt. The time doubles with each attempt, up to `MOST`."""
MOST = 2.0


@dataclass(frozen=True, slots=True)
class Times:
    """A time range in a column. Both ends are inclusive."""

    column: str
    first: datetime.datetime
    last: datetime.datetime


class State(Protocol):
    """A table as it was when loaded. A commit succeeds only if nothing that it depends on has changed since then."""

    version: str

    def get(self, entry: str) -> int | None:
        """Return the value of the note `entry` in the table."""

    def target(self, schema: pa.Schema) -> parts.Target:
        """Return where and how files are to be written."""

    def commit(self, made: Sequence[parts.Part], entries: Mapping[str, int], app: str) -> bool:
        """Add files and notes, and update `version`. Return False if another writer committed first."""

    def keys(
        self, names: Sequence[str], spans: Iterable[ledger.Span], times: Times | None = None
    ) -> pa.Table:
        """Return the columns `names` of all rows whose offsets are in `spans` or whose time is in `times`."""

    def spans(self) -> list[ledger.Span]:
        """Return the first and last offset for each log and partition."""


class Store(Protocol):
    """A table that may not exist yet."""

    @property
    def name(self) -> str:
        """Return a name to use in messages."""

    def load(self, schema: pa.Schema) -> State:
        """Load the table, or create it with the columns of `schema`. Raises MqttError if the columns do not match."""

    def look(self) -> State | None:
        """Load the table if it exists."""


def append(
    store: Store,
    batch: DataFrame,
    batch_id: int,
    app: str,
    wait: Callable[[float], None] = time.sleep,
) -> Written:
    """Append a batch, unless the table already has it. This call blocks. Raises MqttError if the table refuses the
    batch.
    """
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
    # After a crash, or with another checkpoint, find existing rows before writing any. Do this only once, because
    # computing the rows may be stateful.
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


def skip(store: Store, batch_id: int, app: str) -> Written | None:
    """Return the result that `append` would have for a batch without rows, or None if `append` must decide. This call
    blocks.

    Such a batch leaves no note, unless its number shows that the checkpoint is older than the table.
    """
    with told(store):
        state = store.look()
    if state is None:  # The table gets its columns from the first batch.
        return None
    verdict = ledger.judge(state.get, app, batch_id, (), keyed=True)
    return None if verdict.careful else Written(0, False, state.version)


def _append(
    store: Store,
    rows: DataFrame,
    batch_id: int,
    app: str,
    keyed: bool,
    wait: Callable[[float], None],
    whole: int | None = None,
) -> Written:
    """Append `rows`, which are either a whole batch or the remaining part of one. `whole` is the shape of the whole
    batch.
    """
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
        if verdict.done and not verdict.repeated:  # Another driver wrote some rows in the meantime.
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
                "write to it at once; after a restart, the query continues with this batch."
            )
        wait(min(MOST, WAIT * 2**failures))
        with told(store):
            state = store.load(schema)


@contextlib.contextmanager
def told(
    store: Store, cure: str = "after a restart, the query continues with this batch"
) -> Iterator[None]:
    """Convert an error from a table format's library to an MqttError whose message is one line and includes the table's
    name.
    """
    try:
        yield
    except MqttError:
        raise
    except Exception as error:
        raise MqttError(
            f"{store.name} could not be written ({brief(error)}). Nothing is lost or there twice; {cure}."
        ) from error


def _rest(store: Store, rows: DataFrame, verdict: ledger.Verdict, app: str) -> DataFrame:
    """Return the rows that the table does not contain yet."""
    if not verdict.done:
        return rows
    log.warning(
        "%s: the checkpoint of %s is not the one that it was last written with; what is there already is left out",
        store.name,
        ledger.owner(app),
    )
    return rows.where(~within(verdict.done))


def spans(rows: DataFrame) -> tuple[list[ledger.Span], int]:
    """Return the first and last offset for each log and partition, and the number of rows.

    Only rows with a complete key contribute offsets, but the number includes all rows. This call computes the rows.
    """
    from pyspark.sql import functions as f

    by = rows.groupBy("log_id", "partition")
    edges = by.agg(f.min("offset"), f.max("offset"), f.count(f.lit(1))).collect()
    return [ledger.Span(*row[:4]) for row in edges if None not in row[:4]], sum(
        row[4] for row in edges
    )


def within(spans: Iterable[ledger.Span]) -> Column:
    """Return a condition that is true if a row's offset is in one of the spans. It is false if part of the row's key is
    null.
    """
    from pyspark.sql import functions as f

    arms = f.lit(False)
    for span in spans:
        arms |= (
            (f.col("log_id") == span.log_id)
            & (f.col("partition") == span.partition)
            & f.col("offset").between(span.first, span.last)
        )
    return f.coalesce(arms, f.lit(False))
