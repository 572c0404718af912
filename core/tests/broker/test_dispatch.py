"""Test which packets a connection accepts in each phase."""

import pytest
from hookmq.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
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
from hookmq_testing import Harness, will


@pytest.mark.parametrize(
    "packet",
    [
        Publish("a", b"x"),
        Publish("a", b"x", 1, packet_id=1),
        Puback(1),
        Pubrec(1),
        Pubrel(1),
        Pubcomp(1),
        Subscribe(1, (SubscribeRequest("a", 0),)),
        Unsubscribe(1, ("a",)),
        Pingreq(),
        Disconnect(),
        Auth(0x18, Properties(authentication_method="m")),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_nothing_is_said_to_who_does_not_begin_with_connect(
    harness: Harness, packet: Packet
) -> None:
    # Edge case 7 [MQTT-3.1.0-1, 3.14.0-1]
    client = harness.open()
    client.send(packet, Connect("c", 5, True, 0))
    client.expect_closed()
    assert client.raw_received == b""
    assert not harness.broker.sessions


@pytest.mark.parametrize(
    "data",
    [
        b"\x20\x02\0\0",
        b"\x00\x00",
        b"\xf0\x00",
        b"\x11\x02\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x10\xff\xff\xff\xff\x01",
        b"\x10\x00",
    ],
)
def test_nothing_is_said_to_who_does_not_speak_mqtt(harness: Harness, data: bytes) -> None:
    client = harness.open(version=4)
    client.raw(data)
    client.expect_closed()
    assert client.raw_received == b""


@pytest.mark.parametrize("version", [4, 5])
def test_a_second_connect(harness: Harness, version: int) -> None:
    # Edge case 9 [MQTT-3.1.0-2]; the will is published
    watcher = harness.connect("watcher")
    watcher.subscribe("will")
    client = harness.connect("c", version, will=will("will", b"gone"))
    client.send_connect()
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
    watcher.expect_message("will", b"gone")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x40\x03\x00\x01\x92", id="PUBACK 0x92 [MQTT-3.4.2-1]"),
        pytest.param(b"\x50\x03\x00\x01\x92", id="PUBREC 0x92 [MQTT-3.5.2-1]"),
        pytest.param(b"\x62\x03\x00\x01\x80", id="PUBREL 0x80 [MQTT-3.6.2-1]"),
        pytest.param(b"\x70\x03\x00\x01\x10", id="PUBCOMP 0x10 [MQTT-3.7.2-1]"),
    ],
)
def test_codes_of_other_packets(harness: Harness, data: bytes) -> None:
    """Each type of acknowledgement accepts only its own reason codes."""
    client = harness.connect("c")
    client.raw(data)
    client.expect_disconnect(0x82)
