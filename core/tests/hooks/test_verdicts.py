from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Handled, Limits, least
from hookmq.mqtt.reason_codes import ReasonCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode


def test_pahos_reason_codes_are_taken() -> None:
    refused: Any = PahoReasonCode(PacketTypes.PUBACK, "Quota exceeded")
    taken: Any = PahoReasonCode(PacketTypes.PUBACK, "No matching subscribers")
    assert Deny(refused).code is ReasonCode.QUOTA_EXCEEDED
    assert Drop(taken).code is ReasonCode.NO_MATCHING_SUBSCRIBERS


def test_plain_numbers_are_taken() -> None:
    number: Any = 0x97
    assert Deny(number).code is ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("code", [0x00, 0x7F, 0x85 + 0x100, 0xFF, "Banned", None, 1.5])
def test_deny_refuses_what_is_no_refusal(code: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Deny(code)


@pytest.mark.parametrize("code", [0x80, 0x97, 0x05, "x"])
def test_drop_refuses_what_is_no_success(code: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Drop(code)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Allow, {"cache_for": -1}),
        (Allow, {"cache_for": float("nan")}),
        (Deny, {"cache_for": -0.5}),
        (Allow, {"max_qos": 3}),
        (Allow, {"max_qos": -1}),
        (Limits, {"receive_maximum": -1}),
        (Limits, {"queue_messages": 1.5}),
        (Limits, {"max_packet_size": True}),
        (Challenge, {"data": "text"}),
        (Handled, {"code": ReasonCode.QUOTA_EXCEEDED}),
        (Handled, {"code": "0"}),
    ],
)
def test_verdicts_check_what_they_are_given(kind: Any, given: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        kind(**given)


def test_verdicts_are_values() -> None:
    assert Deny() == Deny(ReasonCode.NOT_AUTHORIZED, None, disconnect=False, decided=True)
    assert len({Allow(), Allow(), Drop(), Challenge(b"a"), Challenge(b"a")}) == 3
    with pytest.raises(AttributeError):
        Accept().identity = "x"  # type: ignore[misc]


def test_limits_tighten_one_by_one() -> None:
    first = Limits(max_packet_size=100, receive_maximum=None, queue_messages=0)
    second = Limits(max_packet_size=50, receive_maximum=10, queue_messages=5, max_subscriptions=3)
    tight = Limits(50, 10, None, 0, 3)
    assert first.tighten(second) == second.tighten(first) == tight


@pytest.mark.parametrize(
    ("first", "second", "lower"), [(None, None, None), (None, 0, 0), (2, None, 2), (0, 3, 0)]
)
def test_least_takes_none_for_no_bound(first: Any, second: Any, lower: Any) -> None:
    assert least(first, second) == least(second, first) == lower


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"identity": 5}, "identity is int: expected str or None"),
        ({"claims": ["admin"]}, "claims is list: expected a mapping or None"),
        ({"expires_at": "soon"}, "expires_at is str: expected epoch seconds or None"),
        ({"limits": {"queue_messages": 1}}, "limits is dict: expected Limits or None"),
        ({"data": "text"}, "data is str: expected bytes or None"),
    ],
)
def test_an_accept_that_cannot_be(changes: Any, words: str) -> None:
    """Both builds refuse to create an invalid Accept, so the error points to the plugin that tried to create it."""
    with pytest.raises(TypeError, match=words):
        Accept(**changes)
