"""Test that packets are immutable, hashable values, and that their repr contains no secrets."""

import pytest
from hookmq.mqtt.decoder import decode_publish
from hookmq.mqtt.packets import (
    Auth,
    Connect,
    Publish,
    WillFields,
)
from hookmq.mqtt.properties import Properties


def test_a_will_is_of_qos_0_and_an_auth_of_success_unless_they_say_otherwise() -> None:
    assert WillFields("t", b"").qos == 0
    assert Auth() == Auth(0)


def test_decoded_packets_are_immutable_and_hashable() -> None:
    packet = decode_publish(0x30, b"\0\1tp", 4)
    assert type(packet) is Publish
    assert hash(packet) == hash(Publish("t", b"p"))
    with pytest.raises(AttributeError):
        packet.topic = "u"  # type: ignore[misc]


def test_secrets_and_payloads_stay_out_of_repr() -> None:
    connect = Connect("c", 5, True, 0, username="u", password=b"hunter2")
    publish = Publish("t", b"payload", properties=Properties(correlation_data=b"secret"))
    assert "hunter2" not in repr(connect)
    assert "payload" not in repr(publish)
    assert "secret" not in repr(publish)
    assert "farewell" not in repr(WillFields("t", b"farewell"))
