"""Test how a connection reads packets. Packets may be split anywhere, may have to wait for a decision, and are checked
against limits before they are read.
"""

from collections.abc import Callable

import pytest
from hookmq.hooks.verdicts import Accept, Allow, Deny
from hookmq.model.client import Scope
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrel,
    Subscribe,
    SubscribeRequest,
)
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookRecorder, MemoryClient, will

Make = Callable[..., Harness]


VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_connect", "on_auth_failed", "on_session", "on_disconnect")


def pipeline(client: MemoryClient, version: int) -> None:
    client.send(
        Connect("c", version, True, 0),
        Subscribe(1, (SubscribeRequest("a", 1),)),
        Publish("a", b"1", 1, packet_id=1),
        Publish("a", b"2", 1, packet_id=2),
        Pingreq(),
    )


@VERSIONS
def test_packets_behind_connect(harness: Harness, version: int) -> None:
    # Edge case 14 [MQTT-3.1.4-5]
    client = harness.open(version)
    pipeline(client, version)
    assert isinstance(client.next(), Connack)
    assert [message.payload for message in client.messages] == [b"1", b"2"]
    client.expect(Pingresp)


@VERSIONS
def test_packets_behind_connect_wait_for_the_decision(
    broker_harness: Make, recorder: HookRecorder, version: int
) -> None:
    harness = broker_harness([recorder])
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client = harness.open(version)
    pipeline(client, version)
    client.expect_nothing()
    verdict.set(Accept())
    harness.settle()
    assert isinstance(client.next(), Connack)
    assert [message.payload for message in client.messages] == [b"1", b"2"]
    client.expect(Pingresp)


@VERSIONS
def test_packets_behind_connect_wait_for_the_will(broker_harness: Make, version: int) -> None:
    recorder = HookRecorder("authorize")
    harness = broker_harness([recorder])
    verdict = harness.clock.event()
    recorder.answer("authorize", verdict, Allow())
    client = harness.open(version)
    client.send(
        Connect("c", version, True, 0, will=will("w")),
        Publish("a", b"x", 1, packet_id=1),
        Pingreq(),
    )
    client.expect_nothing()
    verdict.set(Allow())
    assert client.expect(Connack).code == 0
    assert client.expect(Puback).packet_id == 1
    client.expect(Pingresp)
    recorder.answer("authorize", harness.clock.event())
    leaving = harness.connect("d", version, will=will("w"), expect=None)
    assert harness.clock.tasks
    leaving.drop()
    assert not harness.clock.tasks


@VERSIONS
@pytest.mark.parametrize("later", [False, True])
def test_packets_behind_a_refused_connect_have_no_effect(
    broker_harness: Make, recorder: HookRecorder, version: int, later: bool
) -> None:
    # [MQTT-3.1.4-6]
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("a")
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict if later else Deny())
    client = harness.open(version)
    pipeline(client, version)
    client.send(Publish("a", b"retained", retain=True))
    verdict.set(Deny())
    assert client.expect(Connack).code != 0
    client.expect_closed()
    watcher.expect_nothing()
    assert not len(harness.broker.state.retained)
    assert harness.metrics.messages_received == 0


def test_disconnect_behind_connect(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client = harness.open()
    client.send(
        Connect("c", 5, True, 0, will=will("will", b"x")),
        Publish("a", b"1", 1, packet_id=1),
        Disconnect(),
    )
    verdict.set(Accept())
    watcher.expect_message("a", b"1")
    watcher.expect_nothing()
    assert client.closed
    assert "c" not in harness.broker.sessions


def test_reading_stops_while_too_much_waits(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder], config={"broker": {"max_held_inbound_bytes": 1024}})
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client = harness.connect("c", expect=None)
    for number in range(10):
        client.send(Publish("a", b"%d" % number + b"x" * 200))
    assert not client.wire.reading
    assert not client.closed
    verdict.set(Accept())
    assert client.expect(Connack).code == 0
    assert client.wire.reading
    assert harness.metrics.messages_received == 10


def test_reading_stops_before_a_large_packet_while_a_plugin_decides(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    harness = broker_harness([recorder])
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client = harness.connect("c", scope=Scope(connect_bytes=200), expect=None)
    packet = encode(Publish("a", b"x" * 300), 5)
    client.raw(packet[:100])
    assert not client.wire.reading
    client.raw(packet[100:])
    verdict.set(Accept())
    assert client.expect(Connack).code == 0
    assert client.wire.reading
    assert harness.metrics.messages_received == 1


def test_a_client_that_is_not_read_for_too_long_is_disconnected(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    config = {"broker": {"hold_timeout": 3.0}}
    harness = broker_harness([recorder], config=config)
    recorder.answer("on_connect", harness.clock.event())
    client = harness.connect("c", scope=Scope(connect_bytes=200), expect=None)
    client.raw(encode(Publish("a", b"x" * 300), 5)[:100])
    harness.advance(3.1)
    assert client.expect(Connack).code == ReasonCode.SERVER_BUSY
    client.expect_closed()
    assert not harness.clock.tasks


def test_a_protocol_error_behind_connect_ends_the_wait(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("a")
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client = harness.open()
    client.send(Connect("c", 5, True, 0), Publish("a", b"1"), Connect("c", 5, True, 0))
    assert client.expect(Connack).code == ReasonCode.PROTOCOL_ERROR
    client.expect_closed()
    verdict.set(Accept())
    watcher.expect_nothing()
    assert list(harness.broker.sessions) == ["watcher"]


def test_messages_above_the_clients_packet_size_are_dropped(harness: Harness) -> None:
    # Edge case 20: exactly the limit is allowed
    client = harness.connect("c", maximum_packet_size=64)
    client.subscribe("a")
    other = harness.connect("d")
    fits = 64 - len(encode(Publish("a", b""), 5))
    other.publish("a", b"x" * fits)
    client.expect_message("a", b"x" * fits)
    other.publish("a", b"x" * (fits + 1))
    client.expect_nothing()
    assert harness.metrics.dropped == {("too_large", "out"): 1}


@VERSIONS
def test_packets_over_our_size_are_refused_by_their_header(
    broker_harness: Make, version: int
) -> None:
    # Edge case 21 [MQTT-3.2.2-15]; a packet of exactly that size is accepted
    harness = broker_harness(config={"broker": {"max_packet_size": 256}})
    client = harness.connect("c", version)
    client.subscribe("a")
    size = len(encode(Publish("a", b"x" * 200), version))
    client.publish("a", b"x" * (200 + 256 - size))
    client.expect_message("a")
    client.raw(b"\x30\xfe\x01")  # announces 257 bytes, of which three have arrived
    client.expect_disconnect(ReasonCode.PACKET_TOO_LARGE)


def test_connect_may_come_byte_by_byte(harness: Harness) -> None:
    client = harness.open()
    for byte in encode(Connect("c", 5, True, 0, will=will("t", b"x" * 300)), 5):
        client.raw(bytes((byte,)))
    assert client.expect(Connack).code == 0


@pytest.mark.parametrize("size", [3, 7, 64])
def test_a_conversation_in_any_segments(harness: Harness, size: int) -> None:
    # Automatic acknowledgements would come between two segments.
    client = harness.open(auto_ack=False)
    packets = (
        Connect("c", 5, True, 0),
        Subscribe(1, (SubscribeRequest("a", 2),)),
        Publish("a", b"x" * 300, 0),
        Publish("a", b"y", 1, packet_id=1),
        Publish("a", b"z" * 200, 2, packet_id=2),
        Pubrel(2),
        Pingreq(),
    )
    data = b"".join(encode(packet, 5) for packet in packets)
    for start in range(0, len(data), size):
        client.raw(data[start : start + size])
    assert [message.payload[:1] for message in client.messages] == [b"x", b"y", b"z"]
    client.expect(Pingresp)
    assert client.expect(Pubcomp).code == 0


def test_few_bytes_are_taken_before_connect(harness: Harness) -> None:
    scope = Scope(connect_bytes=100)
    client = harness.open(scope=scope)
    client.raw(b"\x10\xc8\x01")  # announces 203 bytes
    client.expect_closed()
    client = harness.open(scope=scope)
    client.raw(encode(Connect("c" * 60, 5, True, 0), 5))
    assert client.expect(Connack).code == 0


def test_the_bound_before_connect_is_lifted_after_it(harness: Harness) -> None:
    client = harness.connect("c", scope=Scope(connect_bytes=100))
    client.subscribe("a")
    client.publish("a", b"x" * 1000)
    client.expect_message("a", b"x" * 1000)


EVERY_VERSION = (3, 4, 5)


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize("size", [255, 256, 257])
def test_the_largest_packet(broker_harness: Make, version: int, size: int) -> None:
    """[MQTT-3.2.2-15], edge cases 20 and 21: a packet of exactly the maximum size is accepted."""
    harness = broker_harness(config={"broker": {"max_packet_size": 256}})
    client = harness.connect("c", version)
    client.subscribe("t")
    data = encode(Publish("t", b"x" * (size - 6 - (version == 5))), version)
    assert len(data) == size
    client.raw(data)
    if size > 256:
        client.expect_disconnect(ReasonCode.PACKET_TOO_LARGE)
        return
    client.raw(data)
    assert len(client.messages) == 2


def test_too_large_is_known_from_the_header(broker_harness: Make) -> None:
    """[MQTT-3.2.2-15] The broker refuses an oversized packet as soon as it has read the header, before the body
    arrives.
    """
    harness = broker_harness(config={"broker": {"max_packet_size": 256}})
    for data in (b"\x30\xfe\x01", b"\x30\xff\xff\xff\x7f"):
        client = harness.connect("c")
        client.raw(data)
        client.expect_disconnect(ReasonCode.PACKET_TOO_LARGE)
    client = harness.connect("c")
    client.raw(b"\x30\xfd\x01")  # 256 bytes with its header
    client.expect_nothing()
