"""Write Parquet files with Spark's file sink. ``_spark_metadata`` lists the valid files, so read the folder with Spark.

A partition's folder has a safe name for any value; see `folders`.

The sink identifies batches only by their numbers, which start at 0 again with a new checkpoint. Spark would then assume
that the batches have been written, and silently drop their rows. So the folder is checked before a query starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.settings import Table
from mqtt_pipelines.sinks import Written, columns
from mqtt_pipelines.sinks.folders import placed
from mqtt_pipelines.sinks.java import java_array, java_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LOG = "_spark_metadata"
EXECUTION = "org.apache.spark.sql.execution"
SINKS = f"{EXECUTION}.streaming.sinks"


class FilesSink:
    """A folder of Parquet files. `options` are Spark's options for the format, such as `compression`."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @property
    def name(self) -> str:
        """Return a name to use in messages."""
        return f"files {self.table.path}"

    def writer(self, frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        """Return a writer with the format, folder, options and partitioning set. This call blocks while it checks the
        folder.

        Raises MqttError if the folder was written with a different checkpoint, or if there is no column to partition
        by.
        """
        self.check(frame.sparkSession, checkpoint)
        columns.partitions((), self.table.partition_by, frame.columns, self.name)
        frame, names = placed(frame, self.table.partition_by)
        writer = frame.writeStream.format("parquet").outputMode("append")
        writer = writer.options(**self.table.options)
        if names:
            writer = writer.partitionBy(*names)
        return writer.option("path", self.table.path)

    def check(self, spark: SparkSession, checkpoint: str) -> None:
        """Check that the checkpoint includes all batches in the folder. Raises MqttError otherwise."""
        written = latest(spark, f"{self.table.path}/{LOG}")
        planned = latest(spark, f"{checkpoint}/offsets")
        if written > planned:
            raise MqttError(
                f"{self.name} has batches up to {written}, and the checkpoint {checkpoint} is at "
                f"{'none' if planned < 0 else planned}: it is not the one that the folder was written with, and Spark "
                "would leave out batches that it takes for written. Restore the checkpoint; or give both new folders; or "
                "use format delta or iceberg, which go on by themselves."
            )


class FileBatches:
    """A Parquet folder that receives batches from a query that writes several tables.

    Spark's file sink writes the files and records the batches, so the folder looks like that of a `FilesSink`.
    """

    def __init__(self, files: FilesSink) -> None:
        self.files = files

    @property
    def name(self) -> str:
        """Return a name to use in messages."""
        return self.files.name

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Write a batch, unless the folder already has it. This call blocks."""
        from pyspark.sql import functions as f

        table, spark = self.files.table, batch.sparkSession
        if _last(_log(spark, table.path)) >= batch_id:
            return Written(0, True, str(batch_id))
        columns.partitions((), table.partition_by, batch.columns, self.name)
        frame, names = placed(batch, table.partition_by)
        counted: Any = frame.observe("written", f.count(f.lit(1)).alias("rows"))
        python = java_class(spark, "org.apache.spark.api.python.PythonUtils")
        sink = java_class(spark, f"{SINKS}.FileStreamSink")(
            spark._jsparkSession,
            absolute(spark, table.path),
            java_class(spark, f"{EXECUTION}.datasources.parquet.ParquetFileFormat")(),
            python.toSeq(names),
            python.toScalaMap(dict(table.options)),
        )
        sink.addBatch(batch_id, counted._jdf)
        seen = counted._jdf.queryExecution().observedMetrics().get("written")
        rows = seen.get().getLong(0) if seen.isDefined() else 0
        return Written(int(rows), False, str(batch_id))

    def skip(self, spark: SparkSession, batch_id: int, app: str) -> Written | None:
        """Record a batch without rows, unless the folder already has it. This call blocks.

        Returns None if the folder has no batches yet. Its first batch must be written even without rows, to create a
        file that contains the columns.
        """
        log = _log(spark, self.files.table.path)
        last = _last(log)
        if last < 0:
            return None
        if last < batch_id:
            log.add(batch_id, java_array(spark, f"{SINKS}.SinkFileStatus"))
        return Written(0, last >= batch_id, str(batch_id))


def _log(spark: SparkSession, folder: str) -> Any:
    """Return the log that lists a folder's batches, as a Java object."""
    kind = java_class(spark, f"{SINKS}.FileStreamSinkLog")
    none = java_class(spark, "scala.Option").empty()
    return kind(kind.VERSION(), spark._jsparkSession, f"{absolute(spark, folder)}/{LOG}", none)


def _last(log: Any) -> int:
    """Return the number of the last batch in a log, or -1 if there is none."""
    found = log.getLatestBatchId()
    return int(found.get()) if found.isDefined() else -1


def absolute(spark: SparkSession, folder: str) -> str:
    """Return a folder's URI. A relative path is resolved as Spark would resolve it."""
    java: Any = spark.sparkContext._jsc
    path = java_class(spark, "org.apache.hadoop.fs.Path")(folder)
    return str(path.getFileSystem(java.hadoopConfiguration()).makeQualified(path).toString())


def latest(spark: SparkSession, folder: str) -> int:
    """Return the number of the last batch in a log written by Spark, or -1 if there is none. This works on every file
    system that Spark supports.
    """
    java: Any = spark.sparkContext._jsc
    path = java_class(spark, "org.apache.hadoop.fs.Path")(folder)
    system = path.getFileSystem(java.hadoopConfiguration())
    if not system.exists(path):
        return -1
    names = [status.getPath().getName() for status in system.listStatus(path)]
    numbers = [name.partition(".")[0] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)
