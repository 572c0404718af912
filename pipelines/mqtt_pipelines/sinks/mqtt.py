"""Rows back to MQTT. At least once, as MQTT has no transactions: a batch that is run again is published again, each
message with the same user property ``message-id``, by which receivers know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark_mqtt import options as mqtt_options
from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.sinks import Written
from mqtt_pipelines.sinks.ledger import KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class MqttSink:
    """Publishes batches: `options` are those of ``format("mqtt")`` for writing, checked at once.

    Rows have `payload` (or `value`) and, unless the option `topic` is given, `topic`. The message id is made of the
    columns `key`, and `prefix` before it where one message makes several or several pipelines publish to one place. A row
    whose key has a null has no such name: it is an error.
    """

    def __init__(
        self, options: Mapping[str, str], key: Sequence[str] = KEY, prefix: str = ""
    ) -> None:
        self.options = dict(options)
        self.key = tuple(key)
        self.prefix = prefix
        self.address = mqtt_options.writing(self.options).url("brokerUrl").netloc

    @property
    def name(self) -> str:
        """For messages."""
        return f"mqtt {self.address}"

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Publish a batch; blocks until all of it is acknowledged. Raises as Spark reports it."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        counted = Observation()
        messages = self.messages(batch).observe(counted, f.count(f.lit(1)).alias("rows"))
        messages.write.format("mqtt").mode("append").options(**self.options).save()
        return Written(int(counted.get["rows"]))

    def messages(self, batch: DataFrame) -> DataFrame:
        """The rows with their `message_id`, and without what is not published of the key."""
        from pyspark.sql import functions as f

        missing = [name for name in self.key if name not in batch.columns]
        if missing:
            raise MqttError(
                f"{self.name}: the message id is made of {', '.join(self.key)}, and the rows have no "
                f"{', '.join(missing)}: keep them, or name the columns that tell rows apart as `key`."
            )
        words = [f.lit(self.prefix)] if self.prefix else []
        parts = [f.col(name).cast("string") for name in self.key]
        nameless = (
            f"{self.name}: a row's {', '.join(self.key)} is null, so that it has no message id"
        )
        made = f.concat_ws("-", *words, *parts)
        for part in parts:
            made = f.when(part.isNull(), f.raise_error(nameless)).otherwise(made)
        unsent = ({*KEY, *self.key} - {"topic", "payload", "value"}) | {"message_id"}
        kept = [name for name in batch.columns if name not in unsent]
        return batch.select(*kept, made.alias("message_id"))
