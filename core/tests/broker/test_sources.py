"""Test that a retained message is sent only if its publisher still has permission to publish it.

Retained messages must not outlive a revoked permission (CVE-2018-12546).
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hookmq.model.events import Action
from hookmq.mqtt.packets import Publish
from hookmq_testing import Harness, will
from publish_rights import Rights, fetched, started
from simulator.disk import Disk

Make = Callable[..., Harness]
KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100_000}


@pytest.fixture
def rights() -> Rights:
    return Rights()


@pytest.fixture
def secured(broker_harness: Make, rights: Rights) -> Harness:
    """Return a broker that uses the plugin `rights` and has retained messages from two publishers."""
    harness = started(broker_harness, rights)
    for name in ("ann", "bob"):
        client = harness.connect(name, username=name)
        for number in range(3):
            client.publish(f"{name}/{number}", b"x", number, retain=True)
    return harness


ANN = {f"ann/{n}" for n in range(3)}
BOB = {f"bob/{n}" for n in range(3)}


@pytest.mark.parametrize("how", ["reload", "all", "client", "filter"])
@pytest.mark.parametrize("there", [False, True])
def test_a_right_that_is_taken_away(
    secured: Harness, rights: Rights, how: str, there: bool
) -> None:
    """If a publisher's permission is revoked, its messages are not sent, even if it has disconnected. They are sent
    again once the permission has been restored.
    """
    if not there:
        for client in secured.clients:
            client.disconnect()
    assert fetched(secured) == ANN | BOB

    def change() -> None:
        broker = rights.handle
        if how == "reload":
            secured.reload()
        elif how == "client":
            broker.invalidate_authz("ann")
        else:
            broker.invalidate_authz(filter="ann/#" if how == "filter" else None)
        secured.settle()

    rights.denied.add("ann")
    change()
    assert fetched(secured) == BOB
    assert secured.metrics.dropped[("denied", "out")] == 3
    rights.denied.clear()
    change()
    assert fetched(secured) == ANN | BOB


def test_each_is_asked_about_once(secured: Harness, rights: Rights) -> None:
    """After permissions may have changed, a publisher is authorized only once, however many clients subscribe. Until
    then, it is not authorized again.
    """
    rights.asked.clear()
    assert fetched(secured) == fetched(secured) == ANN | BOB
    assert rights.asked == []
    secured.reload()
    assert fetched(secured) == fetched(secured) == ANN | BOB
    assert len(rights.asked) == 6
    rights.handle.invalidate_authz("ann")
    secured.settle()
    assert fetched(secured) == ANN | BOB
    assert len(rights.asked) == 9


def test_an_answer_holds_as_long_as_it_says(broker_harness: Make, rights: Rights) -> None:
    harness = started(broker_harness, rights)
    rights.cache_for = 60.0
    harness.connect("ann").publish("t", b"x", retain=True)
    assert fetched(harness) == {"t"}
    rights.denied.add("ann")
    assert fetched(harness) == {"t"}
    harness.advance(61)
    assert fetched(harness) == set()
    rights.cache_for = 0.0
    harness.advance(61)
    rights.denied.clear()
    assert fetched(harness) == {"t"}
    rights.denied.add("ann")
    assert fetched(harness) == set()


def test_a_lower_qos_than_that_of_the_message_is_not_enough(
    secured: Harness, rights: Rights
) -> None:
    rights.max_qos = 1
    secured.reload()
    assert fetched(secured) == {"ann/0", "ann/1", "bob/0", "bob/1"}


def test_nobody_could_decide(secured: Harness, rights: Rights) -> None:
    """If no plugin can decide, the message is not sent. The publisher is authorized again on the next request."""
    rights.undecided = True
    secured.reload()
    assert fetched(secured) == set()
    rights.undecided = False
    assert fetched(secured) == ANN | BOB


def test_it_can_be_turned_off(broker_harness: Make, rights: Rights) -> None:
    harness = started(broker_harness, rights, config={"broker": {"check_retain_source": False}})
    harness.connect("ann").publish("t", b"x", retain=True)
    rights.denied.add("ann")
    harness.reload()
    assert fetched(harness) == {"t"}


def test_a_will_is_asked_about_as_a_will(broker_harness: Make, rights: Rights) -> None:
    harness = started(broker_harness, rights)
    harness.connect("ann", will=will("w", b"gone", 1, True)).drop()
    rights.asked.clear()
    harness.reload()
    assert fetched(harness) == {"w"}
    assert rights.asked == [("ann", Action.WILL, "w")]


def test_a_plugins_retained_message_has_no_publisher_to_authorize(
    broker_harness: Make, rights: Rights
) -> None:
    harness = started(broker_harness, rights)
    rights.handle.publish("t", b"x", retain=True)
    harness.settle()
    rights.asked.clear()
    harness.reload()
    assert fetched(harness) == {"t"}
    assert rights.asked == []


@pytest.mark.parametrize("denied", [False, True])
def test_after_a_restart(broker_harness: Make, denied: bool) -> None:
    """After a restart, a publisher is authorized with the identity, claims and listener that it had
    when it published.
    """
    rights = Rights()
    disk = make_disk()
    harness = started(broker_harness, rights, store=disk.open())
    for name in ("ann", "bob"):
        client = harness.connect(f"{name}-client", username=name)
        for number in range(3):
            client.publish(f"{name}/{number}", b"x", number, retain=True)
    assert len(disk.image.publishers) == 2
    if denied:
        rights.denied.add("ann")
    harness.restart(store=disk.open())
    assert fetched(harness) == (BOB if denied else ANN | BOB)
    assert len(rights.asked) == 12
    assert len(harness.broker.state.publishers) == 2


def make_disk() -> Disk:
    """Return a disk without faults."""

    def complain(kind: str, text: str) -> None:
        raise AssertionError(f"{kind}: {text}")

    return Disk(None, Random(1), 0.0, 0.0, complain)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 100])
def test_an_answer_that_comes_later(broker_harness: Make, count: int) -> None:
    """Many publishers may be authorized at the same time. Subscribers that wait for the same decision all receive the
    message together.
    """
    rights = Rights(late=True)
    harness = started(broker_harness, rights)
    client = harness.connect("ann")
    for number in range(count):
        client.publish(f"t/{number}", b"x", 1, retain=True)
    client.publish("none", b"x", 1, retain=True)
    harness.advance(10)
    rights.asked.clear()
    harness.reload()
    readers = [harness.connect(f"r{n}") for n in range(3)]
    for reader in readers:
        reader.send_subscribe("t/#", 1)
    harness.advance(0.01 * (count // 32 + 3))
    for reader in readers:
        topics = [p.topic for p in reader.unread if isinstance(p, Publish)]
        assert sorted(topics) == sorted(f"t/{n}" for n in range(count))
        assert harness.broker.sessions[reader.client_id].backlog is None
    assert len(rights.asked) == count
    rights.denied.add("ann")
    harness.reload()
    assert fetched(harness) == set()


def test_changes_while_an_answer_is_awaited(broker_harness: Make) -> None:
    """While a decision is awaited, messages may be cleared or replaced, and subscribers may leave. Nothing wrong is
    sent, and nothing waits forever.
    """
    rights = Rights(late=True)
    harness = started(broker_harness, rights)
    client = harness.connect("ann")
    for topic in ("cleared", "replaced", "stays"):
        client.publish(topic, b"old", retain=True)
        harness.advance(1)
    harness.reload()
    rights.gate = harness.clock.event()
    reader, leaver, changer = (harness.connect(name) for name in ("reader", "leaver", "changer"))
    for one in (reader, leaver, changer):
        one.send_subscribe("#")
    leaver.drop()
    changer.send_subscribe("#", 1, retain_handling=2)
    assert not [p for p in reader.unread if isinstance(p, Publish)]
    rights.handle.publish("cleared", b"", retain=True)
    rights.handle.publish("replaced", b"new", retain=True)
    harness.settle()
    rights.gate.set()
    harness.settle()
    found = [(p.topic, p.payload, p.retain) for p in reader.unread if isinstance(p, Publish)]
    assert sorted(found) == [
        ("cleared", b"", False),
        ("replaced", b"new", False),
        ("stays", b"old", True),
    ]
    assert not [p for p in changer.unread if isinstance(p, Publish) and p.retain]
    assert harness.broker.sessions["reader"].backlog is None


# -- what it costs
