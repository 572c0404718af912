"""Test the Reason String in replies. It is omitted if the client does not want it or if it does not fit."""

import pytest
from hookmq.broker.replies import (
    encode_acknowledgement,
    encode_disconnect,
    encode_refusal,
    encode_subscription_reply,
)
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connack, Disconnect, Packet, Puback, Publish, Pubrec, Suback
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode

WHY = Properties(reason_string="because")
DENIED = ReasonCode.NOT_AUTHORIZED
BUSY = ReasonCode.SERVER_BUSY


def acknowledgement(qos: int, limit: int, wanted: bool = True) -> bytes:
    return encode_acknowledgement(
        Publish("t", b"", qos, packet_id=7), DENIED, "because", wanted, limit
    )


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_has_its_reason_if_it_fits(qos: int) -> None:
    make = Puback if qos == 1 else Pubrec
    whole, short = encode(make(7, DENIED, WHY), 5), encode(make(7, DENIED), 5)
    assert acknowledgement(qos, len(whole)) == whole
    assert acknowledgement(qos, len(whole) - 1) == short
    assert acknowledgement(qos, len(whole), wanted=False) == short


def test_a_suback_has_its_reason_if_it_fits() -> None:
    packet = Suback(7, (DENIED,))
    whole, short = encode(Suback(7, (DENIED,), WHY), 5), encode(packet, 5)
    assert encode_subscription_reply(packet, 5, "because", True, len(whole)) == whole
    assert encode_subscription_reply(packet, 5, "because", True, len(whole) - 1) == short
    assert encode_subscription_reply(packet, 5, "because", False, 999) == short
    assert encode_subscription_reply(packet, 4, "because", True, 999) == encode(packet, 4)


def test_a_disconnect_has_its_reason_if_it_fits_and_is_left_out_if_it_never_does() -> None:
    whole = encode(Disconnect(BUSY, WHY), 5)
    short = encode(Disconnect(BUSY), 5)
    assert encode_disconnect(BUSY, "because", "", len(whole)) == whole
    assert encode_disconnect(BUSY, "because", "", len(whole) - 1) == short
    assert encode_disconnect(BUSY, "because", "", len(short) - 1) == b""
    moved = encode(Disconnect(BUSY, Properties(server_reference="other")), 5)
    assert encode_disconnect(BUSY, "", "other", 999) == moved


def test_a_refusal_has_its_reason_if_it_fits_and_is_left_out_if_it_never_does() -> None:
    whole, short = encode(Connack(BUSY, False, WHY), 5), encode(Connack(BUSY), 5)
    assert encode_refusal(5, BUSY, "because", EMPTY, False, len(whole)) == whole
    assert encode_refusal(5, BUSY, "because", EMPTY, False, len(whole) - 1) == short
    assert encode_refusal(5, BUSY, "because", EMPTY, False, len(short) - 1) == b""


UNSUPPORTED = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
OLD: dict[str, tuple[int, ReasonCode, bool, Packet | None]] = {
    "before CONNECT": (0, BUSY, False, None),
    "malformed": (4, ReasonCode.MALFORMED_PACKET, True, None),
    "unknown version": (4, UNSUPPORTED, True, Connack(1)),
    "refused": (4, DENIED, False, Connack(5)),
}


@pytest.mark.parametrize("case", OLD)
def test_a_client_of_mqtt_3_is_refused_with_its_own_codes(case: str) -> None:
    version, code, malformed, packet = OLD[case]
    data = encode_refusal(version, code, "because", EMPTY, malformed, 2)
    assert data == (encode(packet, version) if packet is not None else b"")
