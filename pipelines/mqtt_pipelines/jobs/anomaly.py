"""The anomaly job, which publishes alerts to MQTT, writes them to a table, or does both."""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from mqtt_pipelines.query import Query
from mqtt_pipelines.settings import PipelineError
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sinks.ledger import KEY
from mqtt_pipelines.sinks.mqtt import MqttSink
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.anomaly import alerts, messages
from mqtt_pipelines.transforms.silver import silver
from mqtt_pipelines.transforms.stateful import prepare

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the configured queries: ``anomaly`` publishes alerts, and ``alerts`` writes the table.

    Each query reads the source itself, so that publishing does not wait for the table. Raises PipelineError if
    neither is configured.
    """
    assert conf.silver is not None
    by, payload = conf.anomaly, conf.silver
    assert by is not None
    prepare(spark)

    def found(query: str) -> DataFrame:
        return alerts(silver(open_stream(spark, conf.source, query), payload), by)

    queries = []
    if by.publish is not None:
        sink = MqttSink(by.publish.options, (*KEY, "metric"), f"{conf.name}-alert")
        frame = messages(found("anomaly"), by.publish.topic)
        queries.append(Query("anomaly", frame, sink, f"{conf.checkpoints}/anomaly", conf.trigger))
    if conf.tables.alerts is not None:
        table = open_sink(conf.tables.alerts)
        frame = found("alerts")
        queries.append(Query("alerts", frame, table, f"{conf.checkpoints}/alerts", conf.trigger))
    if not queries:
        raise PipelineError(
            "job anomaly has nowhere to put alerts: give anomaly.publish or tables.alerts."
        )
    return queries
