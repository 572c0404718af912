"""Test that every refused CONNECT causes one log line and one event, as stated in docs/explanation/choices.md under
"Refusals".
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.client import Scope
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import Accept, Allow, Challenge, Deny, Plugin
from hookmq_testing import Harness, HookRecorder, will

Refused = Callable[[Harness], Any]


def over_the_limit(harness: Harness) -> None:
    harness.connect("first")
    assert harness.open().closed


def overdue(harness: Harness) -> None:
    harness.fail("recorder", "on_auth", Challenge(b"?"))
    harness.connect("c", authentication_method="X", expect=None)
    harness.advance(100)


def denied_will(harness: Harness) -> None:
    harness.fail("recorder", "authorize", Deny(ReasonCode.NOT_AUTHORIZED))
    harness.connect("c", will=will("t"), expect=0x87)


def banned(harness: Harness) -> None:
    harness.fail("recorder", "on_connect", Deny(ReasonCode.BANNED, "go away"))
    harness.connect("c", expect=0x8A)


def unlimited(harness: Harness) -> None:
    harness.fail("recorder", "provide_rate_limiter", ValueError("broken"))
    harness.connect("c", expect=0x88)


REFUSALS: dict[str, tuple[dict[str, Any], Refused, ReasonCode, str]] = {
    "version": (
        {},
        lambda h: h.connect("c", 3, scope=Scope(versions=frozenset({5})), expect=1),
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        "this listener does not accept this version",
    ),
    "max_sessions": (
        {"broker": {"max_sessions": 1}},
        lambda h: (h.connect("first"), h.connect("c", expect=0x97)),
        ReasonCode.QUOTA_EXCEEDED,
        "too many sessions",
    ),
    "duplicate_client_id": (
        {"broker": {"duplicate_client_id": "reject"}},
        lambda h: (h.connect("c"), h.connect("c", expect=0x85)),
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        "client id is in use",
    ),
    "empty id": (
        {},
        lambda h: h.connect("", 4, clean_start=False, expect=2),
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        "empty client id",
    ),
    "will's QoS": (
        {"broker": {"max_qos": 1}},
        lambda h: h.connect("c", will=will("t", qos=2), expect=0x9B),
        ReasonCode.QOS_NOT_SUPPORTED,
        "QoS 2 is not offered",
    ),
    "will's RETAIN": (
        {"broker": {"retain_available": False}},
        lambda h: h.connect("c", will=will("t", retain=True), expect=0x9A),
        ReasonCode.RETAIN_NOT_SUPPORTED,
        "retained messages are not offered",
    ),
    "will's topic": (
        {"broker": {"max_topic_levels": 2}},
        lambda h: h.connect("c", will=will("a/b/c/d"), expect=0x90),
        ReasonCode.TOPIC_NAME_INVALID,
        "",
    ),
    "will's payload": (
        {"broker": {"check_payload_format": True}},
        lambda h: h.connect("c", will=will("t", b"\xff", payload_format_indicator=1), expect=0x99),
        ReasonCode.PAYLOAD_FORMAT_INVALID,
        "will payload is not UTF-8",
    ),
    "no certificate": (
        {},
        lambda h: h.connect("c", scope=Scope(identity="common_name"), expect=0x87),
        ReasonCode.NOT_AUTHORIZED,
        "no client certificate",
    ),
    "CONNACK does not fit": (
        {},
        lambda h: h.connect(
            "", properties={"maximum_packet_size": 8, "session_expiry_interval": 5}, expect=None
        ),
        ReasonCode.PACKET_TOO_LARGE,
        "CONNACK exceeds Maximum Packet Size",
    ),
    "meters fail": (
        {},
        unlimited,
        ReasonCode.SERVER_UNAVAILABLE,
        "rate limits could not be determined",
    ),
    "overdue": ({}, overdue, ReasonCode.SERVER_UNAVAILABLE, "took too long to connect"),
    "max_connections": (
        {"broker": {"max_connections": 1}},
        over_the_limit,
        ReasonCode.SERVER_BUSY,
        "too many connections",
    ),
    "a plugin": (
        {},
        banned,
        ReasonCode.BANNED,
        "go away",
    ),
    "a plugin, of the will": ({}, denied_will, ReasonCode.NOT_AUTHORIZED, ""),
}


LINES = ("connect.refused", "auth.failed", "authz.denied", "listener.refused")


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_log_line_and_an_event(refusal: str) -> None:
    config, provoke, code, reason = REFUSALS[refusal]
    recorder = HookRecorder(
        "on_connect", "on_auth", "authorize", "provide_rate_limiter", "on_auth_failed", "on_denied"
    )
    recorder.answer("on_connect", Accept())
    recorder.answer("authorize", Allow())
    with Harness([recorder], config=config) as harness:
        provoke(harness)
        harness.settle()
        [(event, line)] = [(event, line) for _, event, line in harness.logs if event in LINES]
        [told] = recorder.calls("on_auth_failed", "on_denied")
        assert harness.metrics.connections_refused == 1
    assert told.code is code
    if event != "listener.refused":
        assert line["code"] == f"0x{code:02X}"
        assert line["client_id"] == told.client.client_id
    if event == "connect.refused":
        assert line["listener"] == "default"
        assert str(line["peer"]).startswith("192.0.2.1:")
    if reason:
        assert told.reason == reason
        assert line.get("reason", reason) == reason


def test_a_user_name_that_is_a_credential_is_told_to_nobody() -> None:
    class Tokens(Plugin):
        def hides_username(self, username: str) -> bool:
            return username.startswith("ey")

    recorder = HookRecorder("on_auth_failed")
    with Harness([Tokens, recorder]) as harness:
        scope = Scope(versions=frozenset({5}))
        harness.connect("a", 4, username="eyJ0", password=b"x", scope=scope, expect=1)
        harness.connect("b", 4, username="ann", password=b"x", scope=scope, expect=1)
        assert [line.get("username") for line in harness.logged("connect.refused")] == [None, "ann"]
        assert [call.client.username for call in recorder.calls()] == [None, "ann"]


def test_connections_over_the_limit_are_told_once_a_second() -> None:
    recorder = HookRecorder("on_auth_failed")
    with Harness([recorder], config={"broker": {"max_connections": 1}}) as harness:
        harness.connect("first")
        for _ in range(5):
            assert harness.open().closed
        harness.advance(1.0)
        assert harness.open().closed
        first, second = harness.logged("listener.refused")
        assert (first.get("unsaid"), second.get("unsaid")) == (None, 4)
        assert len(recorder.calls()) == 2
        assert harness.metrics.connections_refused == 6
