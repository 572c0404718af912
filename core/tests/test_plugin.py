"""Test that every name imported by plugin authors exists and works as documented."""

import ast
from pathlib import Path
from typing import Any

import hookmq.hooks
import pytest
from hookmq import plugin
from hookmq.config.plugins import accepts
from hookmq.hooks.specs import HOOK_API
from hookmq.mqtt.topics import contains, matches
from hookmq.plugin import Action, Context, Plugin

CORE = Path(hookmq.hooks.__file__).parent.parent


def test_all_names_are_there() -> None:
    assert sorted(set(plugin.__all__)) == sorted(plugin.__all__)
    assert [name for name in plugin.__all__ if not hasattr(plugin, name)] == []


@pytest.mark.parametrize(
    "name",
    [
        "Plugin", "hookimpl", "Accept", "Allow", "Challenge", "Deny", "Drop", "Limits", "Message", "Subscription",
        "Action", "ReasonCode", "Properties", "ClientInfo", "Context", "BrokerHandle", "PluginError", "HOOK_API",
    ],
)  # fmt: skip
def test_names_that_authors_need_are_public(name: str) -> None:
    assert name in plugin.__all__


def test_defaults() -> None:
    assert Plugin.Config is None
    assert accepts(Plugin.requires_api, HOOK_API)
    assert Plugin.blocking is False
    assert Plugin.authorize_cached is True
    assert Plugin.authorize_actions == {Action.PUBLISH, Action.SUBSCRIBE, Action.WILL}


def test_a_plugin_knows_itself() -> None:
    logged: list[Any] = []

    def log(level: str, event: str, /, **fields: object) -> None:
        logged.append((level, event, fields))

    made = Plugin({"a": 1}, Context("audit", "webhook", "1.0", log))
    made.log("info", "webhook.sent", status=200)
    assert made.config == {"a": 1}
    assert made.id == "audit"
    assert logged == [("info", "webhook.sent", {"plugin": "audit", "status": 200})]
    assert repr(made) == "<Plugin 'audit'>"


def test_a_plugin_may_log_where_nobody_listens() -> None:
    Plugin(None, Context()).log("info", "nothing.happened")


@pytest.mark.parametrize(
    ("filter", "topic"), [("a/#", "a"), ("a/+", "a/b"), ("+", "a/b"), ("#", "$SYS/x")]
)
def test_helpers_are_those_of_topics(filter: str, topic: str) -> None:
    assert Plugin.matches(filter, topic) is matches(filter, topic)
    assert Plugin.contains(filter, topic) is contains(filter, topic)


FORBIDDEN = {"asyncio", "time", "socket", "random", "threading", "aiohttp", "logging"}


@pytest.mark.parametrize(
    "path",
    [CORE / "plugin.py", *sorted((CORE / "hooks").glob("*.py"))],
    ids=lambda path: path.name,
)
def test_this_floor_knows_no_world(path: Path) -> None:
    roots: set[str] = set()
    floors: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        # Imports for type checkers are never executed. `test_layers` ignores them too.
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        roots |= {name.split(".")[0] for name in names}
        floors |= {name.split(".")[1] for name in names if name.startswith("hookmq.")}
    assert not roots & FORBIDDEN
    assert not floors & {"broker", "connection", "server", "config", "cli", "testing", "logs"}
