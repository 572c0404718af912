"""Dead letters: messages that could not be parsed, the reasons, and how to parse them again."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from mqtt_pipelines import schemas
from mqtt_pipelines.transforms.mistakes import mistakes
from mqtt_pipelines.transforms.parse import (
    DETAIL,
    REASON,
    REASONS,
    Silver,
    judge,
    payload_schema,
)

__all__ = ["REASONS", "dead_letters", "explained", "replayed"]


def dead_letters(raw: DataFrame, by: Silver) -> DataFrame:
    """Turn the rows of `schemas.RAW` that `silver` rejects into rows of `schemas.DEAD_LETTER`. Duplicates are not dead
    letters.
    """
    bad = judge(raw, by).where(f.col(REASON).isNotNull())
    return explained(bad.select(*columns()), by)


def columns() -> list[Column]:
    """Return the columns of `schemas.DEAD_LETTER`, computed from the columns that `judge` adds."""
    raw = [f.col(name) for name in schemas.RAW.names]
    return [f.col(REASON).alias("reason"), f.col(DETAIL).alias("detail"), *raw]


def explained(dead: DataFrame, by: Silver) -> DataFrame:
    """Complete the details in rows of `schemas.DEAD_LETTER`. For a field of the wrong type, add what was expected and
    what was found. Python does this row by row, so pass only dead letters.
    """
    schema, rounding = payload_schema(by), by.rounding

    @f.udf("string", useArrow=False)
    def explain(payload: bytes | None) -> str | None:
        return None if payload is None else mistakes(bytes(payload), schema, rounding) or None

    wrong = f.when(f.col("reason") == "wrong_type", f.col("payload"))
    return dead.withColumn("detail", f.coalesce(explain(wrong), "detail"))


def replayed(dead: DataFrame) -> DataFrame:
    """Turn dead letters back into rows of `schemas.RAW`, so that they can be parsed again with improved settings."""
    return dead.select(*schemas.RAW.names)
