"""Test the in-memory client and its wire: packets sent and expected, and the text of failures."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hookmq.mqtt_api import (
    Connack,
    PacketType,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrel,
    Subscribe,
    SubscribeRequest,
)
from hookmq.plugin import Peer, ReasonCode, Scope
from hookmq_testing import Harness, MemoryClient, SlowStore, will

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


def fails(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(AssertionError) as failed:
        call()
    text = str(failed.value)
    for word in words:
        assert word in text


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_conversation(harness: Harness, version: int, qos: int) -> None:
    one, two = (harness.connect(name, version) for name in "ab")
    assert two.subscribe("t/+", 2).codes == (2,)
    packet_id = one.publish("t/x", b"hello", qos, expect=0)
    assert bool(packet_id) is bool(qos)
    message = two.expect_message("t/x", b"hello", qos, retain=False, dup=False)
    assert bool(message.packet_id) is bool(qos)
    one.expect_nothing()
    two.expect_nothing()
    assert len(two.unsubscribe(["t/+", "u"]).codes) == (2 if version == 5 else 0)
    one.ping()
    one.disconnect()
    assert one.closed
    assert not two.closed


def test_connect_has_the_given_fields(harness: Harness) -> None:
    scope = Scope("tls", mount_point="m/")
    peer = Peer("203.0.113.9", 7, "tls")
    client = harness.connect(
        "c", 5, False, 9, "u", b"p", will("w", b"x", 1, True, 3), {"receive_maximum": 5},
        scope=scope, peer=peer, session_expiry_interval=60,
    )  # fmt: skip
    found = harness.broker.sessions["c"]
    assert (found.client.username, found.client.keep_alive) == ("u", 9)
    assert (found.client.peer, found.client.scope) == (peer, scope)
    assert (found.window, found.expiry) == (5, 60)
    assert found.will is not None
    assert (found.will.message.topic, found.will.delay) == ("m/w", 3)
    assert (client.client_id, client.version, client.session_present) == ("c", 5, False)


def test_several_filters(harness: Harness) -> None:
    client = harness.connect("c")
    codes = client.subscribe(["a", ("b", 2), SubscribeRequest("c", 0)], 1).codes
    assert codes == (1, 2, 0)
    assert set(harness.broker.sessions["c"].subscriptions) == {"a", "b", "c"}


def test_acknowledging_by_hand(harness: Harness) -> None:
    client = harness.connect("c", auto_ack=False)
    client.subscribe("a", 2)
    other = harness.connect("d", auto_ack=False)
    assert other.publish("a", b"x", 2, expect=0) == 1
    message = client.expect_message("a", b"x", 2)
    client.expect_nothing()
    assert len(harness.broker.sessions["c"].inflight) == 1
    client.ack(message)
    assert client.expect(PacketType.PUBREL).packet_id == message.packet_id
    client.send(Pubcomp(message.packet_id))
    assert not harness.broker.sessions["c"].inflight
    other.publish("a", b"y", 1)
    message = client.expect_message()
    client.ack(message, 0x80)
    assert not harness.broker.sessions["c"].inflight


def test_packet_ids_go_round(harness: Harness) -> None:
    client = harness.connect("c")
    client._packet_id = 65534
    assert [client.next_packet_id() for _ in range(3)] == [65535, 1, 2]


def test_order_and_kinds(harness: Harness) -> None:
    client = harness.connect("c")
    client.subscribe("a")
    client.publish("a", b"x", 1)
    client.send(Pingreq())
    assert [type(client.next()).__name__ for _ in range(3)] == ["Publish", "Puback", "Pingresp"]
    fails(client.next, "expected a packet")
    kinds = [type(packet) for packet in client.received]
    assert kinds[0] is Connack
    assert client.raw_received.startswith(b"\x20")


def test_aliases_are_resolved(harness: Harness) -> None:
    client = harness.connect("c", topic_alias_maximum=5)
    client.subscribe("long/topic")
    other = harness.connect("d")
    for number in range(4):
        other.publish("long/topic", b"%d" % number)
        client.expect_message("long/topic", b"%d" % number)
    assert {message.topic for message in client.messages} == {"long/topic"}
    assert client.raw_received.count(b"long/topic") < 4


# --- failures -----------------------------------------------------------------------------------------------------------


def test_failures_show_what_came_instead(harness: Harness) -> None:
    client = harness.connect("c")
    client.subscribe("a")
    client.publish("a", b"payload", 0, content_type="text")
    fails(client.expect_nothing, "expected nothing", "b'payload'", "content_type: 'text'")
    fails(lambda: client.expect(Pubrel), "expected PUBREL", "b'payload'")
    fails(lambda: client.expect_message("b"), "topic 'b'", "topic='a'")
    fails(lambda: client.expect_message("a"), "expected PUBLISH", "unread: nothing", "'c' (v5)")
    fails(client.expect_closed, "closed connection")
    fails(client.expect_disconnect, "expected DISCONNECT")
    fails(lambda: client.publish("x", qos=1, expect=0), "0x00 (success)", "0x10 (no matching")
    fails(lambda: harness.connect("", 3), "expected code 0x00", "0x02", "log: ")


def test_failures_of_messages(harness: Harness) -> None:
    client = harness.connect("c")
    client.subscribe("a", 1)
    others: tuple[dict[str, Any], ...] = (
        {"payload": b"y"}, {"qos": 1}, {"retain": True}, {"dup": True},
    )  # fmt: skip
    for expected in others:
        client.publish("a", b"x")
        fails(partial(client.expect_message, "a", **expected), next(iter(expected)))


def test_an_end_that_is_not_the_expected_one(harness: Harness) -> None:
    client = harness.connect("c")
    client.send_connect()
    fails(lambda: client.expect_disconnect(ReasonCode.BANNED), "0x8A", "0x82", "connection: closed")
    fails(client.expect_nothing, "an open connection")
    other = harness.connect("d")
    other.send_connect()
    fails(other.expect_closed, "without packets", "Disconnect")
    old = harness.connect("e", 4)
    fails(old.expect_disconnect, "closed connection")
    old.send_connect()
    assert old.expect_disconnect(ReasonCode.BANNED) is None


def test_no_suback(harness: Harness) -> None:
    client = harness.connect("c")
    client.send(Subscribe(7, (SubscribeRequest("a", 0),)))
    fails(lambda: client.subscribe("a"), "expected SUBACK 1", "packet_id=7")


def test_a_broker_that_breaks_the_protocol(harness: Harness) -> None:
    client = harness.connect("c")
    client.wire.write(b"\xc0\x00")
    fails(harness.settle, "violated MQTT")
    client = harness.connect("d")
    client.wire.write(b"\x30\x06\x00\x00\x03\x23\x00\x09")
    fails(harness.settle, "topic alias 9")


# --- connections --------------------------------------------------------------------------------------------------------


def test_reconnect(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=60, username="u")
    client.subscribe("a", 1)
    first = client.wire
    assert client.reconnect() is client
    assert client.wire is not first
    assert first.closed
    assert client.session_present
    client.reconnect(clean_start=True, receive_maximum=3, keep_alive=7)
    session = harness.broker.sessions["c"]
    assert not client.session_present
    assert (session.window, session.client.keep_alive, session.client.username) == (3, 7, "u")
    client.reconnect(session_expiry_interval=None, scope=Scope("other"), auto_ack=False)
    assert harness.broker.sessions["c"].client.listener == "other"
    assert client.connack is not None
    assert len([packet for packet in client.received if isinstance(packet, Connack)]) == 4
    fails(lambda: client.reconnect(expect=0x87), "0x87")


def test_dropping_is_no_goodbye(harness: Harness) -> None:
    watcher = harness.connect("watcher")
    watcher.subscribe("w")
    client = harness.connect("c", will=will("w"))
    client.drop("cable")
    watcher.expect_message("w")
    assert client.closed
    assert harness.logged("client.disconnected")[0]["error"] == "cable"


def test_packets_sent_before_a_drop_arrive(harness: Harness) -> None:
    watcher = harness.connect("watcher")
    watcher.subscribe("a")
    client = harness.connect("c")
    with harness.together():
        client.publish("a", b"last")
        client.drop()
    watcher.expect_message("a", b"last")


def test_raw_bytes(harness: Harness) -> None:
    client = harness.open(version=4)
    client.raw(b"\x10\x0d\x00\x04MQTT")
    client.expect_nothing()
    client.raw(b"\x04\x02\x00\x00\x00\x01c")
    client.expect(Connack)
    assert client.raw_received == b"\x20\x02\x00\x00"
    assert client.connection.client is not None


def test_a_refusal_leaves_the_connection_closed(harness: Harness) -> None:
    client = harness.connect("", 3, expect=2)
    assert client.closed
    assert client.connack is not None


# --- the wire -----------------------------------------------------------------------------------------------------------


def slow_reader(harness: Harness) -> tuple[MemoryClient, MemoryClient]:
    client = harness.connect("slow", high_water=1000)
    client.subscribe("a", 1)
    client.pause()
    return client, harness.connect("fast")


def test_a_slow_reader(harness: Harness) -> None:
    client, other = slow_reader(harness)
    for number in range(10):
        other.publish("a", b"%d" % number * 300, 1, expect=0)
    assert client.wire.paused
    assert 1000 < client.wire.unsent < 3000
    assert not client.messages
    assert len(harness.broker.sessions["slow"].queue or ()) > 0
    client.resume()
    assert [message.payload[:1] for message in client.messages] == [b"%d" % n for n in range(10)]
    assert not client.wire.paused
    assert client.wire.unsent == 0


def test_a_broker_that_does_not_read(harness: Harness) -> None:
    client = harness.connect("c")
    client.wire.pause_reading()
    client.send(Pingreq())
    client.expect_nothing()
    client.wire.resume_reading()
    client.expect(PacketType.PINGRESP)


def test_writes_know_their_turn(harness: Harness) -> None:
    client = harness.connect("c")
    client.send(Pingreq(), Pingreq())
    client.send(Pingreq())
    first, second, third = client.wire.writes
    assert (second.data, third.data) == (b"\xd0\x00\xd0\x00", b"\xd0\x00")
    assert first.turn < second.turn < third.turn


def test_closing_sends_what_was_written_and_aborting_does_not(harness: Harness) -> None:
    one, two = harness.connect("a"), harness.connect("b")
    for client in (one, two):
        client.wire.block()
        client.wire.write(b"\xd0\x00")
    one.wire.close()
    two.wire.abort()
    harness.settle()
    assert (one.wire.closed, two.wire.closed) == (False, True)
    for client in (one, two):
        client.wire.write(b"\xd0\x00")
        client.wire.unblock()
    assert one.closed
    assert len(one.received) == 2
    assert len(two.received) == 1


def test_slow_store_and_client(broker_harness: Callable[..., Harness]) -> None:
    store = SlowStore()
    harness = broker_harness(store=store)
    client = harness.connect("c", session_expiry_interval=9, expect=None)
    client.send_subscribe("a", 1)
    client.expect_nothing()
    store.finish()
    client.expect(Connack)
    store.finish()
    client.expect(PacketType.SUBACK)
    other = harness.connect("d")
    other.publish("a", b"x", 1)
    other.expect_nothing()
    store.finish()
    assert other.expect(Puback).code == 0
    assert isinstance(client.expect_message("a"), Publish)
    store.slow = False
