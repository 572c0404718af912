"""Silver: parsed and typed messages without duplicates. No other module sets the watermark."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import PipelineError
from mqtt_pipelines.transforms.parse import (
    DEVICE,
    EVENT_TIME,
    PARSED,
    REASON,
    Device,
    EventTime,
    Silver,
    column_name,
    judge,
    payload_schema,
)

__all__ = ["Device", "EventTime", "Silver", "silver"]

_SAME = "_same"


def silver(raw: DataFrame, by: Silver) -> DataFrame:
    """Turn rows of `schemas.RAW` into rows of `schemas.silver`, and leave out dead letters and duplicates.

    Among duplicates, the first in the log is kept. A stream remembers messages up to its watermark; a batch compares
    all messages. Raises PipelineError for settings that contradict each other.
    """
    payload = payload_schema(by)
    fields = [
        f.col(PARSED).getField(one.name).alias(column_name(one.name)) for one in payload.fields
    ]
    good = judge(raw, by).where(f.col(REASON).isNull())
    typed = good.select(
        f.col(DEVICE).alias("device"),
        f.col(EVENT_TIME).alias("event_time"),
        _message_id(by.message_id).alias("message_id"),
        *fields,
        *schemas.SILVER_AFTER,
    ).withWatermark("event_time", f"{int(by.watermark * 1000)} milliseconds")
    return _once(typed, by)


def _message_id(name: str) -> Column:
    wanted = f.filter("headers", lambda header: header["key"] == name)
    return f.get(wanted, f.lit(0))["value"].cast("string")


def _once(typed: DataFrame, by: Silver) -> DataFrame:
    keys = list(by.deduplicate)
    if unknown := [key for key in keys if key not in typed.columns]:
        raise PipelineError(
            f"silver.deduplicate names {unknown[0]!r}, which is no column of silver: {', '.join(typed.columns)}."
        )
    if not keys:
        return typed
    if "message_id" in keys:
        # Null ids would count as equal, so a message without an id is identified by its place in the log. Ids are unique
        # per device.
        place = f.concat_ws("/", "log_id", "partition", "offset")
        same = f.when(f.col("message_id").isNull(), f.concat(f.lit("@"), place)).otherwise(
            f.concat(f.lit("="), "message_id")
        )
        typed = typed.withColumn(_SAME, same)
        keys = [*(key for key in keys if key not in ("message_id", "device")), "device", _SAME]
    if typed.isStreaming:
        return typed.dropDuplicatesWithinWatermark(keys).drop(_SAME)
    first = Window.partitionBy(*map(_quoted, keys)).orderBy(
        "timestamp", "log_id", "partition", "offset"
    )
    numbered = typed.withColumn("_nth", f.row_number().over(first))
    return numbered.where("_nth = 1").drop("_nth", _SAME)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
