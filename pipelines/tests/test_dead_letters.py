"""Test how dead letters are reported to the broker."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fakelog import FakeLog, serving
from mqtt_pipelines.dead_letters import DeadLetters
from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import Written
from mqtt_pipelines.sinks.fork import Branch, Fork
from mqtt_pipelines.sources import Source


@pytest.fixture
def log() -> Iterator[FakeLog]:
    with serving(FakeLog({0: []})) as served:
        yield served


def query(name: str) -> Query:
    given: Any = None
    return Query(name, given, given, "", 0.0)


def source(log: FakeLog, **more: str) -> Source:
    return Source(mqtt={**log.options, "fetchOffset.numRetries": 0, **more})


def test_batches_with_dead_letters_are_reported(log: FakeLog) -> None:
    letters = DeadLetters(source(log, consumerGroup="plant"))
    for batch, count in enumerate((0, 0, 3, 0, 2)):
        letters.written(query("silver"), "q", batch, Written(10, dead_letters=count))
    letters.written(query("dead_letter"), "r", 7, Written(4))
    assert log.reports == [
        ("plant.silver", {"query": "q", "batch": 0, "dead_letters": 0}),
        ("plant.silver", {"query": "q", "batch": 2, "dead_letters": 3}),
        ("plant.silver", {"query": "q", "batch": 4, "dead_letters": 2}),
        ("plant.dead_letter", {"query": "r", "batch": 7, "dead_letters": 4}),
    ]


def test_nothing_is_reported_without_a_table_or_a_name(log: FakeLog) -> None:
    DeadLetters(source(log, consumerGroup="plant")).written(query("gold"), "q", 0, Written(10))
    DeadLetters(source(log)).written(query("silver"), "q", 0, Written(1, dead_letters=1))
    files = Source(files="folder")
    DeadLetters(files).written(query("silver"), "q", 0, Written(1, dead_letters=1))
    assert log.reports == []


def test_a_report_that_fails_ends_no_query(log: FakeLog, caplog: pytest.LogCaptureFixture) -> None:
    letters = DeadLetters(source(log, consumerGroup="plant"))
    log.faults.append(500)
    with caplog.at_level(logging.WARNING, "mqtt_pipelines"):
        letters.written(query("silver"), "q", 0, Written(1, dead_letters=1))
    assert "The dead letters of consumer plant.silver were not reported" in caplog.text
    letters.written(query("silver"), "q", 1, Written(1, dead_letters=1))
    assert [body["batch"] for _, body in log.reports] == [1]


def test_a_fork_counts_the_rows_of_its_tables_of_dead_letters() -> None:
    class Counting:
        name = "table"

        def __init__(self, rows: int) -> None:
            self.rows = rows

        def write(self, *_: Any) -> Written:
            return Written(self.rows)

    class Batch:
        def persist(self, _: Any) -> "Batch":
            return self

        def unpersist(self) -> None:
            pass

    def fork(*names: str) -> Fork:
        return Fork([Branch(name, Counting(len(name)), lambda rows: rows) for name in names])

    batch: Any = Batch()
    assert fork("silver", "dead_letter").write(batch, 0, "p.silver.c") == Written(
        6, dead_letters=11
    )
    assert fork("metrics", "sparkplug_dead_letter").write(batch, 0, "p.m.c").dead_letters == 21
    assert fork("metrics").write(batch, 0, "p.m.c").dead_letters is None
