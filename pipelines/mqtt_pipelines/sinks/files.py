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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LOG = "_spark_metadata"


class FilesSink:
    """A folder of Parquet files. `options` are Spark's options for the format, such as `compression`."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @property
    def name(self) -> str:
        """Return a name for messages."""
        return f"files {self.table.path}"

    def writer(self, frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        """Return a writer with the format, folder, options and partitioning. Blocks while it checks the folder.

        Raises MqttError if the folder was written with a checkpoint other than `checkpoint`, or if there is no column
        to partition by.
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
        """Raise MqttError if the folder has batches that the checkpoint does not include."""
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
    """A folder of Parquet files that receives batches, for a query that writes several tables.

    Spark's file sink writes them, so the folder is the same as that of a `FilesSink`, and records the batches.
    """

    def __init__(self, files: FilesSink) -> None:
        self.files = files

    @property
    def name(self) -> str:
        """Return a name for messages."""
        return self.files.name

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Write a batch unless the folder has it. This call blocks."""
        from pyspark.sql import functions as f

        table, spark = self.files.table, batch.sparkSession
        if latest(spark, f"{table.path}/{LOG}") >= batch_id:
            return Written(0, True, str(batch_id))
        columns.partitions((), table.partition_by, batch.columns, self.name)
        frame, names = placed(batch, table.partition_by)
        counted: Any = frame.observe("written", f.count(f.lit(1)).alias("rows"))
        jvm: Any = spark.sparkContext._jvm
        python = jvm.org.apache.spark.api.python.PythonUtils
        parquet = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat()
        sink = jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink(
            spark._jsparkSession,
            absolute(spark, table.path),
            parquet,
            python.toSeq(names),
            python.toScalaMap(dict(table.options)),
        )
        sink.addBatch(batch_id, counted._jdf)
        seen = counted._jdf.queryExecution().observedMetrics().get("written")
        rows = seen.get().getLong(0) if seen.isDefined() else 0
        return Written(int(rows), False, str(batch_id))


def absolute(spark: SparkSession, folder: str) -> str:
    """Return the folder's URI, as Spark derives it from a relative path."""
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(folder)
    return str(path.getFileSystem(java.hadoopConfiguration()).makeQualified(path).toString())


def latest(spark: SparkSession, folder: str) -> int:
    """Return the last batch in a log written by Spark, or -1 if there is none. The function works on all of Spark's
    file systems.
    """
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(java.hadoopConfiguration())
    if not system.exists(path):
        return -1
    names = [status.getPath().getName() for status in system.listStatus(path)]
    numbers = [name.partition(".")[0] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)
