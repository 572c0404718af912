"""The dead letter job, which fills a table with the messages that cannot be parsed and the reasons."""

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.quality import dead_letters

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the query ``dead_letter``."""
    assert conf.silver is not None
    assert conf.tables.dead_letter is not None
    frame = dead_letters(open_stream(spark, conf.source, "dead_letter"), conf.silver)
    sink = open_sink(conf.tables.dead_letter)
    return [Query("dead_letter", frame, sink, f"{conf.checkpoints}/dead_letter", conf.trigger)]
