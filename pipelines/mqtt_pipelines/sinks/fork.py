"""Compute a batch once, and write it to several tables, exactly once to each.

Each table keeps its own record of the batch. If the driver is killed between two tables, the batch runs again, and the
tables that already have it skip it.

Most batches have no dead letters. The job that writes the first table counts them. Spark runs a second job only if
there are any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException

from mqtt_pipelines.sinks import Sink, SkippingSink, StreamSink, Written
from mqtt_pipelines.sinks.files import EXECUTION, FileBatches, FilesSink
from mqtt_pipelines.sinks.java import java_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger("mqtt_pipelines")
COUNTED = "fork"
DEAD_LETTER = "dead_letter"
"""The end of the names of branches and queries that write dead letters."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A table, and the function that selects this table's rows from a batch."""

    name: str
    """The table's name. The table records batches under it, as if it had a query of its own."""
    sink: Sink
    pick: Callable[[DataFrame], DataFrame]
    where: str = ""
    """The condition in SQL for the rows that `pick` uses. If it is given, a batch without such rows is not computed."""


def branch(
    name: str, sink: Sink | StreamSink, pick: Callable[[DataFrame], DataFrame], where: str = ""
) -> Branch:
    """Return a branch that writes to a sink of either kind."""
    if isinstance(sink, Sink):
        return Branch(name, sink, pick, where)
    assert isinstance(sink, FilesSink), "no other sink is Spark's own"
    return Branch(name, FileBatches(sink), pick, where)


class Fork:
    """A sink that writes each batch to all branches in turn."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.branches = tuple(branches)

    @property
    def name(self) -> str:
        """Return a name to use in messages."""
        return ", ".join(one.sink.name for one in self.branches)

    def check(self, spark: SparkSession, checkpoint: str) -> None:
        """Check that each table can continue from the checkpoint. Raises MqttError if one cannot. This call blocks."""
        for one in self.branches:
            if isinstance(one.sink, FileBatches):
                one.sink.files.check(spark, checkpoint)

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Write a batch to the tables that do not have it yet. Returns the result for the first table. The result is
        `repeated` only if all tables already had the batch.
        """
        query, _, checkpoint_id = app.rpartition(".")
        pipeline = query.rpartition(".")[0]
        # Without this, each table would read the source, parse, and change the state again.
        conditions = [one.where for one in self.branches[1:] if one.where]
        held = _counting(batch, conditions).persist(StorageLevel.MEMORY_AND_DISK)
        done: list[Written] = []
        try:
            for one in self.branches:
                name = f"{pipeline}.{one.name}.{checkpoint_id}"
                said = None
                # If the first table had the batch, its rows were not computed, and so not counted.
                if (
                    (done and not done[0].repeated)
                    and (one.where and isinstance(one.sink, SkippingSink))
                    and _count(held, conditions.index(one.where)) == 0
                ):
                    said = one.sink.skip(batch.sparkSession, batch_id, name)
                done.append(said or one.sink.write(one.pick(held), batch_id, name))
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


def _counting(batch: DataFrame, conditions: Sequence[str]) -> DataFrame:
    """Return a batch that counts, while it is computed, the rows that meet each condition."""
    from pyspark.sql import functions as f

    counts = [f.count_if(f.expr(one)).alias(f"rows_{n}") for n, one in enumerate(conditions)]
    return batch.observe(COUNTED, *counts) if counts else batch


def _count(held: DataFrame, number: int) -> int | None:
    """Return one of the counts from `_counting`, or None if Spark does not report it. The rows must have
    been computed.
    """
    java: Any = held._jdf
    try:
        # Spark reports such counts only for the frame of an action. Here, that frame contains this one.
        cached = java.queryExecution().withCachedData().cacheBuilder().cachedPlan()
        found = (
            java_object(held.sparkSession, f"{EXECUTION}.CollectMetricsExec")
            .collect(cached)
            .get(COUNTED)
        )
        return int(found.get().getLong(number)) if found.isDefined() else None
    except (Py4JError, PySparkException):
        log.debug("The rows of each table were not counted", exc_info=True)
        return None
