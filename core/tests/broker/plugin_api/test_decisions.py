"""Test decisions. Every plugin in a chain is asked, and a default applies if all of them abstain."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.plugin_api.decisions import Decided, Survey
from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.stats import HookStats
from hookmq.plugin import Accept, Allow, ClientRequest, Connect, Deny, Plugin, PluginError, hookimpl
from hookmq_testing import Harness, HookRecorder


def test_decisions_keep_the_order_of_the_chain() -> None:
    """The decisions are listed in the order of the chain, although plugins may decide in any order."""
    calls = tuple(
        HookImplementation(name, "authorize", print, stats=HookStats(name, "authorize"))
        for name in "abc"
    )
    asked: dict[str, Decided] = {}
    results: list[Any] = []
    survey = Survey(calls, Deny(), results.append)
    survey.run(lambda call, decided: asked.update({call[0].plugin_id: decided}))
    asked["c"](Allow(), "c")
    asked["a"](Deny(rule="r"), "a: r")
    assert results == []
    asked["b"](Allow(), "")
    (found,) = results
    assert [(one.plugin, one.verdict) for one in found] == [
        ("a", Deny(rule="r")), ("b", None), ("c", Allow())
    ]  # fmt: skip


Make = Callable[..., Harness]


def connect(harness: Harness, **fields: Any) -> Any:
    request = ClientRequest("c", **fields)
    found = harness.clock.run(harness.handle("users").explain_connect(request))
    return [(one.plugin, one.verdict) for one in found]


class Hider(Plugin):
    """Hides all user names."""

    def hides_username(self, username: str) -> bool:
        return True

    @hookimpl
    def on_connect(self, connect: Connect) -> None:
        assert connect.username == "ann"


def test_explain_connect_asks_each_plugin_and_connects_nobody(broker_harness: Make) -> None:
    users = HookRecorder("on_connect", "on_session", "on_auth_failed", id="users")
    first = HookRecorder("on_connect", id="first")
    harness = broker_harness([first, users])
    denied, accepted = Deny(rule="banned"), Accept("ann")
    first.answer("on_connect", denied)
    users.answer("on_connect", accepted)
    found = connect(harness, username="ann", password=b"secret", listener="tcp")
    assert found == [("first", denied), ("users", accepted)]
    (call,) = users.calls("on_connect")
    assert (call.client.client_id, call.client.username, call.client.listener) == (
        "c",
        "ann",
        "tcp",
    )
    assert (call.connect.password, call.client.identity) == (b"secret", None)
    harness.settle()
    assert not harness.broker.sessions
    assert users.calls("on_session") == users.calls("on_auth_failed") == []
    with pytest.raises(PluginError, match="cannot connect"):
        connect(harness, username=5)


@pytest.mark.parametrize(("default", "verdict"), [("allow", Accept()), ("deny", Deny())])
def test_explain_connect_shows_the_default_if_all_abstain(
    broker_harness: Make, default: str, verdict: Accept | Deny
) -> None:
    users = HookRecorder("on_connect", id="users")
    harness = broker_harness([users], config={"auth": {"default": default}})
    assert connect(harness) == [("users", None), ("", verdict)]
    harness.fail("users", "on_connect", RuntimeError("boom"))
    ((plugin, failed),) = connect(harness)
    assert (plugin, failed.decided) == ("users", False)


def test_explain_connect_hides_user_names_that_are_secrets(broker_harness: Make) -> None:
    users = HookRecorder("on_connect", id="users")
    harness = broker_harness([users, Hider])
    connect(harness, username="ann")
    (call,) = users.calls("on_connect")
    assert call.client.username is None
