"""Where messages come from: the broker's stream, or Parquet with the same columns. Rows are `schemas.RAW`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import setting

_OF_STREAMS = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """``source:`` the broker's stream (`mqtt`) or a folder of Parquet files (`files`); one of them."""

    mqtt: Mapping[str, str | int | bool] = field(
        default_factory=dict,
        metadata={"help": 'the options of `format("mqtt")` by their names; see pyspark-mqtt'},
    )
    files: str = setting(
        "", "a folder or URL of Parquet: the broker's landing folder, or the bronze table (`files`)"
    )
    max_files_per_trigger: int = setting(1000, "new files of a batch at most", minimum=1)

    def __post_init__(self) -> None:
        if bool(self.mqtt) == bool(self.files):
            raise ValueError("give mqtt or files, and not both")


def options(source: Source) -> dict[str, str]:
    """The options of ``format("mqtt")``. A pipeline begins at the earliest message unless it is told otherwise."""
    given = {name: _text(value) for name, value in source.mqtt.items()}
    lower = {name.lower() for name in given}
    if not lower & {"startingoffsets", "startingtimestamp"}:
        given["startingOffsets"] = "earliest"
    return given


def open_stream(spark: SparkSession, source: Source, query: str) -> DataFrame:
    """The messages as a stream for a query of this name.

    To the broker each query is a consumer of its own, GROUP.QUERY: of two that reported under one name the faster one
    would let retention delete what the other has yet to read.
    """
    if source.files:
        reader = spark.readStream.schema(schemas.RAW)
        return reader.option("maxFilesPerTrigger", source.max_files_per_trigger).parquet(
            source.files
        )
    given = options(source)
    for name in given:
        if name.lower() == "consumergroup":
            given[name] = f"{given[name]}.{query}"
    return spark.readStream.format("mqtt").schema(schemas.RAW).options(**given).load()


def open_batch(
    spark: SparkSession, source: Source, start: str | None = None, end: str | None = None
) -> DataFrame:
    """The messages, of a stream from `start` to `end`: ``earliest``, ``latest``, or JSON as `startingOffsets` takes it.

    What the configuration says of both edges holds for those that are not given.
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
