"""A token in the user name field is a secret. It is never shown, even if the client is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.plugin import Accept, AuthSettings, AuthzSettings, Deny, ReasonCode, Settings
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_testing import EPOCH, DurableStore, Harness, HookRecorder
from hookmq_testing.plugins import make_plugin
from tokens import SECRET, token

DENY = Settings(auth=AuthSettings("deny"), authz=AuthzSettings("deny"))
Make = Callable[..., Harness]


def names(recorder: HookRecorder) -> list[str | None]:
    return [call.client.username for call in recorder.calls()]


def made(make: Make, first: HookRecorder, **config: Any) -> Harness:
    jwt = make_plugin(AuthJwtPlugin, {"secret": SECRET, **config}, "jwt", use="auth_jwt")
    return make([first, jwt], DENY, store=DurableStore())


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize(
    ("verdict", "code"), [(None, 0), (Deny(ReasonCode.CONNECTION_RATE_EXCEEDED), 0x9F)]
)
def test_plugins_before_and_the_log_do_not_see_it(
    broker_harness: Make, optional: bool, verdict: Deny | None, code: int
) -> None:
    first = HookRecorder("on_connect", "on_auth_failed", "on_session", "on_disconnect", id="first")
    first.answer("on_connect", verdict)
    harness = made(broker_harness, first, token_in="username", optional=optional)
    secret = token(now=EPOCH).decode()
    client = harness.connect("c", username=secret, session_expiry_interval=60, expect=code)
    asked = names(first)
    if not code:
        client.disconnect()
        assert harness.broker.sessions["c"].client.username == "me"
    harness.settle()
    assert asked[0] == (None if code else "me")
    assert len(names(first)) >= 2
    assert secret not in repr((names(first), harness.logs, harness.store.__dict__))


def test_a_user_name_that_is_not_a_token_is_used_as_a_user_name(broker_harness: Make) -> None:
    first = HookRecorder("on_connect", id="first")
    first.answer("on_connect", Accept())
    harness = made(broker_harness, first, token_in="username", optional=True)
    harness.connect("c", username="ann")
    assert names(first) == ["ann"]


@pytest.mark.parametrize("place", ["password", "auth"])
def test_elsewhere_user_names_are_user_names(broker_harness: Make, place: str) -> None:
    first = HookRecorder("on_connect", id="first")
    first.answer("on_connect", Accept())
    harness = made(broker_harness, first, token_in=place, optional=True)
    harness.connect("c", username="ann")
    assert names(first) == ["ann"]
