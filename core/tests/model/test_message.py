"""Test that messages are immutable values."""

from dataclasses import FrozenInstanceError

import pytest
from hookmq.model.message import Message, make_message
from hookmq.mqtt.properties import EMPTY, Properties

PROPERTIES = Properties(user_property=(("a", "1"), ("a", "2")))
GIVEN = ("t", b"secret", 1, True, PROPERTIES, "c", "will", 1.0, 2.0)
FIELDS = (
    "topic", "payload", "qos", "retain", "properties", "sender", "origin", "received_at", "expires_at",
)  # fmt: skip


def test_make_message_makes_the_same_as_the_constructor() -> None:
    quick, plain = make_message(*GIVEN), Message(*GIVEN)
    assert type(quick) is Message
    assert [getattr(quick, name) for name in FIELDS] == [getattr(plain, name) for name in FIELDS]


@pytest.mark.parametrize("message", [make_message(*GIVEN), Message(*GIVEN)])
def test_a_message_is_immutable_and_replaced_by_a_copy(message: Message) -> None:
    with pytest.raises(FrozenInstanceError):
        message.topic = "other"  # type: ignore[misc]
    other = message.replace(topic="other")
    assert (other.topic, other.payload, message.topic) == ("other", b"secret", "t")


def test_the_payload_is_not_in_its_text() -> None:
    text = repr(make_message(*GIVEN))
    assert "secret" not in text
    assert "<6 bytes>" in text


def test_user_properties_are_in_order_and_empty_if_there_are_none() -> None:
    assert make_message(*GIVEN).user_property == (("a", "1"), ("a", "2"))
    assert Message("t", b"", properties=EMPTY).user_property == ()
