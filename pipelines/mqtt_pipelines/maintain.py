"""Add missing rows to tables, and parse dead letters again.

Every operation can be repeated, and can run while a pipeline is running. Existing rows are recognized by their offsets.
Rows are added only for offsets that the pipeline's query has already passed, so the query will not add them again.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.sinks import columns, parts
from mqtt_pipelines.sinks.append import MOST, TRIES, WAIT, State, Store, Times, told, within
from mqtt_pipelines.sinks.ledger import KEY, Span, spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICE = 1_000_000
"""Number of offsets to compare and add in one commit. The driver keeps the keys of that many rows in memory."""
AGAIN = "run it again, which adds what is missing still"

Position = Callable[[str, int], int]
"""Returns a query's next offset in a log and partition, or 0 if it has not started there."""


@dataclass(frozen=True, slots=True)
class Same:
    """Defines which rows with different offsets are duplicates, as in silver: all columns in `names` are equal, and
    none is null.

    The search for duplicates covers the rows whose `time` is within `slack` seconds of the new rows.
    """

    names: tuple[str, ...]
    time: str
    slack: float


@dataclass(frozen=True, slots=True)
class Added:
    """How many rows were added, and how many were not."""

    added: int = 0
    present: int = 0
    """Number of rows that were already in the table."""
    ahead: int = 0
    """Number of rows that the query has not reached and will add itself."""

    def __add__(self, other: Added) -> Added:
        return Added(
            self.added + other.added, self.present + other.present, self.ahead + other.ahead
        )


def cut(wanted: Iterable[Span], size: int) -> Iterator[list[Span]]:
    """Split spans into pieces of at most `size` offsets, in order."""
    piece: list[Span] = []
    room = size
    for span in spans(wanted):
        first = span.first
        while first <= span.last:
            last = min(span.last, first + room - 1)
            piece.append(Span(span.log_id, span.partition, first, last))
            room -= last - first + 1
            first = last + 1
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


def add_missing(
    store: Store,
    rows: DataFrame,
    wanted: Sequence[Span],
    entry: str,
    same: Same | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Added:
    """Add those of the `rows` that are missing from the table. The offsets of all `rows` lie within `wanted`. This call
    blocks.

    `entry` names the operation. If two runs overlap, each run sees the rows that the other has added, and does not add
    them again. Raises MqttError if the table refuses the rows.
    """
    from pyspark import StorageLevel

    schema = columns.arrow(rows.schema)
    held = rows.where(within(wanted)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        total = held.count()
        if not total:
            return Added()
        for failures in range(1, TRIES + 1):
            with told(store, AGAIN):
                state = store.load(schema)
            made = parts.write(_missing(state, held, wanted, same), state.target(schema))
            added = sum(part.rows for part in made)
            if not made:
                return Added(0, total)
            entries = {entry: (state.get(entry) or 0) + 1}
            with told(store, AGAIN):
                done = state.commit(made, entries, entry)
            if done:
                return Added(added, total - added)
            parts.remove(state.target(schema), made)
            wait(min(MOST, WAIT * 2**failures))
    finally:
        held.unpersist()
    raise MqttError(f"{store.name}: other writers came first {TRIES} times in a row; {AGAIN}.")


def _missing(state: State, rows: DataFrame, wanted: Sequence[Span], same: Same | None) -> DataFrame:
    """Return the rows that the table does not contain yet."""
    from pyspark.sql import functions as f

    spark = rows.sparkSession
    known = state.keys(KEY, wanted)
    found = rows
    if known.num_rows:
        found = found.join(f.broadcast(spark.createDataFrame(known)), list(KEY), "left_anti")
    if same is None:
        return found
    # Use numbers, because Python would apply this process's time zone.
    edges = [f.unix_micros(edge(same.time)) for edge in (f.min, f.max)]
    first, last = rows.agg(*edges).collect()[0]
    if first is None:
        return found
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    near = [
        epoch + datetime.timedelta(microseconds=edge, seconds=way * same.slack)
        for edge, way in ((first, -1), (last, 1))
    ]
    others = state.keys(same.names, (), Times(same.time, *near))
    if not others.num_rows:
        return found
    # In a join, null equals nothing, which is what we want here.
    names = spark.createDataFrame(others).dropna().distinct()
    return found.join(f.broadcast(names), list(same.names), "left_anti")


def backfill(
    store: Store,
    read: Callable[[Sequence[Span]], DataFrame],
    wanted: Iterable[Span],
    entry: str,
    same: Same | None = None,
    size: int = SLICE,
    told: Callable[[Sequence[Span], Added], None] = lambda *_: None,
) -> Added:
    """Add rows that are missing at the wanted offsets, `size` offsets at a time. `read` returns rows for the table.
    This call blocks.
    """
    done = Added()
    for piece in cut(wanted, size):
        one = add_missing(store, read(piece), piece, entry, same)
        told(piece, one)
        done += one
    return done


def offsets(piece: Sequence[Span], every: Iterable[int]) -> tuple[str, str]:
    """Return the spans of one log as JSON for startingOffsets and endingOffsets. Both options must list every
    partition.
    """
    [log_id] = {span.log_id for span in piece}
    start: dict[str, str | int] = {"log_id": log_id}
    end: dict[str, str | int] = {"log_id": log_id}
    by_partition = {span.partition: span for span in piece}
    for partition in sorted(every):
        span = by_partition.get(partition)
        start[str(partition)] = span.first if span else -2
        end[str(partition)] = span.last + 1 if span else -2
    return json.dumps(start), json.dumps(end)


def passed(found: Iterable[Span], position: Position) -> tuple[list[Span], list[Span]]:
    """Split offsets into those that a query has already passed and those that it has not reached yet."""
    behind, ahead = [], []
    for span in found:
        at = position(span.log_id, span.partition)
        if span.first < at:
            behind.append(Span(span.log_id, span.partition, span.first, min(span.last, at - 1)))
        if span.last >= at:
            ahead.append(Span(span.log_id, span.partition, max(span.first, at), span.last))
    return behind, ahead


def replay(
    store: Store,
    letters: Iterable[Span],
    read: Callable[[Sequence[Span]], DataFrame],
    understand: Callable[[DataFrame], DataFrame],
    position: Position,
    entry: str,
    same: Same | None = None,
    size: int = SLICE,
) -> Added:
    """Parse dead letters again. If one can now be parsed and its rows are missing from the table, add them. This call
    blocks.

    `letters` are the offsets of all dead letters, and `read` returns the dead letters within given spans. Dead letters
    are not deleted.
    """
    behind, ahead = passed(letters, position)
    waiting = read(ahead).count() if ahead else 0
    done = backfill(store, lambda piece: understand(read(piece)), behind, entry, same, size)
    return done + Added(ahead=waiting)
