"""The stream reader. It uses the log's offsets, so its only state is the checkpoint. A repeated batch has the same
rows."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_mqtt.errors import DataLossError, MqttError
from pyspark_mqtt.offsets import Json, Log, Offsets, advance, check, waiting
from pyspark_mqtt.options import Options
from pyspark_mqtt.portable import Portable
from pyspark_mqtt.reader import Source
from pyspark_mqtt.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_mqtt")
P = ParamSpec("P")
T = TypeVar("T")


def _in_one_line(method: Callable[P, T]) -> Callable[P, T]:
    """Make Spark report a MqttError without a traceback, by setting an environment variable in this reader's own
    process.

    A MqttError ends the query and the process. Other exceptions keep their traceback.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except MqttError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return call


class MqttStreamReader(Portable, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of ``spark.readStream.format("mqtt")``. It runs on the driver; copies of it run ``read`` on
    executors.

    The methods raise MqttError, and may block while the broker does not respond (``fetchOffset.numRetries``).
    """

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.source = Source(options, columns)
        self.clock = time.monotonic
        self._target: Log | None = None
        """The log's contents at which the query ends, if its trigger is AvailableNow; else None."""
        self._seen: Log | None = None
        self._last_batch = self.clock()
        self._reported: Offsets | None = None

    @_in_one_line
    def initialOffset(self) -> Json:
        """Return where a new query begins: startingOffsets, by default latest."""
        return self.source.edge("starting", "latest")[0].json()

    @_in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the log's current end, even if more messages arrive."""
        self._target = self.source.client.log()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limits of a batch, as set by the options."""
        options = self.source.options
        least, most = options.limit("minOffsetsPerTrigger"), options.limit("maxOffsetsPerTrigger")
        if least is not None:
            return ReadMinRows(least)
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @_in_one_line
    def latestOffset(self, start: Mapping[str, str | int], limit: ReadLimit) -> Json:
        """Return the end of the batch that begins at ``start``. The end respects the limit, includes only durable
        records, and is never before ``start``.

        Raises DataLossError if the log was replaced, or no longer has the next records.
        """
        given = Offsets.of(start)
        found = self.source.client.log() if self._target is None else self._target
        self._seen = found
        self._report(given)
        warnings: list[str] = []
        begin = check(given, found, self.source.fail, warnings)
        for warning in warnings:
            log.warning("%s", warning)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if isinstance(limit, ReadMinRows):
            most = self.source.options.limit("maxOffsetsPerTrigger")
            waited = (self.clock() - self._last_batch) * 1000
            if (
                self._target is None
                and waiting(begin, found.latest) < limit.min_rows
                and waited < self.source.options.number("maxTriggerDelay")
            ):
                return dict(start)
        end = advance(begin, found.latest, most)
        if end == given:
            return dict(start)
        self._last_batch = self.clock()
        return end.json()

    def reportLatestOffset(self) -> Json | None:
        """Return the log's end, from which Spark computes the query's lag."""
        return None if self._seen is None else Offsets(self._seen.log_id, self._seen.latest).json()

    @_in_one_line
    def partitions(
        self, start: Mapping[str, str | int], end: Mapping[str, str | int]
    ) -> Sequence[InputPartition]:
        """Return the tasks of a batch. An empty batch has no tasks."""
        first, last = Offsets.of(start), Offsets.of(end)
        if first.log_id != last.log_id or any(p not in first.next for p in last.next):
            # latestOffset switched to another log, which failOnDataLoss=false allows.
            if self.source.fail:
                raise DataLossError(
                    f"The checkpoint's last batch goes from log {first.log_id} to {last.log_id}: set "
                    "failOnDataLoss=false to take it as it is, or use a new checkpointLocation."
                )
            found = self.source.client.log()
            known = found.earliest if found.log_id == last.log_id else last.next
            first = Offsets(last.log_id, {p: known.get(p, o) for p, o in last.next.items()})
        return self.source.tasks(first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. This runs on an executor."""
        return self.source.rows(partition)

    def commit(self, end: Mapping[str, str | int]) -> None:
        """Report that all messages before ``end`` were processed, if the consumer has a name."""
        self._report(Offsets.of(end))

    def stop(self) -> None:
        """Close the connection."""
        self.source.client.close()

    def _report(self, done: Offsets) -> None:
        """Report the progress of ``consumerGroup`` to the broker. Failures are harmless: only the checkpoint decides
        where reading continues.

        Spark calls ``commit`` only when it plans another batch, and so never for the last batch of AvailableNow. The
        messages before the ``start`` passed to latestOffset have been processed as well.
        """
        consumer = self.source.options.text("consumerGroup")
        if not consumer or done == self._reported:
            return
        try:
            self.source.client.commit(consumer, done)
        except MqttError as error:
            log.warning("The progress of consumer %s was not reported: %s", consumer, error)
            self.source.client.close()
        self._reported = done
