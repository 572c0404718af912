"""The message sources: the broker's stream, or Parquet files with the same columns. The rows have the columns in
`schemas.RAW`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import setting

TASK_ROWS = 10_000
"""Number of messages below which one task reads several partitions. Each task takes about 10 ms and writes a file."""
GROUP = "consumergroup"
"""The option with the first part of the consumers' names, in lower case."""
_OF_STREAMS = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """``source:`` either the broker's stream (`mqtt`) or a folder of Parquet files (`files`)."""

    mqtt: Mapping[str, str | int | bool] = field(
        default_factory=dict,
        metadata={"help": 'the options of `format("mqtt")` by name; see pyspark-mqtt'},
    )
    files: str = setting(
        "", "a folder or URL of Parquet: the broker's landing folder, or the bronze table (`files`)"
    )
    max_files_per_trigger: int = setting(1000, "maximum number of new files in a batch", minimum=1)

    def __post_init__(self) -> None:
        if bool(self.mqtt) == bool(self.files):
            raise ValueError("give mqtt or files, and not both")


def options(source: Source) -> dict[str, str]:
    """Return the options for ``format("mqtt")``. By default, a pipeline begins with the earliest message, and a small
    batch is a single task.
    """
    given = {name: _text(value) for name, value in source.mqtt.items()}
    lower = {name.lower() for name in given}
    if not lower & {"startingoffsets", "startingtimestamp"}:
        given["startingOffsets"] = "earliest"
    if "minrecordsperpartition" not in lower:
        given["minRecordsPerPartition"] = str(TASK_ROWS)
    return given


def consumer(source: Source, query: str) -> str:
    """Return the name by which the broker knows a query, or an empty string if it has none."""
    group = next((_text(value) for name, value in source.mqtt.items() if name.lower() == GROUP), "")
    return f"{group}.{query}" if group else ""


def open_stream(spark: SparkSession, source: Source, query: str) -> DataFrame:
    """Return the messages as a stream for the named query.

    To the broker, each query is a separate consumer named GROUP.QUERY. If two queries shared a name, retention could
    delete messages that the slower query has not read.
    """
    if source.files:
        reader = spark.readStream.schema(schemas.RAW)
        return reader.option("maxFilesPerTrigger", source.max_files_per_trigger).parquet(
            source.files
        )
    given = options(source)
    for name in given:
        if name.lower() == GROUP:
            given[name] = consumer(source, query)
    return spark.readStream.format("mqtt").schema(schemas.RAW).options(**given).load()


def open_batch(
    spark: SparkSession, source: Source, start: str | None = None, end: str | None = None
) -> DataFrame:
    """Return a stream's messages from `start` to `end`. Each is ``earliest``, ``latest``, or JSON as for
    `startingOffsets`.

    If `start` or `end` is not given, the configuration decides.
    """
    if source.files:
        return spark.read.schema(schemas.RAW).parquet(source.files)
    given = {
        name: value for name, value in options(source).items() if name.lower() not in _OF_STREAMS
    }
    for name, edge in (("startingOffsets", start), ("endingOffsets", end)):
        if edge is not None:
            given = {k: v for k, v in given.items() if k.lower() != name.lower()} | {name: edge}
    return spark.read.format("mqtt").schema(schemas.RAW).options(**given).load()


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
