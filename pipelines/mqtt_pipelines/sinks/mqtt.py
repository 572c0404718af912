"""Publish rows to MQTT at least once. Exactly once is impossible, because MQTT has no transactions.

If a batch is repeated, its messages are published again. Each message keeps its user property ``message-id``, so
receivers can recognize duplicates.
"""

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
    """Publishes batches. `options` are the write options of ``format("mqtt")``. The constructor checks them.

    Rows have a column `payload` (or `value`) and, unless the option `topic` is set, a column `topic`. The message id
    consists of `prefix` and the columns in `key`. Use `prefix` if several messages are derived from one, or if several
    pipelines publish to the same topics. A null in the key is an error.
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
        """Return a name to use in messages."""
        return f"mqtt {self.address}"

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Publish a batch. This call blocks until all messages are acknowledged. Raises Spark's exceptions."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        counted = Observation()
        messages = self.messages(batch).observe(counted, f.count(f.lit(1)).alias("rows"))
        messages.write.format("mqtt").mode("append").options(**self.options).save()
        return Written(int(counted.get["rows"]))

    def messages(self, batch: DataFrame) -> DataFrame:
        """Return the rows with a `message_id` added. Key columns that are not published are removed."""
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
