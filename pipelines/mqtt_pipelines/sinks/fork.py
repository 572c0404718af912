"""Write one batch to several tables, exactly once to each, and compute it only once.

Each table records its batches itself. If the driver is killed between two tables, the batch runs again, and the tables
that already have it skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel

from mqtt_pipelines.sinks import Sink, StreamSink, Written
from mqtt_pipelines.sinks.files import FileBatches, FilesSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


DEAD_LETTER = "dead_letter"
"""The end of the names of branches and queries that write dead letters."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A table, and the choice of the rows that it gets from a batch."""

    name: str
    """The table's name. The table records batches under it, as if it had a query of its own."""
    sink: Sink
    pick: Callable[[DataFrame], DataFrame]


def branch(name: str, sink: Sink | StreamSink, pick: Callable[[DataFrame], DataFrame]) -> Branch:
    """Return a branch for a sink of either kind."""
    if isinstance(sink, Sink):
        return Branch(name, sink, pick)
    assert isinstance(sink, FilesSink), "no other sink is Spark's own"
    return Branch(name, FileBatches(sink), pick)


class Fork:
    """A sink that writes each batch to all branches, in order."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.branches = tuple(branches)

    @property
    def name(self) -> str:
        """Return a name for messages."""
        return ", ".join(one.sink.name for one in self.branches)

    def check(self, spark: SparkSession, checkpoint: str) -> None:
        """Raise MqttError if a table was written with a checkpoint that it cannot continue from. Blocks."""
        for one in self.branches:
            if isinstance(one.sink, FileBatches):
                one.sink.files.check(spark, checkpoint)

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Write a batch to the tables that lack it. Returns the result for the first table, whose batch is `repeated`
        only if all tables had it."""
        query, _, checkpoint_id = app.rpartition(".")
        pipeline = query.rpartition(".")[0]
        # Without this, each table would read the source, parse, and change the state again.
        held = batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            done = [
                one.sink.write(one.pick(held), batch_id, f"{pipeline}.{one.name}.{checkpoint_id}")
                for one in self.branches
            ]
        finally:
            held.unpersist()
        letters = [
            said.rows
            for one, said in zip(self.branches, done, strict=True)
            if one.name.endswith(DEAD_LETTER)
        ]
        return Written(
            done[0].rows,
            all(one.repeated for one in done),
            done[0].version,
            sum(letters) if letters else None,
        )
