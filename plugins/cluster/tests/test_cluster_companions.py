"""Test which other plugins can be in a configuration with `cluster`."""

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import ConfigError, Context, Plugin, hookimpl
from hookmq_cluster.plugin import ClusterPlugin
from hookmq_testing import load_plugins, make_plugin
from hookmq_testing.commands import run_command
from workspace import ROOT

SEPARATE = {
    "accounts", "delayed", "exclusive", "presence", "queues", "spark_sink", "sys_topics",
}  # fmt: skip
"""Our plugins that work on each node separately."""
SHARED = {
    "acl_file", "admin", "auth_http", "auth_jwt", "auth_password", "auto_subscribe", "otel", "ratelimit", "rewrite",
    "schema", "security_log", "sinks", "sparkplug", "webhook", "webhook_filter",
}  # fmt: skip
"""Our plugins that keep their promises in a cluster. `sinks` does, unless it has sources."""
LISTENERS = [{"name": "tcp", "bind": "127.0.0.1:0"}]


class Doorbell(Plugin):
    """A plugin of somebody else."""

    per_node = "each node rings its own bell"


class Vault(Plugin):
    """A plugin that stores the broker's state, unless it is told not to."""

    def __init__(self, config: Any, context: Context, used: bool = True) -> None:
        super().__init__(config, context)
        if not used:
            self.idle_hooks = frozenset({"provide_store"})

    @hookimpl
    def provide_store(self) -> None:
        return None


def joined(*others: Plugin, **config: Any) -> None:
    """Check a configuration with `cluster` in front of `others`."""
    cluster = make_plugin(ClusterPlugin, config, "cluster").plugin
    cluster.check_together([cluster, *others])


def refusal(*others: Plugin, **config: Any) -> str:
    """Return why a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        joined(*others, **config)
    return str(caught.value)


def test_a_plugin_can_declare_that_it_works_on_each_node_separately() -> None:
    bells = [Doorbell(None, Context(name)) for name in ("door", "gate")]
    text = refusal(*bells)
    assert "'door': each node rings its own bell; 'gate': each node rings" in text
    assert "`per_node: [door, gate]` in the config of plugin 'cluster'" in text
    text = refusal(*bells, per_node=("gate",))
    assert "`per_node: [door]`" in text
    joined(*bells, per_node=("door", "gate"))


def test_the_order_of_plugins_does_not_matter() -> None:
    cluster = make_plugin(ClusterPlugin, {}, "cluster").plugin
    with pytest.raises(ConfigError, match="'door'"):
        cluster.check_together([Doorbell(None, Context("door")), cluster])


def test_an_object_can_be_an_exception() -> None:
    bell = Doorbell(None, Context("door"))
    bell.per_node = ""
    joined(bell)


def test_other_stores_are_refused_whatever_is_allowed() -> None:
    text = refusal(Vault(None, Context("vault")), per_node=("vault",))
    assert "'vault' stores sessions and messages" in text
    assert "remove one of the two" in text
    joined(Vault(None, Context("vault"), used=False))
    assert "'second' stores" in refusal(make_plugin(ClusterPlugin, {}, "second").plugin)


def test_each_of_our_plugins_is_decided_on() -> None:
    kinds = {
        one.name: one.load()
        for one in entry_points(group="hookmq.plugins")
        if one.value.startswith("hookmq_") and not one.name.startswith("example_")
    }
    assert {
        name for name, kind in kinds.items() if type(getattr(kind, "per_node", None)) is str
    } == SEPARATE
    assert kinds.keys() - SEPARATE - {"cluster", "storage"} <= SHARED


def test_the_manual_has_each_of_our_plugins() -> None:
    text = (ROOT / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
    part = text[text.index("## Plugins in a cluster") : text.index("## See and move lanes")]
    rows = [line for line in part.splitlines() if line.startswith("| `")]
    refused = {
        one.strip("` ") for row in rows if "refused" in row for one in row.split("|")[1].split(",")
    }
    assert refused >= SEPARATE | {"storage"}
    named = {one.strip("` ") for row in rows for one in row.split("|")[1].split(",")}
    assert named >= SHARED | SEPARATE


@pytest.mark.parametrize(("driver", "refused"), [("http", False), ("mqtt", True)])
def test_sources_are_started_on_each_node(driver: str, refused: bool, tmp_path: Path) -> None:
    token = {"token": "0123456789abcdef", "identity": "erp", "topics": ["orders/#"]}
    origins: dict[str, dict[str, Any]] = {
        "http": {"bind": "127.0.0.1:8090", "tokens": [token]},
        "mqtt": {"addresses": ["127.0.0.1:1"], "broker": "a", "rules": [{"pattern": "#"}]},
    }
    source = {"name": "in", "driver": driver, "origin": origins[driver]}
    plugins = [
        {"use": "cluster"},
        {"use": "sinks", "config": {"path": str(tmp_path), "sources": [source]}},
    ]
    found = load_plugins(json.dumps({"version": 1, "listeners": LISTENERS, "plugins": plugins}))
    cluster, sinks = (one.plugin for one in found)
    if not refused:
        cluster.check_together([cluster, sinks])
        return
    with pytest.raises(ConfigError, match=r"each node starts the sources \(in\)"):
        cluster.check_together([cluster, sinks])


@pytest.mark.parametrize(
    ("use", "words"), [("storage", "stores sessions"), ("exclusive", "each node grants a topic")]
)
def test_check_and_serve_refuse(
    use: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.yaml"
    plugins = [{"use": "cluster"}, {"use": use}]
    file.write_text(json.dumps({"version": 1, "listeners": LISTENERS, "plugins": plugins}))
    for command in ("check", "serve"):
        assert run_command([command, "-c", str(file)]) == 2
        assert words in capsys.readouterr().err
