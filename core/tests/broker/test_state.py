"""Test the broker's counters of dropped messages, and the arrival times of messages."""

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


def test_messages_of_one_read_share_the_time_of_arrival(broker_harness: Make) -> None:
    recorder = HookRecorder("on_publish")
    harness = broker_harness(plugins=[recorder])
    publisher = harness.connect("publisher", version=4, auto_ack=False)
    packets = b"\x30\x04\0\x01tx\x32\x06\0\x01t\0\x01x"
    times = []
    for _ in range(3):
        harness.clock.advance(1.0)
        times.append(harness.clock.time())
        publisher.raw(packets * 2)
    arrived = [call.message.received_at for call in recorder.calls("on_publish")]
    assert arrived == [now for now in times for _ in range(4)]
    assert harness.broker.state.arrived == 0.0
