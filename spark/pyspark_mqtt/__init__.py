"""An MQTT data source for Apache Spark: ``format("mqtt")`` for read, readStream, write and writeStream."""

from pyspark_mqtt.errors import DataLossError, MqttError, OptionError, UnreachableError
from pyspark_mqtt.progress import SourceProgress, source_progress
from pyspark_mqtt.source import MqttDataSource

DefaultSource = MqttDataSource

__all__ = [
    "DataLossError",
    "DefaultSource",
    "MqttDataSource",
    "MqttError",
    "OptionError",
    "SourceProgress",
    "UnreachableError",
    "source_progress",
]
