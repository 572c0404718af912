"""The gold job, which aggregates each device's values by window and writes them to a table."""

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.gold import gold
from mqtt_pipelines.transforms.silver import silver

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the query ``gold``. It parses messages like silver, but reads the source itself."""
    assert conf.silver is not None
    assert conf.gold is not None
    assert conf.tables.gold is not None
    frame = gold(silver(open_stream(spark, conf.source, "gold"), conf.silver), conf.gold)
    sink = open_sink(conf.tables.gold)
    return [Query("gold", frame, sink, f"{conf.checkpoints}/gold", conf.trigger)]
