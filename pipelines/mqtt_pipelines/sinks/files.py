"""Write Parquet files with Spark's file sink. ``_spark_metadata`` lists the valid files, so read the folder with Spark.

The sink identifies batches only by their numbers, which start at 0 again with a new checkpoint. Spark would then assume
that the batches have been written, and silently drop their rows. So the folder is checked before a query starts.
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
    """A folder of Parquet files. `options` are Spark's options for the format, such as `compression`."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @property
    def name(self) -> str:
        """Return a name for messages."""
        return f"files {self.table.path}"

    def configure(self, writer: DataStreamWriter, checkpoint: str) -> DataStreamWriter:
        """Set the format, folder, options and partitioning. Blocks while it checks the folder.

        Raises MqttError if the folder was written with a checkpoint other than `checkpoint`.
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
