"""Find values that are unusual for their device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
)
from pyspark_mqtt import options as mqtt_options
from pyspark_mqtt.errors import OptionError

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import PipelineError, required, setting
from mqtt_pipelines.transforms.stateful import Fold, Output, Value, fold, in_order

_MADE: Final = StructType(
    [
        StructField("device", StringType()),
        StructField("metric", StringType()),
        StructField("event_at", LongType()),
        StructField("value", DoubleType()),
        StructField("expected", DoubleType()),
        StructField("score", DoubleType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("log_id", StringType()),
        StructField("at", LongType()),
    ]
)
_PLACES: Final = ("device", "metric")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """``anomaly.publish:`` alerts as MQTT messages. An alert that is sent again has the same `message-id`."""

    mqtt: Mapping[str, str | int | bool] = field(
        metadata={"help": 'the options of `format("mqtt")` for writing; see pyspark-mqtt'}
    )
    topic: str = setting("alerts/{device}", "the topic, with {device} and {metric} as placeholders")

    def __post_init__(self) -> None:
        left = self.topic
        for name in _PLACES:
            left = left.replace("{" + name + "}", "")
        if not self.topic or set("{}+#\0") & set(left):
            raise ValueError("topic: expected a topic such as alerts/{device}/{metric}")
        try:
            mqtt_options.writing(self.options)
        except OptionError as error:
            raise ValueError(f"mqtt: {error}") from None

    @property
    def options(self) -> dict[str, str]:
        """Return the options for ``format("mqtt")``."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.mqtt.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """``anomaly:`` which values to check, and which of them are unusual."""

    metrics: tuple[str, ...] = required("columns of silver: numbers, or booleans as 0 and 1")
    method: Literal["ewma", "window"] = setting(
        "ewma", "ewma: older values gradually lose weight; window: only the last values count"
    )
    alpha: float = setting(0.05, "ewma: the weight of the newest value", minimum=1e-6, maximum=1)
    window: int = setting(100, "window: number of values", minimum=2, maximum=100_000)
    warmup: int = setting(30, "number of values of a device before its first alert", minimum=2)
    threshold: float = setting(4.0, "number of deviations from the mean that causes an alert")
    least: float = setting(
        1e-6, "smallest deviation to assume, since values that never change have none"
    )
    publish: Publish | None = setting(
        None, "publish the alerts; without it they are only in `tables.alerts`"
    )

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ValueError("metrics: expected at least one column of silver")


def alerts(silver: DataFrame, by: Anomaly) -> DataFrame:
    """Turn rows of silver into rows of `schemas.ALERTS`, one for each value that causes an alert.

    Each value is compared with earlier values of the same device and column, in the log's order. A value that causes an
    alert shifts the expected range only as far as the most extreme normal value would. Raises PipelineError if a metric
    is not a number.
    """
    values = []
    for name in by.metrics:
        if name not in silver.columns:
            known = ", ".join(silver.columns)
            raise PipelineError(
                f"anomaly.metrics names {name!r}, which is not a column of silver: {known}."
            )
        kind = silver.schema[name].dataType
        if not isinstance(kind, NumericType | BooleanType):
            raise PipelineError(
                f"anomaly.metrics names {name!r}, which is {kind.simpleString()}: it must be a number."
            )
        value = f.col("`" + name.replace("`", "``") + "`").cast("double")
        values.append(f.struct(f.lit(name).alias("metric"), value.alias("value")))
    long = silver.select(
        "device",
        f.unix_micros("event_time").alias("event_at"),
        "topic",
        "partition",
        "offset",
        "log_id",
        f.unix_micros("timestamp").alias("at"),
        f.explode(f.array(*values)).alias("one"),
    ).select("*", "one.metric", "one.value")
    made = fold(long.drop("one"), ["device", "metric"], Scores(by), _MADE)
    return made.select(
        "*",
        f.timestamp_micros("event_at").alias("event_time"),
        f.timestamp_micros("at").alias("timestamp"),
    ).select(*schemas.ALERTS.names)


def messages(alerts: DataFrame, topic: str) -> DataFrame:
    """Turn rows of `schemas.ALERTS` into messages with a topic, a JSON payload, and the columns that identify each
    message.
    """
    payload = f.to_json(f.struct("device", "metric", "event_time", "value", "expected", "score"))
    return alerts.select(
        _filled(topic).alias("topic"), payload.alias("payload"), "log_id", "partition", "offset", "metric"
    )  # fmt: skip


def _filled(topic: str) -> Column:
    made = f.lit(topic)
    for name in _PLACES:
        # A topic must not contain the wildcard characters of filters.
        safe = f.regexp_replace(f.col(name), "[+#\\x00]", "_")
        made = f.replace(made, f.lit("{" + name + "}"), safe)
    return made


class Scores(Fold):
    """A fold that scores one device's values in one column."""

    def __init__(self, by: Anomaly) -> None:
        self.by = by

    def begin(self) -> Any:
        """Return the initial state: the number, mean and variance of the values.

        For the method `window`, the state is a list of the latest values.
        """
        return {"count": 0, "mean": 0.0, "variance": 0.0, "last": []}

    def rows(self, key: Sequence[Any], state: Any, rows: list[Value]) -> Iterator[Output]:
        """Compare new values with earlier ones; see `Fold`."""
        for row in in_order(rows):
            value = row["value"]
            if value is None or not math.isfinite(value):
                continue
            mean = state["mean"]
            deviation = max(math.sqrt(state["variance"]), self.by.least)
            score = (value - mean) / deviation
            alert = state["count"] >= self.by.warmup and abs(score) > self.by.threshold
            if alert:
                yield (
                    key[0], key[1], row["event_at"], value, mean, score, row["topic"], row["partition"], row["offset"],
                    row["log_id"], row["at"],
                )  # fmt: skip
                edge = self.by.threshold * deviation
                value = mean + math.copysign(edge, score)
            self._add(state, value)

    def _add(self, state: Any, value: float) -> None:
        state["count"] += 1
        if self.by.method == "window":
            last = state["last"]
            last.append(value)
            del last[: -self.by.window]
            mean = math.fsum(last) / len(last)
            squares = math.fsum((one - mean) ** 2 for one in last)
            state["mean"], state["variance"] = mean, squares / len(last)
            return
        # Until there are enough values, all have equal weight.
        weight = max(self.by.alpha, 1 / state["count"])
        step = value - state["mean"]
        state["mean"] += weight * step
        state["variance"] = (1 - weight) * (state["variance"] + weight * step * step)
