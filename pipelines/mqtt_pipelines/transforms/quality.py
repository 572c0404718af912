"""Dead letters: messages that were not understood, with the reason, and the way back."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from mqtt_pipelines import schemas
from mqtt_pipelines.transforms.parse import DETAIL, REASON, REASONS, Silver, judge

__all__ = ["REASONS", "dead_letters", "replayed"]


def dead_letters(raw: DataFrame, by: Silver) -> DataFrame:
    """Those rows of `schemas.RAW` that `silver` leaves out, as rows of `schemas.DEAD_LETTER`. Duplicates are none."""
    bad = judge(raw, by).where(f.col(REASON).isNotNull())
    return bad.select(
        f.col(REASON).alias("reason"), f.col(DETAIL).alias("detail"), *schemas.RAW.names
    )


def replayed(dead: DataFrame) -> DataFrame:
    """Dead letters as the rows of `schemas.RAW` that they were: to be judged anew by settings that have learnt more."""
    return dead.select(*schemas.RAW.names)
