"""Appending a batch once: look whether it is there, have its files written, add them and the note of it in one commit.

What is particular to a table format is behind `Store`.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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
    state = store.look()
    if state is not None and ledger.known(state.get, app, batch_id):
        return Written(0, True, state.version)
    schema = columns.arrow(batch.schema)
    keyed = set(ledger.KEY) <= set(schema.names)
    state = store.load(schema)
    # Before a single file is written: a checkpoint that was lost, where that cannot be made good.
    ledger.judge(state.get, app, batch_id, (), keyed)
    target = state.target(schema)
    made = parts.write(batch, target)
    failures = 0
    while True:
        spans = [span for part in made for span in part.spans]
        verdict = ledger.judge(state.get, app, batch_id, spans, keyed)
        if verdict.repeated or not made:
            parts.remove(target, made)
            return Written(0, verdict.repeated, state.version)
        if verdict.done:
            # Only after a lost checkpoint: these files were written for nothing.
            parts.remove(target, made)
            log.warning(
                "%s: %s has another checkpoint than before; of batch %d, what it had written already is left out",
                store.name,
                ledger.owner(app),
                batch_id,
            )
            made = parts.write(batch.where(~within(verdict.done)), target)
            continue
        assert verdict.entries is not None
        if state.commit(made, verdict.entries, app):
            return Written(sum(part.rows for part in made), False, state.version)
        failures += 1
        if failures == TRIES:
            parts.remove(target, made)
            raise MqttError(
                f"{store.name}: other writers came first {TRIES} times in a row, so the batch was not added. Let fewer "
                "write to it at once; started again, the query goes on with this batch."
            )
        wait(min(MOST, WAIT * 2**failures))
        state = store.load(schema)


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
