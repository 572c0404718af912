"""Test how a plugin delivers messages to individual clients, and how each delivery ends."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Drop
from hookmq.model.message import Message
from hookmq.plugin import DeliveryEnd, DirectDeliveries
from hookmq_testing import DurableStore, Harness, HookRecorder

Make = Callable[..., Harness]
VERSIONS = (3, 4, 5)
KEPT: dict[int, dict[str, Any]] = {
    5: {"clean_start": False, "session_expiry_interval": 100},
    4: {"clean_start": False},
}


class Sender:
    """Makes a plugin's deliveries, and records how they ended."""

    def __init__(self, harness: Harness) -> None:
        self.ended: list[tuple[object, DeliveryEnd]] = []
        broker: Any = harness.handle("mine")
        self.direct: DirectDeliveries = broker.deliveries(self.ended.extend)

    def send(self, token: object, client_id: str = "c", filter: str = "jobs", **how: Any) -> bool:
        return self.direct.send(client_id, filter, Message("jobs", b"x", 1, **how), token)

    def take(self) -> list[tuple[object, DeliveryEnd]]:
        ended = list(self.ended)
        self.ended.clear()
        return ended


@pytest.fixture
def harness(broker_harness: Make) -> Harness:
    return broker_harness(plugins=[HookRecorder("on_deliver", id="mine")])


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_sent_to_one_client_and_acknowledged(harness: Harness, version: int) -> None:
    one = harness.connect("c", version, auto_ack=False)
    two = harness.connect("d", version)
    for client in (one, two):
        client.subscribe("jobs", 2)
    sender = Sender(harness)
    assert sender.send("a")
    message = one.expect_message("jobs", b"x", 1, retain=False, dup=False)
    two.expect_nothing()
    assert sender.take() == []
    one.ack(message)
    harness.settle()
    assert sender.take() == [("a", DeliveryEnd.ACKNOWLEDGED)]
    assert not harness.broker.sessions["c"].inflight
    assert sender.send("b", "d")
    two.expect_message("jobs")
    assert sender.take() == [("b", DeliveryEnd.ACKNOWLEDGED)]


def test_ends_of_one_turn_are_reported_together(harness: Harness) -> None:
    client = harness.connect("c", auto_ack=False)
    client.subscribe("jobs", 1)
    calls: list[list[tuple[object, DeliveryEnd]]] = []
    broker: Any = harness.handle("mine")
    direct = broker.deliveries(calls.append)
    for token in range(3):
        assert direct.send("c", "jobs", Message("jobs", b"", 1), token)
    messages = [client.expect_message() for _ in range(3)]
    with harness.together():
        for message in messages:
            client.ack(message, 0x80)
    assert calls == [[(token, DeliveryEnd.ACKNOWLEDGED) for token in range(3)]]


def test_it_is_not_sent_without_a_subscription_that_can_take_it(harness: Harness) -> None:
    sender = Sender(harness)
    assert not sender.send("a")
    client = harness.connect("c", clean_start=False, session_expiry_interval=60)
    client.subscribe("jobs", 0)
    assert not sender.send("a")
    assert not sender.send("a", filter="other")
    client.subscribe("jobs", 1)
    assert sender.send("b")
    client.expect_message("jobs")
    client.disconnect()
    assert not sender.send("c")
    assert sender.take() == [("b", DeliveryEnd.ACKNOWLEDGED)]


def test_receive_maximum_and_the_queue_come_first(harness: Harness) -> None:
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe(["jobs", "t"], 1)
    sender = Sender(harness)
    assert sender.send("a")
    assert not sender.send("b")
    message = client.expect_message("jobs")
    harness.connect("pub").publish("t", b"queued", 1)
    client.ack(message)
    assert not sender.send("b")  # the queued message was sent
    client.ack(client.expect_message("t"))
    assert sender.send("b")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("end", ["drop", "takeover", "end_session", "close"])
def test_it_is_lost_with_the_connection(broker_harness: Make, version: int, end: str) -> None:
    """A plugin's deliveries are lost when the connection ends. Even a durable session neither keeps nor records them."""
    harness = broker_harness(plugins=[HookRecorder(id="mine")], store=DurableStore())
    client = harness.connect("c", version, auto_ack=False, **KEPT[version])
    client.subscribe("jobs", 1)
    sender = Sender(harness)
    assert sender.send("a")
    client.expect_message("jobs")
    assert not harness.store.queues  # type: ignore[attr-defined]
    if end == "drop":
        client.drop()
    elif end == "end_session":
        harness.handle("mine").end_session("c")
    elif end == "close":
        client.disconnect()
    again = harness.connect("c", version, **KEPT[version])
    harness.settle()
    assert sender.take() == [("a", DeliveryEnd.LOST)]
    again.expect_nothing()
    again.ping()


def test_it_is_lost_with_a_clean_session(harness: Harness) -> None:
    client = harness.connect("c", auto_ack=False)
    client.subscribe("jobs", 1)
    sender = Sender(harness)
    assert sender.send("a")
    client.drop()
    harness.settle()
    assert sender.take() == [("a", DeliveryEnd.LOST)]
    assert harness.metrics.dropped == {}  # the plugin still has the message


def test_final_checks_may_drop_it(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_deliver", id="mine")])
    harness.fail("mine", "on_deliver", Drop())
    client = harness.connect("c")
    client.subscribe("jobs", 1)
    sender = Sender(harness)
    assert sender.send("a")
    assert sender.take() == []  # never during the call
    harness.settle()
    assert sender.take() == [("a", DeliveryEnd.DROPPED)]
    client.expect_nothing()


def test_a_failing_function_is_the_plugins_failure(harness: Harness) -> None:
    client = harness.connect("c")
    client.subscribe("jobs", 1)

    def fail(ended: object) -> None:
        raise RuntimeError("oops")

    broker: Any = harness.handle("mine")
    assert broker.deliveries(fail).send("c", "jobs", Message("jobs", b"", 1), 1)
    client.expect_message()
    assert harness.logged("plugin.failed")[0]["plugin"] == "mine"
