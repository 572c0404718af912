"""Silver: messages that were understood, typed, each once. The watermark is set here, and nowhere else."""

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
    """Rows of `schemas.RAW` as rows of `schemas.silver`: those without a reason to be dead letters, each once.

    Of messages that are the same the first in the log stays. A stream remembers what came as long as its watermark says;
    a batch compares all with all. Raises PipelineError for settings that do not fit together.
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
        # Nulls would be the same: who has no id is known by where it stands in the log. Ids are a device's own.
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
