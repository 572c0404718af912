"""Where a query's rows go. Every sink takes a batch that comes again as the same batch: nothing is written twice.

Two kinds: a `Sink` is handed each batch (``foreachBatch``), a `StreamSink` is Spark's own and only configured here.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from mqtt_pipelines.settings import Table


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch."""

    rows: int
    """How many rows it added; 0 where it was there already."""
    repeated: bool = False
    """Whether it had been written before: the driver was killed between writing and noting that it was done."""
    version: str = ""
    """Of the table, as the table counts."""


@runtime_checkable
class Sink(Protocol):
    """Takes batches."""

    @property
    def name(self) -> str:
        """For messages, such as ``delta /data/silver``."""

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Write a batch, unless it is there already. May block; runs on the driver.

        (`app`, `batch_id`) names the batch: `app` is the pipeline's name, the query's name and the id of its checkpoint,
        so that a checkpoint that was deleted does not make batch 0 again. Ids of one `app` only grow; the last may come
        again.
        """


@runtime_checkable
class StreamSink(Protocol):
    """One of Spark's own sinks."""

    @property
    def name(self) -> str:
        """For messages, such as ``files /data/bronze``."""

    def configure(self, writer: "DataStreamWriter", checkpoint: str) -> "DataStreamWriter":
        """Set format, options and partitioning; checkpoint, trigger and name are the runner's.

        Raises if what is there was written with another checkpoint and the sink cannot go on from that.
        """


SINKS = {"files": "FilesSink", "delta": "DeltaSink", "iceberg": "IcebergSink"}
"""The class by a table's format; it is in the module of that name and takes the `Table`."""


def open_sink(table: Table) -> Sink | StreamSink:
    """The sink of a table. Only the module that is needed is imported."""
    kind: Any = getattr(import_module(f"{__name__}.{table.format}"), SINKS[table.format])
    made: Sink | StreamSink = kind(table)
    return made
