"""Bronze: messages exactly as received, plus the day on which each one arrived."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from mqtt_pipelines import schemas


def bronze(raw: DataFrame) -> DataFrame:
    """Turn each row of `schemas.RAW` into one row of `schemas.BRONZE`, without losing anything.

    The day is in the session's time zone, which the runner sets to UTC.
    """
    return raw.withColumn("ingest_date", f.to_date("timestamp")).select(*schemas.BRONZE.names)
