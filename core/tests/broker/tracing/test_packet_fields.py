"""Test that descriptions of packets contain no secrets."""

from typing import Any

import pytest
from hookmq.broker.tracing.packet_fields import PAYLOAD, packet_fields
from hookmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    WillFields,
)
from hookmq.mqtt.properties import Properties

SECRET = "s3cr3t"
HIDDEN = Properties(
    user_property=(("token", SECRET),), authentication_method="SCRAM", authentication_data=SECRET.encode(),
)  # fmt: skip


@pytest.mark.parametrize(
    "packet",
    [
        Connect("c", 5, True, 60, SECRET, SECRET.encode(), WillFields("w", SECRET.encode()), properties=HIDDEN),
        Auth(0x18, HIDDEN),
        Publish("t", SECRET.encode(), properties=Properties(correlation_data=SECRET.encode())),
        Publish("t", b"", properties=Properties(user_property=(("a", SECRET),))),
        Connack(0, properties=Properties(response_information=SECRET, user_property=(("a", SECRET),))),
    ],
    ids=lambda packet: type(packet).__name__,
)  # fmt: skip
def test_no_event_contains_a_secret(packet: Packet) -> None:
    assert SECRET not in str(packet_fields(packet, payloads=False))


def test_names_of_user_properties_are_shown() -> None:
    fields: Any = packet_fields(Auth(0x18, HIDDEN), payloads=False)
    assert fields["properties"] == {
        "authentication_method": "SCRAM",
        "user_properties": ["token"],
    }


def test_payloads_are_shown_only_on_demand_and_cut() -> None:
    packet = Publish("t", b"x" * 600, 1, packet_id=7)
    assert "payload" not in packet_fields(packet, payloads=False)
    fields = packet_fields(packet, payloads=True)
    assert fields["payload"] == b"x" * PAYLOAD
    assert (fields["payload_bytes"], fields["packet_id"]) == (600, 7)


def test_other_packets() -> None:
    wanted = Subscribe(1, (SubscribeRequest("a" * 300, 1),))
    fields: Any = packet_fields(wanted, payloads=False)
    assert fields["filters"] == [{"filter": "a" * 255 + "…", "qos": 1}]
    assert packet_fields(Unsubscribe(2, ("a",)), payloads=False)["filters"] == ["a"]
    assert packet_fields(Suback(1, (1, 0x87)), payloads=False)["codes"] == [1, 0x87]
    assert packet_fields(Puback(1, 0x10), payloads=False) == {"packet_id": 1, "code": 0x10}
    assert packet_fields(Disconnect(0x8E), payloads=False) == {"code": 0x8E}
    assert packet_fields(Pingreq(), payloads=False) == {}
