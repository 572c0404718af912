"""Parquet through Spark's own file sink, which lists what is valid in ``_spark_metadata``: read such a folder with Spark.

The sink knows its batches by their numbers alone. With a new checkpoint these begin at 0 again, and Spark would take them
for written and leave their rows out without a word; so that is looked at before a query starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.settings import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LOG = "_spark_metadata"


class FilesSink:
    """A folder of Parquet files; `options` are the format's own, such as `compression`."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @property
    def name(self) -> str:
        """For messages."""
        return f"files {self.table.path}"

    def configure(self, writer: DataStreamWriter, checkpoint: str) -> DataStreamWriter:
        """Set format, folder, options and partitioning. Blocks while it looks at the folder.

        Raises MqttError if `checkpoint` is not the one that the folder was written with.
        """
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        assert spark is not None, "a writer was made in a session"
        self.check(spark, checkpoint)
        writer = writer.format("parquet").outputMode("append").options(**self.table.options)
        if self.table.partition_by:
            writer = writer.partitionBy(*self.table.partition_by)
        return writer.option("path", self.table.path)

    def check(self, spark: SparkSession, checkpoint: str) -> None:
        """Raises MqttError if the folder has batches that the checkpoint does not know."""
        written = latest(spark, f"{self.table.path}/{LOG}")
        planned = latest(spark, f"{checkpoint}/offsets")
        if written > planned:
            raise MqttError(
                f"{self.name} has batches up to {written}, and the checkpoint {checkpoint} is at "
                f"{'none' if planned < 0 else planned}: it is not the one that the folder was written with, and Spark "
                "would leave out batches that it takes for written. Restore the checkpoint; or give both new folders; or "
                "use format delta or iceberg, which go on by themselves."
            )


def latest(spark: SparkSession, folder: str) -> int:
    """The last batch of one of Spark's logs; -1 where there is none. Works wherever Spark's file systems do."""
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(java.hadoopConfiguration())
    if not system.exists(path):
        return -1
    names = [status.getPath().getName() for status in system.listStatus(path)]
    numbers = [name.partition(".")[0] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)
