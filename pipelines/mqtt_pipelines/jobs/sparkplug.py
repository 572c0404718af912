"""The Sparkplug B job, which writes metrics to one table, and messages that cannot be parsed to another table."""

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.sparkplug import dead_letters, metrics
from mqtt_pipelines.transforms.stateful import prepare

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the query ``metrics``, and ``sparkplug_dead_letter`` if it has a table."""
    by, tables = conf.sparkplug, conf.tables
    assert by is not None
    assert tables.metrics is not None
    prepare(spark)
    frame = metrics(open_stream(spark, conf.source, "metrics"), by)
    sink = open_sink(tables.metrics)
    queries = [Query("metrics", frame, sink, f"{conf.checkpoints}/metrics", conf.trigger)]
    if tables.dead_letter is not None:
        name = "sparkplug_dead_letter"
        frame = dead_letters(open_stream(spark, conf.source, name), by)
        sink = open_sink(tables.dead_letter)
        queries.append(Query(name, frame, sink, f"{conf.checkpoints}/{name}", conf.trigger))
    return queries
