"""Stateful computations by key in plain Python, for both streams and batches.

A stream keeps the state between batches with ``transformWithState``. This requires pandas and protobuf on every node,
and the RocksDB state store (`prepare`). A batch handles all rows of a key at once with ``applyInArrow``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StringType, StructField, StructType

from mqtt_pipelines.settings import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE: Final = StructType([StructField("state", StringType())])

Value = Mapping[str, Any] | Row
"""A row, by column name. Times are integers in microseconds, so time zones do not matter."""
Output = tuple[Any, ...]


class Fold(ABC):
    """Handles the rows of one key. Folds are pickled. `state` consists of JSON types and may be changed in place."""

    times = False
    """Whether `wake` is called."""

    @abstractmethod
    def begin(self) -> Any:
        """Return the initial state for a new key."""

    @abstractmethod
    def rows(self, key: Sequence[Any], state: Any, rows: list[Value]) -> Iterator[Output]:
        """Handle more rows with the same key, in any order."""

    def due(self, state: Any) -> int | None:
        """Return the time (µs) after which `wake` will have something to do, or None if there is no such time."""
        return None

    def wake(self, key: Sequence[Any], state: Any, until: int) -> Iterator[Output]:
        """Continue once all rows before `until` (µs) have arrived."""
        return iter(())

    def forgotten(self, state: Any) -> bool:
        """Return whether the state equals the initial state, in which case it need not be kept."""
        return False

    def end(self, key: Sequence[Any], state: Any, until: int) -> Iterator[Output]:
        """Finish after the last row of a batch, as of `until`. Streams do not call this."""
        return iter(())


def fold(
    frame: DataFrame, keys: Sequence[str], by: Fold, schema: StructType, time: str = ""
) -> DataFrame:
    """Run the fold `by`, and return the rows that it yields, with the columns of `schema`.

    A fold with `times` needs the timestamp column `time`, whose watermark marks a stream's progress.
    """
    if frame.isStreaming:
        return frame.groupBy(*keys).transformWithState(
            _Processor(by, schema.names), schema, "Append", "EventTime" if by.times else "None"
        )
    if by.times:
        from pyspark.sql import functions as f

        # The newest row of any key ends the batch.
        last = frame.agg(f.unix_micros(f.max(time)).alias("_until"))
        frame = frame.crossJoin(last)
    return frame.groupBy(*keys).applyInArrow(_at_once(by, schema), schema)


def prepare(spark: SparkSession) -> None:
    """Configure the state store that `fold` needs. This affects queries that are started afterwards. Raises
    PipelineError if a package is missing.
    """
    missing = [name for name in ("pandas", "google.protobuf") if not _importable(name)]
    if missing:
        raise PipelineError(
            f"{missing[0]} cannot be imported, which Spark needs on every node for this job: in a checkout, "
            'uv pip install "./pipelines[stateful]"'
        )
    spark.conf.set(PROVIDER, ROCKSDB)


def _importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def in_order(rows: Iterable[Value]) -> list[Value]:
    """Return rows in the order in which the broker received them. Rows in the same partition are ordered by offset, all
    others by the broker's clock.
    """
    found = list(rows)
    if len({(row["log_id"], row["partition"]) for row in found}) == 1:
        return sorted(found, key=lambda row: int(row["offset"]))
    return sorted(found, key=position)


def position(row: Value) -> tuple[int, str, int, int]:
    """Return a row's position relative to the rows of all partitions. `at` is the broker's time (µs)."""
    return row["at"], row["log_id"] or "", row["partition"], row["offset"]


class _Processor(StatefulProcessor):
    """Runs a fold in a stream."""

    def __init__(self, by: Fold, names: Sequence[str]) -> None:
        self.by = by
        self.row = Row(*names)

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.state = handle.getValueState("state", _STATE)

    def _load(self) -> tuple[Any, int | None]:
        if not self.state.exists():  # otherwise `get` has Spark log a warning for each new key
            return self.by.begin(), None
        state, timer = json.loads(self.state.get()[0])
        return state, timer

    def _store(self, state: Any, before: int | None) -> None:
        due = self.by.due(state) if self.by.times else None
        timer = None if due is None else due // 1000 + 1
        if timer != before:
            if before is not None:
                self.handle.deleteTimer(before)
            if timer is not None:
                self.handle.registerTimer(timer)
        if self.by.forgotten(state):
            self.state.clear()
        else:
            self.state.update((json.dumps([state, timer]),))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        state, timer = self._load()
        for made in self.by.rows(key, state, list(rows)):
            yield self.row(*made)
        self._store(state, timer)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        state, timer = self._load()
        until = timerValues.getCurrentWatermarkInMs() * 1000
        for made in self.by.wake(key, state, until):
            yield self.row(*made)
        # Spark removes a timer after it has fired.
        fired = expiredTimerInfo.getExpiryTimeInMs()
        self._store(state, None if timer == fired else timer)


def _at_once(by: Fold, schema: StructType) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    def whole(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        rows: list[Any] = table.to_pylist()
        group = [one.as_py() for one in key]
        state = by.begin()
        made = list(by.rows(group, state, rows))
        if by.times:
            until = rows[0]["_until"]
            made += by.wake(group, state, until)
            made += by.end(group, state, until)
        names = schema.names
        columns = [list(column) for column in zip(*made, strict=True)] or [[] for _ in names]
        return pa.table(dict(zip(names, columns, strict=True)), to_arrow_schema(schema))

    return whole
