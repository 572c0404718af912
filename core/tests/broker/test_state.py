"""Test the broker's counters of dropped messages."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.events import Direction, DropReason
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


@pytest.mark.parametrize("observed", [False, True])
def test_drops_are_counted_whether_observed_or_not(broker_harness: Make, observed: bool) -> None:
    plugins: list[Any] = [HookRecorder("on_dropped")] if observed else []
    harness = broker_harness(plugins=plugins)
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("t", 1)
    away.disconnect()
    pub = harness.connect("pub")
    for _ in range(4):
        pub.publish("t", b"x", 0)
    for _ in range(3):
        pub.publish("t", b"x", 1)
    harness.connect("away")
    assert harness.metrics.dropped == {
        (DropReason.OFFLINE_QOS0, Direction.OUT): 4,
        (DropReason.SESSION_ENDED, Direction.OUT): 3,
    }
    shown = harness.metrics.snapshot()
    assert shown['messages_dropped{reason="offline_qos0",direction="out"}'] == 4
    if observed:
        harness.settle()
        assert len(plugins[0].calls()) == 7


def test_a_refused_delivery_is_counted(broker_harness: Make) -> None:
    harness = broker_harness()
    sub = harness.connect("sub", auto_ack=False)
    sub.subscribe("t", 2)
    pub = harness.connect("pub")
    for qos in (1, 2, 1, 2):
        pub.publish("t", b"", qos)
    for message in sub.messages:
        sub.ack(message, 0x97)
    assert harness.metrics.dropped == {(DropReason.REFUSED, Direction.OUT): 4}
    assert harness.broker.sessions["sub"].inflight == {}
