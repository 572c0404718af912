"""Test that a run of bench.cluster counts only if its messages arrived, and how the costs are compared."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from bench import cluster, cluster_nodes, cluster_sessions
from bench.durable_load import Void

GOOD: dict[str, Any] = {
    "lost": 0, "duplicates": 0, "reordered": 0, "refused": {}, "lost_connections": {}, "received": 5,
}  # fmt: skip


def test_the_result_follows_other_output() -> None:
    assert cluster.result(f"a warning\n{json.dumps(GOOD)}\nmore", lossy=False) == GOOD


@pytest.mark.parametrize(
    "bad", [{"lost": 1}, {"duplicates": 1}, {"reordered": 1}, {"refused": {"5": 1}}]
)
def test_a_lost_or_doubled_message_makes_a_run_void(bad: dict[str, Any]) -> None:
    with pytest.raises(Void, match=next(iter(bad))):
        cluster.result(json.dumps(GOOD | bad), lossy=False)


def test_messages_with_qos_0_may_be_lost_but_not_doubled() -> None:
    cluster.result(json.dumps(GOOD | {"lost": 3}), lossy=True)
    with pytest.raises(Void, match="duplicates"):
        cluster.result(json.dumps(GOOD | {"duplicates": 3}), lossy=True)


def test_members_of_a_shared_subscription_may_get_messages_in_another_order() -> None:
    reordered = json.dumps(GOOD | {"reordered": 1})
    assert cluster.result(reordered, lossy=True, shared=True)["received"] == 5
    with pytest.raises(Void, match="reordered"):
        cluster.result(reordered, lossy=True)


def test_a_row_may_have_half_of_the_rate_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[str, float]] = []

    def measure(row: cluster.Row, brokers: None, seconds: float, clients: int, limit: float) -> Any:
        limits.append((row.name, limit))
        return cluster.Run(1, 300.0, {"a": 1.0})

    monkeypatch.setattr(cluster, "running", lambda kind: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "measure", measure)
    rows = [row for row in cluster.ROWS if row.name in ("worker-1", "worker-half")]
    cluster.compare(rows, 2, 1.0, 1)
    # The order is reversed each time.
    assert limits == [("worker-1", 0), ("worker-half", 150), ("worker-half", 150), ("worker-1", 0)]


def test_a_generator_that_fails_makes_a_run_void() -> None:
    with pytest.raises(Void, match="unknown option"):
        cluster.result("unknown option", lossy=True)


def test_the_table_compares_the_medians() -> None:
    rows = [one for one in cluster.ROWS if one.name in ("single-q0", "across-q0", "local-q0")]
    runs = {
        "single-q0": [cluster.Run(9, 900.0, {"a": cost}) for cost in (1.0, 2.0, 9.0)],
        "across-q0": [cluster.Run(9, 400.0, {"a": 2.0, "b": 2.5, "n0": 0.5})],
    }
    table = cluster.table(rows, runs, {"local-q0": "lost"}).splitlines()
    assert "| across-q0 | 400 | 5.00 | 2.50x | 4.50 | 0.50 |" in table
    assert any("local-q0 | VOID: lost" in line for line in table)
    assert {line.count("|") for line in table} == {7}


def test_workers_are_started_as_the_row_says(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int, bool]] = []

    @contextlib.contextmanager
    def workers(count: int, together: bool) -> Iterator[None]:
        started.append((count, together))
        yield

    monkeypatch.setattr(cluster_nodes, "workers", workers)
    for kind in ("1", "2", "2 together"):
        with cluster.running(kind):
            pass
    assert started == [(1, False), (2, False), (2, True)]


def test_only_selects_rows() -> None:
    options = cluster.arguments(["--only", "across-q,take"])
    assert [row.name for row in options.rows] == ["across-q1", "across-q0"]
    assert options.others == ["takeover"]
    with pytest.raises(SystemExit):
        cluster.arguments(["--only", "nothing"])


@pytest.mark.slow
def test_every_row_can_be_measured() -> None:
    runs, void = cluster.compare(list(cluster.ROWS), rounds=1, seconds=0.5, clients=2)
    assert not void
    assert all(found[0].messages and found[0].cost > 0 for found in runs.values())


@pytest.mark.slow
def test_sessions_and_subscriptions_can_be_measured() -> None:
    with cluster_nodes.cluster(lease=3.0) as brokers:
        counted = cluster_sessions.subscriptions(brokers, 3000)
        taken = cluster_sessions.takeover(brokers, 200)
    assert counted.traffic > 3000
    assert 0 < taken.noticed <= taken.first <= taken.last
