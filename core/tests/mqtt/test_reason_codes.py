"""Compare the reason codes, and the packets that may contain each of them, with the tables of paho-mqtt and mqtt5."""

from typing import Any

import mqtt5
import pytest
from hookmq.mqtt.reason_codes import LEGAL, PacketType
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode


def test_paho_reason_codes() -> None:
    ours = {(int(code), int(packet)) for packet, codes in LEGAL.items() for code in codes}
    theirs = {
        (code, packet)
        for code, names in PahoReasonCode.names.items()
        for packets in names.values()
        for packet in packets
    }
    # Two known differences: table 3-1 of the specification has 0x99, and only table 2-6 has 0x8C for DISCONNECT.
    assert ours - theirs == {(0x99, PacketType.CONNACK)}
    assert theirs - ours == {(0x8C, PacketType.DISCONNECT)}


@pytest.mark.parametrize(
    ("packet", "theirs"),
    [
        (PacketType.CONNACK, mqtt5.ConnAckReasonCode),
        (PacketType.PUBACK, mqtt5.PubAckReasonCode),
        (PacketType.PUBREC, mqtt5.PubRecReasonCode),
        (PacketType.PUBREL, mqtt5.PubRelReasonCode),
        (PacketType.PUBCOMP, mqtt5.PubCompReasonCode),
        (PacketType.SUBACK, mqtt5.SubAckReasonCode),
        (PacketType.UNSUBACK, mqtt5.UnsubAckReasonCode),
        (PacketType.DISCONNECT, mqtt5.DisconnectReasonCode),
        (PacketType.AUTH, mqtt5.AuthReasonCode),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_mqtt5_reason_codes(packet: PacketType, theirs: Any) -> None:
    members = {int(m) for name in dir(theirs) if isinstance(m := getattr(theirs, name), theirs)}
    assert members == {int(code) for code in LEGAL[packet]}
