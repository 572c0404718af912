"""Silver: parsed and typed messages without duplicates. This is the only module that sets the watermark."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import PipelineError
from mqtt_pipelines.sinks.ledger import KEY
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
from mqtt_pipelines.transforms.quality import columns as dead_letter_columns

__all__ = ["Device", "EventTime", "Silver", "both", "silver"]

_SAME = "_same"


def silver(raw: DataFrame, by: Silver) -> DataFrame:
    """Turn rows of `schemas.RAW` into rows of `schemas.silver`, leaving out dead letters and duplicates.

    Of several duplicates, the first one in the log is kept. A stream remembers messages up to its watermark. A batch
    compares all messages. Raises PipelineError for settings that contradict each other.
    """
    good = judge(raw, by).where(f.col(REASON).isNull())
    typed = good.select(*_columns(by)).withWatermark("event_time", _delay(by))
    return _once(typed, by)


def both(raw: DataFrame, by: Silver) -> DataFrame:
    """Turn each row of the stream `raw` into a row with two structs, `silver` and `dead`, one of which is null.

    `silver` has the columns of `schemas.silver`, and `dead` has those of `schemas.DEAD_LETTER`. Duplicates are left
    out. State is kept only for messages that can have duplicates. The source is read and parsed once.
    """
    # Compute every column. If a column came directly from the source, the two halves below would have different plans,
    # and Spark would run both.
    good = f.col(REASON).isNull()
    own = _columns(by)
    judged = judge(raw, by).select(
        f.when(good, f.struct(*own)).alias("silver"),
        f.when(~good, f.struct(*dead_letter_columns())).alias("dead"),
    )
    keys = _keys(by)
    if not keys:
        return judged
    asked = f.col("silver").isNotNull()
    if "message_id" in keys:
        asked = asked & f.col("silver.message_id").isNotNull()
    named = {f"_key{n}": f.col("silver").getField(key) for n, key in enumerate(keys)}
    if "message_id" in keys:
        # Other rows go to any task.
        place = [f.col(half).getField(key) for half in ("silver", "dead") for key in KEY]
        name = f"_key{keys.index('message_id')}"
        anywhere = f.concat(f.lit("@"), f.xxhash64(*place).cast("string"))
        named[name] = f.when(asked, named[name]).otherwise(anywhere)
    keyed = judged.withColumns({**named, "_time": f.col("silver.event_time"), "_asked": asked})
    # Both halves below share this shuffle, as long as they use the same columns of it. Otherwise, Spark would move a
    # different filter to the source in each half. It cannot move a filter past a column that depends on the task.
    shared = keyed.repartition(*named).withColumn("_task", f.spark_partition_id())
    remembered = (
        shared.where(f.col("_asked") & (f.col("_task") >= 0))
        .withWatermark("_time", _delay(by))
        .dropDuplicatesWithinWatermark(list(named))
    )
    others = shared.where(~f.col("_asked") & ((f.col("_task") >= 0) | f.col("_time").isNull()))
    return remembered.select("silver", "dead").union(others.select("silver", "dead"))


def _columns(by: Silver) -> list[Column]:
    """Return the columns of `schemas.silver`, computed from the columns that `judge` adds."""
    payload = payload_schema(by)
    fields = [
        f.col(PARSED).getField(one.name).alias(column_name(one.name)) for one in payload.fields
    ]
    return [
        f.col(DEVICE).alias("device"),
        f.col(EVENT_TIME).alias("event_time"),
        _message_id(by.message_id).alias("message_id"),
        *fields,
        *(f.col(name) for name in schemas.SILVER_AFTER),
    ]


def _delay(by: Silver) -> str:
    return f"{int(by.watermark * 1000)} milliseconds"


def _keys(by: Silver) -> list[str]:
    """Return the columns in which duplicates are equal. Raises PipelineError for a column that silver does not have."""
    fields = [column_name(name) for name in payload_schema(by).names]
    columns = [*schemas.SILVER_BEFORE, *fields, *schemas.SILVER_AFTER]
    keys = list(dict.fromkeys(by.deduplicate))
    if unknown := [key for key in keys if key not in columns]:
        raise PipelineError(
            f"silver.deduplicate names {unknown[0]!r}, which is not a column of silver: {', '.join(columns)}."
        )
    if "message_id" in keys and "device" not in keys:
        keys.append("device")  # Ids are unique per device.
    return keys


def _message_id(name: str) -> Column:
    wanted = f.filter("headers", lambda header: header["key"] == name)
    return f.get(wanted, f.lit(0))["value"].cast("string")


def _once(typed: DataFrame, by: Silver) -> DataFrame:
    keys = _keys(by)
    if not keys:
        return typed
    if "message_id" in keys:
        # Null ids would count as equal, so a message without an id is identified by its place in the log.
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
