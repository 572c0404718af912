"""bench.held: what it tells is memory that connections keep."""

from __future__ import annotations

from bench import held


def test_connections_keep_memory_and_are_all_accepted() -> None:
    found = held.hold(2000)
    assert found["count"] == 2000
    assert found["kib_each"] < 20  # less than nothing where the process had memory to spare
    assert found["rss_mib"] > 10
