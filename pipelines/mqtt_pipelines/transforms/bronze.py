"""Bronze: messages as they came, with the day they came on."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from mqtt_pipelines import schemas


def bronze(raw: DataFrame) -> DataFrame:
    """Rows of `schemas.RAW` as rows of `schemas.BRONZE`: as many, and nothing of them is lost.

    The day is that of the session's time zone, which the runner sets to UTC.
    """
    return raw.withColumn("ingest_date", f.to_date("timestamp")).select(*schemas.BRONZE.names)
