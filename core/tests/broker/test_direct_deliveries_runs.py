"""Test runs of direct deliveries. They send the same packets as single deliveries, with extra user properties for MQTT
5.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Drop
from hookmq.model.message import Message
from hookmq.mqtt_api import In, Properties, encode_section
from hookmq.plugin import DeliveryEnd, DirectDeliveries
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]
ADDED = (("offset", "7"), ("group", "g"))
SECTION = encode_section(Properties(user_property=ADDED), In.PUBLISH)
BYTES = SECTION[1:]


class Sender:
    """Makes a plugin's deliveries, and records how they ended."""

    def __init__(self, harness: Harness) -> None:
        self.ended: list[tuple[object, DeliveryEnd]] = []
        broker: Any = harness.handle("mine")
        self.direct: DirectDeliveries = broker.deliveries(self.ended.extend)

    def run(self, *messages: Message, client_id: str = "c", filter: str = "jobs") -> int:
        items = [(message, BYTES, token) for token, message in enumerate(messages)]
        return self.direct.send_run(client_id, filter, items)


def job(payload: bytes = b"x", **how: Any) -> Message:
    return Message("jobs", payload, 1, **how)


@pytest.fixture
def harness(broker_harness: Make) -> Harness:
    return broker_harness(plugins=[HookRecorder(id="mine")])


@pytest.mark.parametrize("hooks", [(), ("on_deliver",), ("on_delivered",)])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_messages_are_sent_in_order_with_the_added_properties(
    broker_harness: Make, version: int, hooks: tuple[str, ...]
) -> None:
    harness = broker_harness(plugins=[HookRecorder(*hooks, id="mine")])
    client = harness.connect("c", version, auto_ack=False)
    client.subscribe("jobs", 2)
    sender = Sender(harness)
    own = Properties(content_type="text/plain", user_property=(("a", "b"),))
    assert sender.run(job(b"1"), job(b"2", properties=own), job(b"3", retain=True)) == 3
    first = client.expect_message("jobs", b"1", 1, retain=False, dup=False)
    second = client.expect_message("jobs", b"2", 1)
    third = client.expect_message("jobs", b"3", 1, retain=False)
    if version == 5:
        assert first.properties == third.properties == Properties(user_property=ADDED)
        assert second.properties.content_type == "text/plain"
        assert second.properties.user_property == (("a", "b"), *ADDED)
    assert sender.ended == []
    for message in (first, second, third):
        client.ack(message)
    harness.settle()
    assert sender.ended == [(token, DeliveryEnd.ACKNOWLEDGED) for token in range(3)]
    assert harness.metrics.messages_delivered == 3


def test_a_long_section_has_a_longer_length(harness: Harness) -> None:
    client = harness.connect("c")
    client.subscribe("jobs", 1)
    long = Properties(user_property=(("a", "b" * 300),))
    assert Sender(harness).run(job(properties=long)) == 1
    message = client.expect_message("jobs", b"x", 1)
    assert message.properties.user_property == (("a", "b" * 300), *ADDED)


def test_a_run_ends_at_receive_maximum(harness: Harness) -> None:
    client = harness.connect("c", auto_ack=False, receive_maximum=2)
    client.subscribe("jobs", 1)
    sender = Sender(harness)
    assert sender.run(job(b"1"), job(b"2"), job(b"3")) == 2
    assert sender.run(job(b"3")) == 0
    client.ack(client.expect_message("jobs", b"1"))
    assert sender.run(job(b"3"), job(b"4")) == 1
    assert [client.expect_message().payload for _ in range(2)] == [b"2", b"3"]


def test_nothing_is_sent_without_a_subscription(harness: Harness) -> None:
    sender = Sender(harness)
    assert sender.run(job()) == 0
    client = harness.connect("c")
    assert sender.run(job()) == 0
    client.subscribe("jobs", 0)
    assert sender.run(job()) == 0
    assert sender.ended == []


def test_identifier_expiry_and_alias_are_kept(harness: Harness) -> None:
    client = harness.connect("c", topic_alias_maximum=5)
    client.subscribe("jobs", 1, identifier=9)
    soon = harness.clock.time() + 60
    properties = Properties(message_expiry_interval=60)
    assert Sender(harness).run(job(properties=properties, expires_at=soon), job()) == 2
    first, second = client.expect_message("jobs"), client.expect_message()
    assert first.properties.subscription_identifier == (9,)
    assert first.properties.message_expiry_interval == 60
    assert second.properties.user_property == ADDED


def test_a_message_that_is_too_large_is_dropped(harness: Harness) -> None:
    client = harness.connect("c", maximum_packet_size=60)
    client.subscribe("jobs", 1)
    sender = Sender(harness)
    assert sender.run(job(b"x" * 60), job(b"y")) == 2
    client.expect_message("jobs", b"y")
    harness.settle()
    assert sorted(sender.ended) == [(0, DeliveryEnd.DROPPED), (1, DeliveryEnd.ACKNOWLEDGED)]


def test_a_hook_sees_what_is_sent_and_may_drop_it(broker_harness: Make) -> None:
    recorder = HookRecorder("on_deliver", id="mine")
    harness = broker_harness(plugins=[recorder])
    harness.fail("mine", "on_deliver", Drop())
    client = harness.connect("c")
    client.subscribe("jobs", 1)
    sender = Sender(harness)
    assert sender.run(job()) == 1
    harness.settle()
    assert sender.ended == [(0, DeliveryEnd.DROPPED)]
    client.expect_nothing()


def test_a_run_is_lost_with_the_connection(harness: Harness) -> None:
    client = harness.connect("c", auto_ack=False)
    client.subscribe("jobs", 1)
    sender = Sender(harness)
    assert sender.run(job(b"1"), job(b"2")) == 2
    client.drop()
    harness.settle()
    assert sender.ended == [(0, DeliveryEnd.LOST), (1, DeliveryEnd.LOST)]
