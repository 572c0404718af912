"""Test which messages retention keeps, and how messages that consumers missed are reported."""

from typing import Any

import pytest
from hookmq_queues.config import RetentionConfig
from hookmq_queues.retention import REPEAT, MissedMessages, first_to_keep
from hookmq_testing.runtime import VirtualRuntime


class Log:
    """A log of 100 messages of 1 KB each, of which the first 10 have been removed."""

    first = 10
    visible = 100

    def offset_within(self, limit: int, end: int) -> int:
        return min(max(self.first, self.visible - limit // 1024), max(self.first, end))


@pytest.mark.parametrize(
    ("settings", "aged", "floor", "first"),
    [
        ({}, 0, 0, 10),
        ({"bytes": 64 << 10}, 0, 0, 36),
        ({"messages": 30}, 0, 0, 70),
        ({"messages": 95}, 0, 0, 10),
        ({}, 50, 0, 50),
        ({"bytes": 64 << 10, "messages": 30}, 50, 0, 70),
        ({"messages": 1}, 100, 0, 100),
        # waiting for a group
        ({"bytes": 64 << 10, "wait_for_groups": 80 << 10}, 0, 10, 20),
        ({"bytes": 64 << 10, "wait_for_groups": 80 << 10}, 0, 30, 30),
        ({"bytes": 64 << 10, "wait_for_groups": 80 << 10}, 0, 50, 36),
        ({"bytes": 64 << 10, "wait_for_groups": 80 << 10}, 90, 30, 30),
        ({"bytes": 64 << 10, "wait_for_groups": 1 << 20, "messages": 5}, 90, 0, 10),
        ({"bytes": 64 << 10, "wait_for_groups": 1 << 20, "messages": 5}, 90, 98, 95),
    ],
)
def test_the_first_message_to_keep(
    settings: dict[str, int], aged: int, floor: int, first: int
) -> None:
    log: Any = Log()
    assert first_to_keep(RetentionConfig(**settings), log, aged, floor) == first


def test_missed_messages_are_reported_at_most_once_a_minute() -> None:
    runtime = VirtualRuntime()
    reports: list[int] = []
    missed = MissedMessages(runtime, reports.append)
    missed.add(3)
    assert reports == [3]
    missed.add(4)
    missed.add(5)
    assert reports == [3]
    runtime.advance(REPEAT)
    assert reports == [3, 9]
    runtime.advance(10 * REPEAT)
    assert reports == [3, 9]
    missed.add(1)
    missed.add(2)
    assert reports == [3, 9, 1]
    missed.close()
    assert reports == [3, 9, 1, 2]
    runtime.advance(10 * REPEAT)
    assert reports == [3, 9, 1, 2]
