"""Gold: each device's values, aggregated over windows of event time."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, NumericType

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import PipelineError, Seconds, required, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """``gold:`` which values to aggregate, and the length of a window."""

    metrics: tuple[str, ...] = required("columns of silver: numbers, or booleans as 0 and 1")
    window: Seconds = setting(60.0, "length of a window", minimum=0.001)

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ValueError("metrics: expected at least one column of silver")


def gold(silver: DataFrame, by: Gold) -> DataFrame:
    """Turn rows of silver into rows of `schemas.GOLD`: tumbling windows, aligned to 1970 in UTC. `silver` must have a
    watermark.

    Null and NaN are ignored, and a window without values has no row. A stream yields a window's row once, after the
    watermark has passed the window's end. A batch yields all windows, including those that a stream would still hold
    back. Raises PipelineError if a metric is not a number.
    """
    values = []
    for name in by.metrics:
        if name not in silver.columns:
            known = ", ".join(silver.columns)
            raise PipelineError(
                f"gold.metrics names {name!r}, which is not a column of silver: {known}."
            )
        kind = silver.schema[name].dataType
        if not isinstance(kind, NumericType | BooleanType):
            raise PipelineError(
                f"gold.metrics names {name!r}, which is {kind.simpleString()}: it must be a number."
            )
        value = f.col("`" + name.replace("`", "``") + "`").cast("double")
        values.append(f.struct(f.lit(name).alias("metric"), value.alias("value")))
    long = silver.select("device", "event_time", f.explode(f.array(*values)).alias("one"))
    value = f.col("one.value")
    counted = long.where(value.isNotNull() & ~f.isnan(value))
    window = f.window("event_time", f"{int(by.window * 1000)} milliseconds").alias("window")
    return (
        counted.groupBy("device", f.col("one.metric").alias("metric"), window)
        .agg(
            f.count(value).alias("count"),
            f.min(value).alias("min"),
            f.avg(value).alias("avg"),
            f.max(value).alias("max"),
        )
        .withColumns({"window_start": f.col("window.start"), "window_end": f.col("window.end")})
        .select(*schemas.GOLD.names)
    )
