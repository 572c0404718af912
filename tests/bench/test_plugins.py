"""Test how plugins are measured. Every row is measured, a failure makes its row void, and the process's CPU affinity is
restored.
"""

from __future__ import annotations

import os

import pytest

from bench import plugins
from bench.plugins import Row

ROWS = [
    Row("connect", "no plugin", "rate", 9000.4, "connects/s"),
    Row("connect", "no plugin", "cost", 101.2, "us"),
    Row("connect", "JWT", "rate", 3000.0, "connects/s", "3 refused"),
    Row("connect", "JWT", "cost", 2.5, "us"),
    Row("publish", "1 limit", "QoS 0", 0.59, "us"),
]


def test_a_table_for_each_kind() -> None:
    head, connect, first, second, empty, publish, last = plugins.table(ROWS).splitlines()
    assert head.startswith("Plugins")
    assert connect.split() == ["connect", "rate,", "connects/s", "cost,", "us"]
    assert first.split() == ["no", "plugin", "9,000", "101"]
    assert second.split() == ["JWT", "VOID", "2.50"]
    assert empty == ""
    assert publish.split() == ["publish", "QoS", "0,", "us"]
    assert last.split() == ["1", "limit", "0.59"]


def test_the_file_of_results_has_every_field() -> None:
    assert plugins.to_json(ROWS)[2] == {
        "table": "connect", "name": "JWT", "figure": "rate", "value": 3000.0, "unit": "connects/s", "void": "3 refused",
    }  # fmt: skip


def test_decisions_are_measured_and_right() -> None:
    rows = list(plugins.decisions((10,)))
    assert [row.figure for row in rows] == ["publish allowed", "no rule", "subscribe"]
    assert not any(row.void for row in rows)
    assert all(row.value > 0 for row in rows)


@pytest.mark.slow
def test_every_client_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plugins, "PARALLEL", 4
    )  # on a busy machine 32 hashes exceed the time limit of plugins
    rows = {(row.name, row.figure): row for row in plugins.connects(0.05)}
    assert len(rows) == 10
    refused = {name for (name, _), row in rows.items() if "refused" in row.void}
    assert not refused
    assert rows["JWT, HS256", "rate"].value > 0


def test_cores_are_restored() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with plugins.on_all_cores(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before
