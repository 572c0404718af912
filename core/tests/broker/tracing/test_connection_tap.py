"""Test that a connection behaves the same while it is traced, and that ending the trace restores it."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.packet_reader import PacketReader
from hookmq.hooks.traces import TraceRequest
from hookmq.mqtt.packets import Pingreq, Puback, Publish
from hookmq.mqtt.properties import Properties
from hookmq.plugin import Allow, Trace
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]
NAMES = ("table", "wire", "on_end", "chains", "shortcuts")


@pytest.fixture
def harness(broker_harness: Make) -> Harness:
    plugin = HookRecorder("authorize", "on_publish", "on_deliver", id="p")
    plugin.answer("authorize", Allow())
    return broker_harness(plugins=[plugin])


def start(harness: Harness, **wanted: Any) -> Trace:
    return harness.handle("p").trace(TraceRequest(**wanted))


def events(harness: Harness, trace: Trace) -> list[tuple[str, str, str | None]]:
    """Stop a trace, and return its events as tuples (kind, name, topic)."""
    trace.stop()
    found: list[tuple[str, str, str | None]] = []

    async def read() -> None:
        found.extend([(one.kind, one.name, one.topic) async for one in trace])

    harness.clock.spawn(read(), lambda *_: None)
    harness.settle()
    return found


def connection_of(harness: Harness, client_id: str) -> PacketReader:
    found = harness.broker.sessions[client_id].connection
    assert isinstance(found, PacketReader)
    return found


def test_an_open_connection_is_restored(harness: Harness) -> None:
    client, other = harness.connect("a"), harness.connect("b")
    other.subscribe("t", qos=1)
    client.publish("t", b"", 1)
    client.publish("t", b"", 1)
    mine, theirs = connection_of(harness, "a"), connection_of(harness, "b")
    before = [getattr(mine, name) for name in NAMES]
    untouched = [getattr(theirs, name) for name in NAMES]
    assert mine.memo
    trace = start(harness, client_id="a")
    assert not mine.memo
    assert not mine.shortcuts
    client.publish("t", b"", 1)
    assert [getattr(theirs, name) for name in NAMES] == untouched
    trace.stop()
    assert [getattr(mine, name) for name in NAMES] == before
    assert not mine.memo
    client.publish("t", b"", 1)
    assert mine.memo


@pytest.mark.parametrize("version", [4, 5])
def test_packets_and_calls_in_order(harness: Harness, version: int) -> None:
    client, sub = harness.connect("a", version), harness.connect("b", version)
    sub.subscribe("t", qos=1)
    trace = start(harness, client_id="a")
    client.publish("t", b"x", 1)
    client.ping()
    assert events(harness, trace) == [
        ("received", "PUBLISH", "t"), ("hook", "authorize", "t"), ("hook", "on_publish", "t"),
        ("route", "published", "t"), ("sent", "PUBACK", None), ("received", "PINGREQ", None), ("sent", "PINGRESP", None),
    ]  # fmt: skip
    assert sub.expect_message("t").payload == b"x"


def test_deliveries_that_others_forward_unchanged_are_reported(harness: Harness) -> None:
    client, sub = harness.connect("a"), harness.connect("b")
    sub.subscribe("t", qos=1)
    for _ in range(2):  # from the second one on, the fast path forwards the publisher's bytes
        client.publish("t", b"x", 1)
        sub.expect_message("t")
    trace = start(harness, client_id="b")
    client.publish("t", b"x", 1)
    sub.expect_message("t")
    assert events(harness, trace) == [
        ("hook", "on_deliver", "t"), ("sent", "PUBLISH", "t"), ("received", "PUBACK", None),
    ]  # fmt: skip
    client.publish("t", b"y", 1)
    sub.expect_message("t")
    assert not connection_of(harness, "b").session.inflight  # type: ignore[union-attr]


def test_aliases_are_resolved(harness: Harness) -> None:
    client = harness.connect("a")
    trace = start(harness, client_id="a")
    client.send(Publish("t", b"", properties=Properties(topic_alias=1)))
    client.send(Publish("", b"", properties=Properties(topic_alias=1)))
    found = [one for one in events(harness, trace) if one[1] == "PUBLISH"]
    assert found == [("received", "PUBLISH", "t")] * 2


def test_the_end_of_a_connection_is_reported(harness: Harness) -> None:
    client = harness.connect("a")
    trace = start(harness, client_id="a")
    client.send(Puback(99))
    client.send(Pingreq())
    client.raw(b"\x32\x00")
    found = events(harness, trace)
    assert [name for _, name, _ in found][-2:] == ["DISCONNECT", "closed"]


def test_a_protocol_error_of_a_handler_is_reported(harness: Harness) -> None:
    client = harness.connect("a")
    trace = start(harness, client_id="a")
    client.send(Publish("", b"", properties=Properties(topic_alias=9)))
    assert ("event", "protocol_error", None) in events(harness, trace)


def test_two_traces_of_one_client(harness: Harness) -> None:
    client = harness.connect("a")
    before = [getattr(connection_of(harness, "a"), name) for name in NAMES]
    first, second = start(harness, client_id="a"), start(harness, client_id="a", filter="t/#")
    client.ping()
    client.publish("t/1")
    assert [one[1] for one in events(harness, first)][:2] == ["PINGREQ", "PINGRESP"]
    client.publish("t/2")
    found = [one for one in events(harness, second) if one[0] == "received"]
    assert found == [("received", "PUBLISH", "t/1"), ("received", "PUBLISH", "t/2")]
    assert [getattr(connection_of(harness, "a"), name) for name in NAMES] == before
