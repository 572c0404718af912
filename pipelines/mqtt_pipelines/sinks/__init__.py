"""The sinks to which queries write. Every sink recognizes a repeated batch, so that nothing is written twice.

There are two kinds. A `Sink` receives each batch (``foreachBatch``). A `StreamSink` configures one of Spark's own
sinks.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from mqtt_pipelines.settings import Table


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing a batch."""

    rows: int
    """Number of rows added; 0 if they were already in the table."""
    repeated: bool = False
    """Whether the batch had already been written, because the driver was killed before it recorded that."""
    version: str = ""
    """The table's version."""
    dead_letters: int | None = None
    """Number of rows added to a table of dead letters; None if the sink has none."""


@runtime_checkable
class Sink(Protocol):
    """A sink that receives batches."""

    @property
    def name(self) -> str:
        """Return a name to use in messages, such as ``delta /data/silver``."""

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Write a batch, unless the table already has it. This runs on the driver, and may block.

        (`app`, `batch_id`) identifies the batch. `app` consists of the pipeline's name, the query's name and the
        checkpoint id, so batch 0 of a new checkpoint is a different batch. Batch ids never decrease within one `app`,
        but the last batch may be repeated.
        """


@runtime_checkable
class SkippingSink(Sink, Protocol):
    """A sink that can record an empty batch without computing it."""

    def skip(self, spark: SparkSession, batch_id: int, app: str) -> Written | None:
        """Record a batch without rows. The arguments identify it as in `write`. This runs on the driver, and may block.

        Returns None if the batch must be written after all, for example because the table does not exist yet.
        """


@runtime_checkable
class StreamSink(Protocol):
    """One of Spark's own sinks."""

    @property
    def name(self) -> str:
        """Return a name to use in messages, such as ``files /data/bronze``."""

    def writer(self, frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        """Return a writer with the format, options and partitioning set. The runner sets the checkpoint, trigger and
        name.

        Raises an error if the target was written with another checkpoint and the sink cannot continue from that state.
        """


SINKS = {"files": "FilesSink", "delta": "DeltaSink", "iceberg": "IcebergSink"}
"""The class for each table format. Its module has the name of the format. Its argument is the `Table`."""


def open_sink(table: Table) -> Sink | StreamSink:
    """Return the sink for a table. Imports only the module that this sink needs."""
    kind: Any = getattr(import_module(f"{__name__}.{table.format}"), SINKS[table.format])
    made: Sink | StreamSink = kind(table)
    return made
