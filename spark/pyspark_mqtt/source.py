"""``format("mqtt")``: Spark finds it by the name of the package and the class DefaultSource."""

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
    """Reads a broker's durable stream by offset; writes to any MQTT broker. See the README for the options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mqtt"

    def schema(self) -> StructType:
        """The columns, unless the query names its own. Checks all options: it is what Spark calls first."""
        return schema.schema(options.reading(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """``spark.read``."""
        chosen = options.reading(self.options)
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name.lower() in chosen.given:
                raise OptionError(
                    f"Option {name} is for readStream; a batch ends at endingOffsets."
                )
        return MqttBatchReader(chosen, _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """``spark.readStream``."""
        chosen = options.reading(self.options)
        for name in ("endingOffsets", "endingTimestamp"):
            if name.lower() in chosen.given:
                raise OptionError(f"Option {name} is for spark.read; a stream has no end.")
        return MqttStreamReader(chosen, _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """``df.write``."""
        if overwrite:
            raise OptionError('MQTT has nothing to overwrite: use .mode("append").')
        return MqttBatchWriter(_writing(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """``df.writeStream``."""
        return MqttStreamWriter(_writing(self.options, schema))


def _columns(given: StructType) -> tuple[schema.Column, ...]:
    return schema.columns(given)


def _writing(given: Mapping[str, str], columns: StructType) -> options.Options:
    chosen = options.writing(given)
    schema.check_written(columns, chosen)
    return chosen
