"""Test that bench.held reports the memory that connections use."""

from __future__ import annotations

from bench import held


def test_connections_hold_memory_and_are_all_accepted() -> None:
    found = held.hold(2000)
    assert found["count"] == 2000
    assert found["kib_each"] < 20  # below 0 if the process had free memory
    assert found["rss_mib"] > 10
