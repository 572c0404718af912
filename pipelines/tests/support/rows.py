"""Messages as a source returns them, and queries that read them as one batch or as a stream of given batches."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from mqtt_pipelines import schemas
from pyspark.sql import DataFrame, Row, SparkSession

START = datetime(2026, 11, 20, 12, 0, 0)
LOG = "a" * 32
Message = dict[str, Any]
Transform = Callable[[DataFrame], DataFrame]


@dataclass
class Log:
    """Creates messages with increasing offsets in one partition of one log."""

    partition: int = 0
    log_id: str = LOG
    offsets: Iterator[int] = field(default_factory=count)

    def message(
        self,
        payload: bytes | str | dict[str, Any] | None,
        second: float = 0.0,
        topic: str = "plant/d1/state",
        message_id: str | None = None,
        **more: Any,
    ) -> Message:
        """Return a message that the broker received `second` seconds after START."""
        if isinstance(payload, dict):
            payload = json.dumps(payload)
        data = payload.encode() if isinstance(payload, str) else payload
        pairs = [] if message_id is None else [("message-id", bytearray(message_id.encode()))]
        return {
            "topic": topic,
            "payload": None if data is None else bytearray(data),
            "qos": 1,
            "retain": False,
            "partition": self.partition,
            "offset": next(self.offsets),
            "timestamp": START + timedelta(seconds=second),
            "client_id": "client",
            "content_type": None,
            "response_topic": None,
            "correlation_data": None,
            "headers": pairs,
            "log_id": self.log_id,
            **more,
        }


def at(second: float) -> datetime:
    """Return the time `second` seconds after START."""
    return START + timedelta(seconds=second)


def epoch_ms(second: float) -> int:
    """Return the same time as `at`, in milliseconds, as a device would report it."""
    return int(at(second).replace(tzinfo=UTC).timestamp() * 1000)


def frame(spark: SparkSession, messages: Sequence[Message]) -> DataFrame:
    """Return the messages as a batch."""
    names = schemas.RAW.names
    return spark.createDataFrame([tuple(m[n] for n in names) for m in messages], schemas.RAW)


def batch(spark: SparkSession, messages: Sequence[Message], transform: Transform) -> list[Row]:
    """Apply a transform to a batch of messages. Return the resulting rows, sorted."""
    return ordered(transform(frame(spark, messages)).collect())


class Stream:
    """A query over a folder that reads one file per batch. It can be run repeatedly, and continues where it stopped."""

    def __init__(self, spark: SparkSession, folder: Path, transform: Transform) -> None:
        self.spark = spark
        self.folder = folder
        self.transform = transform
        self.files = count()
        self.progress: list[dict[str, Any]] = []
        """The progress reports of all batches so far."""

    def add(self, *batches: Sequence[Message]) -> "Stream":
        """Add the messages of each given batch."""
        for messages in batches:
            part = self.folder / f"part-{next(self.files)}"
            frame(self.spark, messages).coalesce(1).write.parquet(str(part))
            (self.folder / "in").mkdir(exist_ok=True)
            [file] = part.glob("*.parquet")
            file.rename(self.folder / "in" / f"{part.name}.parquet")
        return self

    def run(self) -> list[Row]:
        """Read the available files (AvailableNow). Return all rows that the query has produced so far, sorted."""
        source = self.spark.readStream.schema(schemas.RAW).option("maxFilesPerTrigger", 1)
        given = self.transform(source.parquet(str(self.folder / "in")))
        out, schema = str(self.folder / "out"), given.schema
        query = (
            given.writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(out)
        )
        query.awaitTermination()
        self.progress += [json.loads(p.json) for p in query.recentProgress]
        return ordered(self.spark.read.schema(schema).parquet(out).collect())

    def counted(self, name: str) -> int:
        """Return the sum, over all batches, of a state metric such as ``numRowsDroppedByWatermark`` or a custom one."""
        return sum(
            state.get(name, state.get("customMetrics", {}).get(name, 0))
            for progress in self.progress
            for state in progress["stateOperators"]
        )


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, sorted by their text."""
    return sorted(rows, key=str)
