"""Test the time limits of a connection: keep alive, and the deadline for CONNECT."""

from collections.abc import Callable

import pytest
from hookmq.hooks.verdicts import Accept
from hookmq.model.client import Scope
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookRecorder, MemoryClient, will

Make = Callable[..., Harness]


VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


def connack(client: MemoryClient) -> Properties:
    assert client.connack is not None
    return client.connack.properties


@VERSIONS
def test_keep_alive(harness: Harness, version: int) -> None:
    # Edge case 13 [MQTT-3.1.2-22] [MQTT311-3.1.2-24]
    watcher = harness.connect("watcher")
    watcher.subscribe("will")
    client = harness.connect("c", version, keep_alive=10, will=will("will", b"gone"))
    harness.advance(14.9)
    client.expect_nothing()
    harness.advance(0.2)
    client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)
    watcher.expect_message("will", b"gone")
    assert harness.metrics.keep_alive_timeouts == 1


@pytest.mark.parametrize("seconds", [1, 6, 7, 8, 600])
def test_one_deadline_serves_connect_and_keep_alive(harness: Harness, seconds: int) -> None:
    """CONNECT and keep alive share one deadline. The keep alive limit disconnects the client, whether it is shorter or
    longer than the ten seconds allowed for CONNECT.
    """
    before = len(harness.broker.state.deadlines)
    client = harness.connect("c", keep_alive=seconds)
    assert len(harness.broker.state.deadlines) == before + 1
    harness.advance(seconds * 1.5 - 0.05)
    client.expect_nothing()
    assert len(harness.broker.state.deadlines) == before + 1
    harness.advance(0.1)
    client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)
    assert len(harness.broker.state.deadlines) == before


def test_no_keep_alive(harness: Harness) -> None:
    client = harness.connect("c", keep_alive=0)
    harness.advance(1e6)
    client.ping()


@pytest.mark.parametrize(
    "packet",
    [
        Pingreq(),
        Publish("a", b"x"),
        Publish("a", b"x", 1, packet_id=1),
        Publish("a", b"x", 2, packet_id=2),
        Puback(9),
        Pubrec(9),
        Pubrel(9),
        Pubcomp(9),
        Subscribe(1, (SubscribeRequest("b", 0),)),
        Unsubscribe(1, ("b",)),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_any_packet_keeps_alive(harness: Harness, packet: Packet) -> None:
    client = harness.connect("c", keep_alive=10)
    for _ in range(5):
        harness.advance(14)
        client.send(packet)
        if isinstance(packet, Publish) and packet.qos == 2:
            client.send(Pubrel(2))
    assert not client.closed
    harness.advance(15.1)
    client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)


def test_part_of_a_packet_does_not_keep_alive(harness: Harness) -> None:
    client = harness.connect("c", keep_alive=10)
    harness.advance(10)
    client.raw(b"\x30\x10\x00\x01")
    harness.advance(4)
    client.raw(b"a")
    harness.advance(1.1)
    client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)


def test_packets_of_the_broker_do_not_count_as_keep_alive(harness: Harness) -> None:
    client = harness.connect("c", keep_alive=10)
    client.subscribe("a")
    other = harness.connect("d")
    harness.advance(14)
    other.publish("a")
    client.expect_message("a")
    harness.advance(1.1)
    client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)


@pytest.mark.parametrize(
    ("asked", "settings", "told", "enforced"),
    [
        (0, {"server_keep_alive": 20}, 20, 30),
        (10, {"server_keep_alive": 20}, 20, 30),
        (100, {"server_keep_alive": 20}, 20, 30),
        (0, {"max_keep_alive": 60}, 60, 90),
        (61, {"max_keep_alive": 60}, 60, 90),
        (60, {"max_keep_alive": 60}, None, 90),
        (10, {"max_keep_alive": 60}, None, 15),
        (65535, {}, None, 98302.5),
    ],
)
def test_the_brokers_keep_alive_is_enforced(
    broker_harness: Make,
    asked: int,
    settings: dict[str, int],
    told: int | None,
    enforced: float,
) -> None:
    # [MQTT-3.2.2-21, 3.2.2-22]
    harness = broker_harness(config={"broker": settings})
    client = harness.connect("c", keep_alive=asked)
    assert connack(client).server_keep_alive == told
    harness.advance(enforced - 0.1)
    client.expect_nothing()
    harness.advance(0.2)
    client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)


def test_3_1_1_cannot_be_told_a_keep_alive(broker_harness: Make) -> None:
    harness = broker_harness(config={"broker": {"server_keep_alive": 20, "max_keep_alive": 60}})
    client = harness.connect("c", 4, keep_alive=100)
    harness.advance(149)
    client.expect_nothing()
    harness.advance(2)
    client.expect_disconnect()


def test_keep_alive_begins_with_connack(broker_harness: Make) -> None:
    # While a plugin decides, the client is not considered silent.
    recorder = HookRecorder("on_connect")
    harness = broker_harness([recorder])
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client = harness.connect("c", keep_alive=2, expect=None)
    harness.advance(4.5)
    verdict.set(Accept())
    assert client.expect(Connack).code == 0
    harness.advance(2.9)
    client.expect_nothing()
    harness.advance(0.2)
    client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)


def test_connect_must_come_in_time(harness: Harness) -> None:
    client = harness.open(scope=Scope(connect_timeout=10))
    packet = encode(Connect("c", 5, True, 0), 5)
    harness.advance(9)
    client.raw(packet[:-1])
    assert not client.closed
    harness.advance(1.1)
    client.expect_closed()
    assert client.raw_received == b""


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_connect", "on_auth_failed", "on_session", "on_disconnect")


@pytest.mark.parametrize("connected", [True, False])
def test_a_protocol_error_is_reported_to_on_event(broker_harness: Make, connected: bool) -> None:
    observer = HookRecorder("on_event")
    harness = broker_harness([observer])
    client = harness.connect("c") if connected else harness.open()
    client.raw(b"\xf7\x00")
    assert client.wire.closed
    [call] = observer.calls()
    fields = dict(call.fields)
    assert (call.event, call.plugin) == ("broker.protocol_error", "")
    assert (call.client is not None) == connected
    assert fields.pop("peer") == str(client.peer)
    assert fields.pop("detail") == harness.logged("protocol.error")[0]["detail"]
    assert fields.pop("code") >= 0x80
    assert fields == {"listener": "default"}
