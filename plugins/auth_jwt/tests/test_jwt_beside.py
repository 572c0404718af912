"""Test a token's permissions when another plugin accepts the client first, so that the other plugin's claims take
precedence.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.plugin import Accept, AuthSettings, AuthzSettings, Settings
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_testing import EPOCH, DurableStore, Harness, HookRecorder
from hookmq_testing.client import will
from hookmq_testing.plugins import make_plugin
from tokens import SECRET, token

OPEN = Settings(auth=AuthSettings("deny"), authz=AuthzSettings("allow"))
Make = Callable[..., Harness]


@pytest.mark.parametrize("claims", [{}, {"site": "forged"}, {"acl": {"all": ["#"]}}, None])
@pytest.mark.parametrize("topic", ["gone/c/north", "gone/d/north", "gone/c/forged"])
def test_they_hold_after_a_restart(
    broker_harness: Make, claims: dict[str, Any] | None, topic: str
) -> None:
    first = HookRecorder("on_connect", id="first")
    first.answer("on_connect", Accept("x", claims))
    jwt = make_plugin(AuthJwtPlugin, {"secret": SECRET}, "jwt", use="auth_jwt")
    harness = broker_harness([first, jwt], OPEN, store=DurableStore())
    given = token(
        {"acl": {"publish": ["gone/%c/${site}"], "subscribe": ["#"]}, "site": "north"}, now=EPOCH
    )
    allowed = topic == "gone/c/north"
    watcher = harness.connect("w", password=given, session_expiry_interval=600)
    watcher.subscribe("gone/#", 1)
    if not allowed:
        harness.connect("c", password=given, will=will(topic), expect=0x87)
    # What is a will's topic matters when it is due, too: here it is put there behind the broker's back.
    harness.connect(
        "c", password=given, will=will("gone/c/north", qos=1, delay=30), session_expiry_interval=600
    )
    harness.restart()
    session = harness.broker.sessions["c"]
    assert session.will is not None
    object.__setattr__(session.will, "message", session.will.message.replace(topic=topic))
    watcher.reconnect()
    harness.advance(31)
    assert [message.topic for message in watcher.messages] == ([topic] if allowed else [])


def test_nobody_elses_claim_is_a_permission_after_a_restart(broker_harness: Make) -> None:
    """After a restart, a claim from another plugin does not count as a token's permission."""
    first = HookRecorder("on_connect", id="first")
    first.answer("on_connect", Accept("x", {"acl": {"publish": ["gone"]}}))
    deny = Settings(auth=AuthSettings("deny"), authz=AuthzSettings("deny"))
    jwt = make_plugin(AuthJwtPlugin, {"secret": SECRET, "optional": True}, "jwt", use="auth_jwt")
    harness = broker_harness([first, jwt], deny, store=DurableStore())
    harness.connect("c", will=will("gone"), expect=0x87)
    harness.connect("c", session_expiry_interval=600)
    harness.restart()
    client: Any = harness.broker.sessions["c"].client
    assert jwt.plugin._kept(client) is None  # type: ignore[attr-defined]
