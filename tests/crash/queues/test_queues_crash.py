"""Test kills of a broker with queues, and of the consumers' processes, under load.

No acknowledged message is lost, nothing is delivered after its acknowledgement was processed, and a repeated delivery
has a delivery count above 1. `make crash-queues KILLS=1000` runs more kills. SEED repeats the choices of a run.
"""

from pathlib import Path
from typing import Any

import pytest
from killing.ledger import Stream
from queuekill.evidence import BROKEN, Evidence
from queuekill.rounds import kill_queues

KILLS = 4
TOPIC = "$queue/jobs/one"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_queues_survive_kills(tmp_path: Path) -> None:
    run = kill_queues(tmp_path, KILLS)
    counts, published = run.counts, run.ledger.counts
    assert published.kills == KILLS
    assert not counts.broken()
    assert published.acknowledged == published.published > 50 * KILLS
    assert counts.due > 1.5 * published.acknowledged  # one of the queues has one group only
    assert counts.confirmed > counts.due / 2
    assert counts.redelivered
    assert counts.dead_letters


def evidence(*lines: tuple[Any, ...]) -> Evidence:
    """Return the evidence that these lines from consumers provide. Each line contains its kind, the time, the consumer
    and further values.
    """
    found = Evidence([("jobs", "audit")], {"jobs": 3}, ["keyed"])
    found.lives = [0.0, 100.0]
    for kind, at, name, *more in lines:
        connection = 1 if at < 100 else 2
        found.take([kind, at, name, connection, *more])
    return found


def delivery(
    at: float, offset: int, number: int, count: int = 1, name: str = "a", group: str = "default", dead: str = "",
    topic: str = TOPIC,
) -> tuple[Any, ...]:  # fmt: skip
    return "D", at, name, "jobs", group, offset, topic, number, count, dead


def processed(kind: str, at: float, offset: int, number: int, name: str = "a") -> tuple[Any, ...]:
    return kind, at, name, "jobs", "default", offset, TOPIC, number


def keyed(kind: str, at: float, number: int, *more: Any) -> tuple[Any, ...]:
    return kind, at, "a", "keyed", "default", number, "key", number, *more


CONNECTED = (("N", 1, "a"), ("N", 1, "b"), ("N", 101, "a"), ("N", 101, "b"))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("unmarked", [delivery(2, 0, 1), delivery(102, 0, 1)]),
        ("again_after_ack", [delivery(2, 0, 1), processed("C", 3, 0, 1), delivery(4, 0, 1, 2, "b")]),
        ("again_after_ack", [delivery(4, 0, 1, 2, "b"), delivery(2, 0, 1), processed("C", 3, 0, 1)]),
        ("changed", [delivery(2, 0, 1), delivery(102, 0, 2, 2)]),
        ("corrupt", [delivery(2, 0, 0)]),
        ("out_of_turn", [delivery(2, 5, 5, group="audit"), delivery(3, 4, 4, group="audit")]),
        ("too_many", [delivery(2, 0, 1, 5)]),
        ("dead_twice", [delivery(2, 0, 1, dead="fragile:3"), delivery(3, 1, 1, dead="fragile:3")]),
        ("lost", [delivery(2, 0, 1), processed("A", 3, 0, 1)]),
        ("out_of_order", [keyed("D", 2, 1, 1, ""), keyed("D", 3, 2, 1, ""), keyed("A", 4, 1)]),
        ("reordered", [delivery(2, 0, 2), delivery(3, 1, 1)]),
        ("doubled", [delivery(2, 0, 1, topic="two"), delivery(3, 1, 1, topic="two")]),
    ],
)  # fmt: skip
def test_every_breach_is_counted(name: str, lines: list[tuple[Any, ...]]) -> None:
    found = evidence(*CONNECTED, *lines)
    streams = [Stream(TOPIC, 1), Stream("two", 2)]
    if name == "lost":
        for number in (1, 2):
            streams[0].next()
            streams[0].acknowledge(number)
    found.judge([("jobs", "default", streams)])
    assert found.counts.broken() == {name: 1}
    assert len(found.notes) == 1


def test_what_a_broker_may_do_is_no_breach() -> None:
    """A crash may undo an acknowledgement, and lines from two processes may arrive in any order."""
    found = evidence(
        *CONNECTED, delivery(2, 0, 1), processed("A", 3, 0, 1), processed("C", 3, 0, 1), delivery(102, 0, 1, 2),
        delivery(104, 1, 2, 2), delivery(103, 1, 2, 1, "b"), delivery(105, 2, 2), delivery(106, 0, 1, 3),
    )  # fmt: skip
    stream = Stream(TOPIC, 1)
    stream.next()
    stream.acknowledge(1)
    found.judge([("jobs", "default", [stream])])
    assert not found.counts.broken()
    assert {"lost", "unmarked", "dead_twice"} <= BROKEN
