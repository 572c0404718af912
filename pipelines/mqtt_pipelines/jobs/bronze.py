"""The bronze job, which writes messages to a table exactly as received, by day."""

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.bronze import bronze

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the query ``bronze``."""
    assert conf.tables.bronze is not None
    frame = bronze(open_stream(spark, conf.source, "bronze"))
    sink = open_sink(conf.tables.bronze)
    return [Query("bronze", frame, sink, f"{conf.checkpoints}/bronze", conf.trigger)]
