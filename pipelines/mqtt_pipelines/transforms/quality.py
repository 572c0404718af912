"""Dead letters: messages that could not be parsed, with the reason, and how to parse them again."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from mqtt_pipelines import schemas
from mqtt_pipelines.transforms.parse import DETAIL, REASON, REASONS, Silver, judge

__all__ = ["REASONS", "dead_letters", "replayed"]


def dead_letters(raw: DataFrame, by: Silver) -> DataFrame:
    """Turn the rows of `schemas.RAW` that `silver` omits into rows of `schemas.DEAD_LETTER`. Duplicates are not dead
    letters."""
    bad = judge(raw, by).where(f.col(REASON).isNotNull())
    return bad.select(
        f.col(REASON).alias("reason"), f.col(DETAIL).alias("detail"), *schemas.RAW.names
    )


def replayed(dead: DataFrame) -> DataFrame:
    """Turn dead letters back into rows of `schemas.RAW`, to be parsed with improved settings."""
    return dead.select(*schemas.RAW.names)
