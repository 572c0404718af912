"""The silver job, which writes parsed messages to one table, and all other messages to another table.

Each row of the log is in one of these tables, or is a duplicate.
"""

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mqtt_pipelines.jobs import dead_letter
from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.silver import silver

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the queries ``silver`` and ``dead_letter``."""
    assert conf.silver is not None
    assert conf.tables.silver is not None
    frame = silver(open_stream(spark, conf.source, "silver"), conf.silver)
    sink = open_sink(conf.tables.silver)
    query = Query("silver", frame, sink, f"{conf.checkpoints}/silver", conf.trigger)
    return [query, *dead_letter.build(spark, conf)]
