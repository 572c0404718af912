"""The batch reader, and the parts that it shares with the stream reader."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_mqtt import arrow
from pyspark_mqtt.client import Client
from pyspark_mqtt.errors import DataLossError, OptionError
from pyspark_mqtt.offsets import (
    Log,
    Offsets,
    Range,
    at_time,
    bounded,
    combined,
    name_each,
    ranges,
    resolve,
    split,
)
from pyspark_mqtt.options import Options
from pyspark_mqtt.portable import Portable
from pyspark_mqtt.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_mqtt")


class MqttRange(InputPartition):
    """The input of one task: ranges of offsets, and the id of the log that contains them."""

    def __init__(self, log_id: str, wanted: Sequence[Range]) -> None:
        super().__init__(None)
        self.log_id = log_id
        self.wanted = tuple(wanted)

    def __repr__(self) -> str:
        return f"MqttRange({self.log_id}, {', '.join(map(str, self.wanted))})"


class Source:
    """A stream as described by the options: its start and end, the tasks for a range, and a task's rows."""

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.options = options
        self.columns = columns
        self.client = Client(options)

    @property
    def fail(self) -> bool:
        """Return whether missing offsets end the query."""
        return self.options.flag("failOnDataLoss")

    def edge(self, kind: str, default: str) -> tuple[Offsets, Log]:
        """Return the offsets set by the ``starting...`` or ``ending...`` options. If none is set, use ``default``."""
        name = f"{kind}Offsets"
        milliseconds = self.options.limit(f"{kind}Timestamp")
        if milliseconds is not None:
            log_now, found = self.client.at_time(milliseconds)
            strategy = self.options.text("startingOffsetsByTimestampStrategy")
            strategy = strategy if kind == "starting" else "latest"
            return at_time(found, log_now, f"{kind}Timestamp", strategy), log_now
        times = self.options.times(f"{kind}OffsetsByTimestamp")
        if times is not None:
            return self._at_times(kind, times)
        log_now = self.client.log()
        chosen = resolve(self.options.offsets(name) or default, log_now, name)
        warnings: list[str] = []
        chosen = bounded(chosen, log_now, name, self.fail, warnings)
        for warning in warnings:
            log.warning("%s", warning)
        return chosen, log_now

    def _at_times(self, kind: str, times: Mapping[int, int]) -> tuple[Offsets, Log]:
        """Return the first offset at or after each partition's own time, and the log's contents."""
        name = f"{kind}OffsetsByTimestamp"
        log_now = self.client.log()
        name_each(times, log_now, name)
        found: dict[int, int | None] = {}
        for milliseconds in sorted(set(times.values())):
            log_then, at = self.client.at_time(milliseconds)
            if log_then.log_id != log_now.log_id:
                raise DataLossError(
                    f"Stream {log_now.stream} was created anew while this query was planned: run it again."
                )
            found |= {p: at[p] for p, time in times.items() if time == milliseconds}
        # The last answer: offsets that were found are never beyond its end.
        strategy = self.options.text("startingOffsetsByTimestampStrategy")
        strategy = strategy if kind == "starting" else "latest"
        return at_time(dict(sorted(found.items())), log_then, name, strategy), log_then

    def tasks(self, start: Offsets, end: Offsets) -> list[MqttRange]:
        """Return the tasks that read the records between two offsets."""
        pieces = split(
            ranges(start, end),
            self.options.limit("minPartitions"),
            self.options.limit("maxRecordsPerPartition"),
        )
        tasks = combined(
            pieces,
            self.options.limit("minPartitions"),
            self.options.number("minRecordsPerPartition"),
        )
        return [MqttRange(end.log_id, task) for task in tasks]

    def rows(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. This runs on an executor. If ``failOnDataLoss`` is false, missing rows are skipped."""
        if not isinstance(task, MqttRange):
            return  # Spark invents a partition if a batch has none.
        try:
            for wanted in task.wanted:
                yield from self._range(wanted, task.log_id)
        finally:
            self.client.close()

    def _range(self, wanted: Range, log_id: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of one partition."""
        pattern = self.options.text("subscribePattern")
        columns = arrow.wire_columns(self.columns, bool(pattern))
        blocks = self.client.blocks(wanted, log_id, columns, self.options.filters("topics"))
        rows = self.options.number("batchRows")
        return arrow.batches(blocks, self.columns, wanted, rows, log_id, pattern)


class MqttBatchReader(Portable, DataSourceReader):
    """The reader of ``spark.read.format("mqtt")``: it reads from startingOffsets (default: earliest) to endingOffsets
    (default: latest).

    ``latest`` is the end of the log when Spark plans the query.
    """

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.source = Source(options, columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises MqttError if the stream cannot be reached, or does not have the requested
        offsets."""
        try:
            start, log_now = self.source.edge("starting", "earliest")
            end, log_then = self.source.edge("ending", "latest")
        finally:
            self.source.client.close()
        if log_now.log_id != log_then.log_id:
            raise DataLossError(
                f"Stream {log_now.stream} was created anew while this query was planned: run it again."
            )
        for partition, last in end.next.items():
            if start.next[partition] > last and "endingoffsets" in self.source.options.given:
                raise OptionError(
                    f"Option endingOffsets of partition {partition} is {last}, before its start, "
                    f"{start.next[partition]}."
                )
        return self.source.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        return self.source.rows(partition)
