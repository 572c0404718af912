"""Test which messages `on_published` reports at the end of their turn."""

from typing import Any

from hookmq.broker.published_events import arguments, client_message
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.plugin import Context, Message, Plugin, hookimpl
from hookmq.routing.route import Route
from hookmq_testing import Harness
from hookmq_testing.runtime import EPOCH, VirtualRuntime

CLIENT = ClientInfo("c1", 5, None, Peer("127.0.0.1", 1), Scope("tcp"))


class Published(Plugin):
    """A plugin that records the events that `on_published` reports."""

    def __init__(self, config: None, context: Context) -> None:
        super().__init__(config, context)
        self.seen: list[tuple[bytes, int]] = []

    @hookimpl
    def on_published(self, message: Message, matched: int) -> None:
        self.seen.append((message.payload, matched))


def test_a_message_is_that_of_the_client() -> None:
    message = client_message(EPOCH, CLIENT, "t", b"x", 1, EMPTY)
    assert (message.topic, message.payload, message.qos, message.retain) == ("t", b"x", 1, False)
    assert (message.sender, message.origin) == ("c1", "client")
    assert (message.received_at, message.expires_at) == (EPOCH, None)
    expiring = client_message(EPOCH, CLIENT, "t", b"", 0, Properties(message_expiry_interval=7))
    assert expiring.expires_at == EPOCH + 7


def test_a_message_that_exists_is_not_made_again() -> None:
    runtime = VirtualRuntime()
    route = Route("t", (), (), (), 10)
    message = client_message(EPOCH, CLIENT, "t", b"1", 0, EMPTY)
    first, second = arguments(
        runtime,
        [(CLIENT, route, b"1", 0, EMPTY, message), (CLIENT, route, b"2", 1, EMPTY, None)],
    )
    assert first == (CLIENT, message, 0)
    assert second[0] is CLIENT
    assert (second[1].topic, second[1].payload, second[1].qos, second[2]) == ("t", b"2", 1, 0)


def test_a_qos_0_message_without_subscribers_is_reported(broker_harness: Any) -> None:
    plugin = Published(None, Context("p"))
    harness: Harness = broker_harness([plugin])
    publisher = harness.connect("publisher")
    for number in range(3):
        publisher.publish("t", bytes([number]))
        harness.settle()
        assert plugin.seen == [(bytes([one]), 0) for one in range(number + 1)]
