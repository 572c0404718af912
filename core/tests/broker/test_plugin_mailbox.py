"""Test deliveries to a plugin client. They arrive over several turns and within limits, whatever the plugin's functions
do.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.plugin import (
    ClientHandle,
    ClientRequest,
    Delivery,
    DisconnectReason,
    ReasonCode,
)
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


@pytest.fixture
def harness(broker_harness: Make) -> Harness:
    return broker_harness([HookRecorder("on_event", id="gw")])


def connect(harness: Harness, client_id: str, **fields: Any) -> ClientHandle:
    client: ClientHandle = harness.clock.run(
        harness.handle("gw").connect(ClientRequest(client_id, **fields))
    )
    return client


def payloads(got: list[Delivery]) -> list[bytes]:
    return [one.message.payload for one in got]


def test_messages_wait_for_on_message(harness: Harness) -> None:
    client = connect(harness, "c")
    harness.clock.run(client.subscribe("a", 1))
    harness.connect("publisher").publish("a", b"early", 1)
    harness.settle()
    got: list[Delivery] = []
    client.on_message = got.append
    harness.settle()
    assert payloads(got) == [b"early"]


def test_a_client_nobody_reads_is_bounded(broker_harness: Make) -> None:
    config = {"broker": {"max_write_buffer": 4096}, "session": {"queue_messages": 3}}
    harness = broker_harness([HookRecorder("on_event", id="gw")], config=config)
    client = connect(harness, "c")
    harness.clock.run(client.subscribe("a"))
    publisher = harness.connect("publisher")
    for _ in range(100):
        publisher.publish("a", bytes(1000))
    harness.settle()
    dropped = sum(harness.metrics.dropped.values())
    assert 90 <= dropped < 100
    got: list[Delivery] = []
    client.on_message = got.append
    harness.settle()
    assert len(got) == 100 - dropped
    publisher.publish("a", b"next")
    harness.settle()
    assert payloads(got)[-1] == b"next"


def test_on_message_that_fails_is_logged_and_takes_the_next(harness: Harness) -> None:
    client = connect(harness, "c")
    harness.clock.run(client.subscribe("a", 1))
    got: list[Delivery] = []

    def fail(one: Delivery) -> None:
        got.append(one)
        if len(got) == 1:
            raise ValueError("no such device")
        one.acknowledge()

    client.on_message = fail
    publisher = harness.connect("publisher")
    publisher.publish("a", b"1", 1)
    publisher.publish("a", b"2", 1)
    harness.settle()
    assert payloads(got) == [b"1", b"2"]
    (logged,) = harness.logged("plugin.failed")
    assert (logged["plugin"], logged["hook"]) == ("gw", "client")
    assert "no such device" in str(logged["error"])
    assert len(harness.broker.sessions["c"].inflight) == 1, "the first is not acknowledged"


def test_no_client_delays_the_others(harness: Harness) -> None:
    """Many messages for one client are delivered over several turns, so that no client delays the
    others.
    """
    client = connect(harness, "c")
    harness.clock.run(client.subscribe("a"))
    turns: list[int] = []
    client.on_message = lambda one: turns.append(harness.clock.turns)
    with harness.together():
        publisher = harness.connect("publisher", expect=None)
        for _ in range(1000):
            publisher.publish("a", b"")
    assert len(turns) == 1000
    assert max(turns.count(turn) for turn in set(turns)) <= 256


def test_on_message_may_publish_to_itself(harness: Harness) -> None:
    """A client may publish to itself in `on_message`. This neither deepens the call stack nor makes a turn endless."""
    client = connect(harness, "c")
    harness.clock.run(client.subscribe("a", 1))
    count = 0

    def again(one: Delivery) -> None:
        nonlocal count
        count += 1
        one.acknowledge()
        if count < 5000:
            client.publish_later("a", b"", 1)

    client.on_message = again
    client.publish_later("a", b"", 1)
    harness.settle()
    assert count == 5000


def test_pause_takes_effect_at_once(harness: Harness) -> None:
    client = connect(harness, "c")
    harness.clock.run(client.subscribe("a"))
    got: list[Delivery] = []

    def take(one: Delivery) -> None:
        got.append(one)
        client.pause()

    client.on_message = take
    publisher = harness.connect("publisher")
    with harness.together():
        for number in range(3):
            publisher.publish("a", b"%d" % number)
    assert payloads(got) == [b"0"]
    client.resume()
    harness.settle()
    assert payloads(got) == [b"0", b"1"]


def test_an_end_is_told_late_too(harness: Harness) -> None:
    client = connect(harness, "c")
    client.disconnect()
    harness.settle()
    ended: list[DisconnectReason] = []
    client.on_end = ended.append
    harness.settle()
    assert [(one.code, one.by, one.will) for one in ended] == [
        (ReasonCode.SUCCESS, "client", False)
    ]


def test_on_end_that_fails_is_logged(harness: Harness) -> None:
    client = connect(harness, "c")

    def fail(reason: DisconnectReason) -> None:
        raise ValueError("no such device")

    client.on_end = fail
    client.disconnect()
    harness.settle()
    assert "on_end" in str(harness.logged("plugin.failed")[0]["error"])


def test_messages_that_had_arrived_are_still_read(harness: Harness) -> None:
    """Messages that arrived before the client ended can still be read, like data on a socket whose other end has
    closed.
    """
    client = connect(harness, "c")
    harness.clock.run(client.subscribe("a"))
    harness.connect("publisher").publish("a", b"x")
    harness.settle()
    harness.handle("gw").disconnect("c")
    harness.settle()
    got: list[Delivery] = []
    client.on_message = got.append
    harness.settle()
    assert payloads(got) == [b"x"]
