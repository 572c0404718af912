"""The presence job, which records the periods in which each device was online."""

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.presence import presence
from mqtt_pipelines.transforms.stateful import prepare

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the query ``presence``."""
    assert conf.presence is not None
    assert conf.tables.presence is not None
    prepare(spark)
    frame = presence(open_stream(spark, conf.source, "presence"), conf.presence)
    sink = open_sink(conf.tables.presence)
    return [Query("presence", frame, sink, f"{conf.checkpoints}/presence", conf.trigger)]
