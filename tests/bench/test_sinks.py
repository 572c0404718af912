"""Test that a run of bench.sinks is void unless every message that it publishes is counted."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from bench import sink_cost, sink_targets, sinks
from bench.durable_load import Void


def test_a_missing_or_repeated_message_makes_a_run_void() -> None:
    counts = iter((1, 2, 3))
    sinks.await_arrivals(lambda: next(counts), 3)
    with pytest.raises(Void, match="2 of 3 messages did not arrive"):
        sinks.await_arrivals(lambda: 1, 3, quiet=0.0)
    with pytest.raises(Void, match="4 messages arrived instead of 3"):
        sinks.await_arrivals(lambda: 4, 3)


def test_each_message_is_published_once(tmp_path: pathlib.Path) -> None:
    @contextlib.contextmanager
    def start(where: pathlib.Path) -> Iterator[sinks.Started]:
        with sinks.broker(where, "broker", []) as one:
            arrivals = sink_targets.Arrivals(one.port)
            yield one.port, [one.pid], lambda: arrivals.count
            arrivals.close()

    run = sinks.measure(sinks.Way("broker", "none", start), 1234)
    assert run.rate > 0
    assert run.cpu > 0


def test_the_table_compares_with_the_sink_of_the_same_target() -> None:
    ours, theirs, broken = (
        sinks.Way("T", name, sinks.bridge_sink) for name in ("sink", "slow", "broken")
    )
    runs = {ours: [sinks.Run(500.0, 1.0)], theirs: [sinks.Run(100.0, 2.0)], broken: []}
    lines = sinks.table(runs, {broken: "lost"}).splitlines()
    assert lines[2:] == [
        "| T | sink | 500 | 1.0 |  |",
        "| T | slow | 100 | 2.0 | 5.0x |",
        "| T | broken | VOID: lost | | |",
    ]


def test_latencies_are_compared_with_a_target_that_works() -> None:
    found = {"works": [[0.001] * 100], "never answers": [[0.001] * 98 + [0.002] * 2]}
    assert sinks.latency_table(found).splitlines()[2:] == [
        "| works | 1.00 | 1.00 | 1.00 | 1.00x |",
        "| never answers | 1.00 | 2.00 | 2.00 | 2.00x |",
    ]


def test_the_cost_of_a_sink_is_counted_by_process() -> None:
    without, logged = sink_cost.measure(False, 2000), sink_cost.measure(True, 2000)
    assert without["broker"] > 0
    assert without["storage"] < without["broker"]
    assert without["sink"] == 0
    assert min(logged["broker"], logged["sink"]) > 0
    assert logged["storage"] < logged["broker"]  # the sink's log alone makes the messages durable
