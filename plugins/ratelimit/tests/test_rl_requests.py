"""Test bans that other plugins request with an event."""

from typing import Any

import pytest
from hookmq.mqtt_api import Disconnect
from hookmq.plugin import Peer
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_testing import Harness, HookRecorder, make_plugin


@pytest.fixture
def harness() -> Any:
    plugins: list[Any] = [
        make_plugin(RateLimitPlugin, {"exempt": {"networks": ["10.0.0.0/8"]}}, "ratelimit"),
        HookRecorder("on_event", id="guard"),
    ]
    with Harness(plugins) as made:
        yield made


def emit(harness: Harness, event: str, **fields: object) -> None:
    harness.handle("guard").emit(f"ratelimit.{event}", **fields)
    harness.settle()


@pytest.mark.parametrize(("version", "code"), [(5, 0x8A), (4, 5), (3, 5)])
def test_a_client_id_is_banned_for_a_time(harness: Harness, version: int, code: int) -> None:
    emit(harness, "ban", client_id="pump", seconds=60, reason="tampered with")
    for user in ("ann", "bob", None):
        harness.connect("pump", version, username=user, expect=code)
    harness.connect("other", version)
    (ban,) = harness.logged("ratelimit.banned")
    assert ban == {
        "plugin": "ratelimit", "kind": "client_id", "name": "pump", "seconds": 60, "why": "tampered with"
    }  # fmt: skip
    harness.advance(61)
    harness.connect("pump", version)


def test_an_online_client_is_disconnected(harness: Harness) -> None:
    pump, other = harness.connect("pump"), harness.connect("other")
    emit(harness, "ban", client_id="pump", seconds=1.5)
    assert pump.expect(Disconnect).code == 0x96
    assert not other.closed
    (ban,) = harness.logged("ratelimit.banned")
    assert ban["why"] == "plugin guard"
    pump.reconnect(expect=0x8A)


def test_unbanning(harness: Harness) -> None:
    emit(harness, "ban", client_id="pump", seconds=60)
    emit(harness, "unban", client_id="other")
    harness.connect("pump", expect=0x8A)
    emit(harness, "unban", client_id="pump")
    harness.connect("pump")
    (lifted,) = harness.logged("ratelimit.unbanned")
    assert (lifted["kind"], lifted["name"]) == ("client_id", "pump")


def test_unbanning_lifts_what_a_limit_caused() -> None:
    limits = {
        "limits": [{"rate": "1/s", "mode": "reject"}], "ban": {"after": "1/min", "duration": 600}
    }  # fmt: skip
    guard = HookRecorder("on_event", id="guard")
    with Harness([make_plugin(RateLimitPlugin, limits, "ratelimit"), guard]) as harness:
        client = harness.connect("pump", username="ann")
        for _ in range(4):
            if not client.closed:
                client.publish("a", b"", 1, expect=None)
        harness.connect("pump", username="ann", expect=0x8A)
        emit(harness, "unban", client_id="pump")
        harness.connect("pump", username="ann")


def test_an_exempt_client_cannot_be_banned(harness: Harness) -> None:
    emit(harness, "ban", client_id="pump", seconds=60)
    harness.connect("pump", peer=Peer("10.1.2.3"))


def test_a_ban_survives_a_reload(harness: Harness) -> None:
    guard = HookRecorder("on_event", id="guard")
    harness.reload(plugins=[make_plugin(RateLimitPlugin, {}, "ratelimit"), guard])
    emit(harness, "ban", client_id="pump", seconds=60)  # before any client called the new object
    harness.reload(plugins=[make_plugin(RateLimitPlugin, {"max_bans": 9}, "ratelimit"), guard])
    harness.connect("pump", expect=0x8A)


@pytest.mark.parametrize(
    ("event", "fields", "why"),
    [
        ("ban", {"seconds": 5}, "client_id is None: expected a string that is not empty"),
        ("ban", {"client_id": "", "seconds": 5}, "client_id is '': expected a string"),
        ("ban", {"client_id": 7, "seconds": 5}, "client_id is 7: expected a string"),
        ("ban", {"client_id": "pump"}, "seconds is None: expected a number above 0"),
        ("ban", {"client_id": "pump", "seconds": 0}, "seconds is 0: expected a number above 0"),
        ("ban", {"client_id": "pump", "seconds": True}, "seconds is True: expected a number"),
        ("ban", {"client_id": "pump", "seconds": float("inf")}, "seconds is inf: expected a number"),
        ("ban", {"client_id": "pump", "seconds": float("nan")}, "seconds is nan: expected a number"),
        ("ban", {"client_id": "pump", "seconds": 5, "reason": 7}, "reason is int: expected a string"),
        (
            "ban", {"client_id": "pump", "seconds": 5, "user": "ann"},
            "unknown field 'user': expected client_id, seconds, reason",
        ),
        ("unban", {}, "client_id is None"),
        ("unban", {"client_id": "pump", "seconds": 5}, "unknown field 'seconds': expected client_id"),
    ],
)  # fmt: skip
def test_an_invalid_request_changes_nothing_and_is_logged(
    harness: Harness, event: str, fields: dict[str, object], why: str
) -> None:
    emit(harness, event, **fields)
    (refused,) = harness.logged("ratelimit.request_refused")
    assert (refused["request"], refused["by"]) == (f"ratelimit.{event}", "guard")
    assert why in str(refused["why"])
    assert not harness.logged("ratelimit.banned")
    harness.connect("pump")


def test_other_events_are_ignored(harness: Harness) -> None:
    emit(harness, "banned", client_id="pump", seconds=5)
    harness.connect("pump")
    assert not harness.logged("ratelimit.request_refused")
