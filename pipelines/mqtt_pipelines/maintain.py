"""Looking after tables: small files into large ones, rows that are missing, dead letters that are understood by now.

Everything here may be done again, and beside a pipeline that runs. What is added is told from what is there by the
offsets of its rows; and only offsets that the pipeline's query has passed are added, so that it will not add them, too.
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
"""Offsets that are compared, and added in one commit, at a time: the driver holds the keys of so many rows."""
AGAIN = "run it again, which adds what is missing still"

Position = Callable[[str, int], int]
"""The next offset of a query, by log and partition; 0 where it has not been."""


@dataclass(frozen=True, slots=True)
class Same:
    """Which rows are one message though their offsets differ, as silver has it: all of `names` agree, and none is null.

    They are looked for where `time` is within `slack` seconds of the rows that are to be added.
    """

    names: tuple[str, ...]
    time: str
    slack: float


@dataclass(frozen=True, slots=True)
class Added:
    """What became of rows that were to be added."""

    added: int = 0
    present: int = 0
    """They were in the table."""
    ahead: int = 0
    """The query has yet to come to them, and will add them itself."""

    def __add__(self, other: Added) -> Added:
        return Added(
            self.added + other.added, self.present + other.present, self.ahead + other.ahead
        )


def cut(wanted: Iterable[Span], size: int) -> Iterator[list[Span]]:
    """Spans in pieces of at most `size` offsets together, in order."""
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
    """Add those of `rows` that the table does not have; all of them have offsets within `wanted`. Blocks.

    `entry` names what is being done: of two that do it at a time one sees what the other added, and adds nothing again.
    Raises MqttError if the table will not take them.
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
    """The rows that a table does not have."""
    from pyspark.sql import functions as f

    spark = rows.sparkSession
    known = state.keys(KEY, wanted)
    found = rows
    if known.num_rows:
        found = found.join(f.broadcast(spark.createDataFrame(known)), list(KEY), "left_anti")
    if same is None:
        return found
    # As numbers: Python would read times in the time zone of this process.
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
    # A null is equal to nothing in a join, and that is what is meant.
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
    """Add what a table lacks of some offsets, `size` at a time; `read` gives the table's rows of them. Blocks."""
    done = Added()
    for piece in cut(wanted, size):
        one = add_missing(store, read(piece), piece, entry, same)
        told(piece, one)
        done += one
    return done


def offsets(piece: Sequence[Span], every: Iterable[int]) -> tuple[str, str]:
    """Spans of one log as the JSON of startingOffsets and endingOffsets, in which every partition is named."""
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
    """The offsets that a query has passed, and those that it has yet to come to."""
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
    """Run dead letters through silver again, and add those that are understood now and are not there. Blocks.

    `read` gives the dead letters whose offsets are within some spans, and `letters` is all there are. They stay.
    """
    behind, ahead = passed(letters, position)
    waiting = read(ahead).count() if ahead else 0
    done = backfill(store, lambda piece: understand(read(piece)), behind, entry, same, size)
    return done + Added(ahead=waiting)
