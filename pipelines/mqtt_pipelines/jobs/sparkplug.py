"""The Sparkplug B job, which writes metrics to one table. Another table receives messages that cannot be parsed."""

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sinks.fork import Fork, branch
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.sparkplug import both, dead_letters_of, metrics, metrics_of
from mqtt_pipelines.transforms.stateful import prepare

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the ``metrics`` query, which also writes the dead letters if a table is configured for them."""
    by, tables = conf.sparkplug, conf.tables
    assert by is not None
    assert tables.metrics is not None
    prepare(spark)
    raw, sink = open_stream(spark, conf.source, "metrics"), open_sink(tables.metrics)
    checkpoint = f"{conf.checkpoints}/metrics"
    if tables.dead_letter is None:
        return [Query("metrics", metrics(raw, by), sink, checkpoint, conf.trigger)]
    letters = open_sink(tables.dead_letter)
    fork = Fork(
        [
            branch("metrics", sink, metrics_of),
            branch("sparkplug_dead_letter", letters, dead_letters_of, "reason is not null"),
        ]
    )
    return [Query("metrics", both(raw, by), fork, checkpoint, conf.trigger)]
