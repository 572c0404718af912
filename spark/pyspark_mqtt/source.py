"""Register ``format("mqtt")``. Spark finds it through the package's name and the class DefaultSource."""

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_mqtt import options, schema
from pyspark_mqtt.errors import OptionError
from pyspark_mqtt.portable import Portable
from pyspark_mqtt.reader import MqttBatchReader
from pyspark_mqtt.stream import MqttStreamReader
from pyspark_mqtt.writer import MqttBatchWriter, MqttStreamWriter


class MqttDataSource(Portable, DataSource):
    """Reads a broker's durable stream by offset, and writes to any MQTT broker. The README lists the options."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mqtt"

    def schema(self) -> StructType:
        """Return the default columns. Spark calls this method first, so the method checks all options."""
        return schema.schema(options.reading(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        chosen = options.reading(self.options)
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name.lower() in chosen.given:
                raise OptionError(
                    f"Option {name} is for readStream; a batch ends at endingOffsets."
                )
        return MqttBatchReader(chosen, _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for ``spark.readStream``."""
        chosen = options.reading(self.options)
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in chosen.given:
                raise OptionError(f"Option {name} is for spark.read; a stream has no end.")
        return MqttStreamReader(chosen, _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for ``df.write``."""
        if overwrite:
            raise OptionError('MQTT has nothing to overwrite: use .mode("append").')
        return MqttBatchWriter(_writing(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer for ``df.writeStream``."""
        return MqttStreamWriter(_writing(self.options, schema))


def _columns(given: StructType) -> tuple[schema.Column, ...]:
    return schema.columns(given)


def _writing(given: Mapping[str, str], columns: StructType) -> options.Options:
    chosen = options.writing(given)
    schema.check_written(columns, chosen)
    return chosen
