"""A QoS 0 PUBLISH that plugins see reaches plain receivers of each version, online, slow or offline."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.events import DropReason
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


@pytest.mark.parametrize("hook", ["on_publish", "on_published"])
@pytest.mark.parametrize("version", [4, 5])
def test_receivers_of_both_versions(broker_harness: Make, version: int, hook: str) -> None:
    plugin = HookRecorder(hook)
    harness = broker_harness(plugins=[plugin])
    receivers = [harness.connect(f"c{n}", version=v) for n, v in enumerate((4, 5, 5))]
    for receiver in receivers:
        receiver.subscribe("t/#")
    publisher = harness.connect("publisher", version=version)
    for number in range(5):
        publisher.publish("t/1", b"%d" % number)
    for receiver in receivers:
        found = [receiver.expect_message("t/1").payload for _ in range(5)]
        assert found == [b"0", b"1", b"2", b"3", b"4"]
    harness.settle()
    assert [call.message.payload for call in plugin.calls()] == found
    assert harness.metrics.messages_delivered == 15


def test_a_receiver_that_does_not_read(broker_harness: Make) -> None:
    plugin = HookRecorder("on_publish", "on_dropped")
    config: dict[str, Any] = {"session": {"queue_bytes": 3000}}
    harness = broker_harness(plugins=[plugin], config=config)
    slow, quick = harness.connect("slow", high_water=50), harness.connect("quick")
    for receiver in (slow, quick):
        receiver.subscribe("t")
    publisher = harness.connect("publisher")
    publisher.publish("t", b"first")
    slow.pause()
    for number in range(20):
        publisher.publish("t", b"%d" % number + bytes(200))
    assert len(plugin.calls("on_publish")) == 21
    harness.settle()
    dropped = plugin.calls("on_dropped")
    assert {call.why.reason for call in dropped} == {DropReason.QUEUE_BYTES}
    assert [quick.expect_message("t").payload[:1] for _ in range(3)] == [b"f", b"0", b"1"]
    slow.resume()
    harness.settle()
    assert slow.expect_message("t").payload == b"first"
