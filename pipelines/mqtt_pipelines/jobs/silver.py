"""The silver job, which writes parsed messages to one table and all other messages to another.

Each message in the log ends up in one of these tables, unless it is a duplicate. A single query reads and parses each
message once.
"""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sinks.fork import Fork, branch
from mqtt_pipelines.sources import open_stream
from mqtt_pipelines.transforms.quality import explained
from mqtt_pipelines.transforms.silver import both

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf") -> list[Query]:
    """Return the query ``silver``, which writes both tables."""
    by, tables = conf.silver, conf.tables
    assert by is not None
    assert tables.silver is not None
    assert tables.dead_letter is not None
    understood = by

    def good(rows: DataFrame) -> DataFrame:
        return rows.where("silver is not null").select("silver.*")

    def bad(rows: DataFrame) -> DataFrame:
        return explained(rows.where("dead is not null").select("dead.*"), understood)

    sink = Fork(
        [
            branch("silver", open_sink(tables.silver), good),
            branch("dead_letter", open_sink(tables.dead_letter), bad, "dead is not null"),
        ]
    )
    frame = both(open_stream(spark, conf.source, "silver"), by)
    return [Query("silver", frame, sink, f"{conf.checkpoints}/silver", conf.trigger)]
