"""The contract that every plugin must meet."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from hookmq.config.plugins import accepts
from hookmq.hooks.discovery import find, load
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.specs import HOOK_API
from hookmq.model.errors import ConfigError, PluginError
from hookmq.plugin import Plugin

from hookmq_testing.client import will
from hookmq_testing.harness import Harness
from hookmq_testing.plugins import make_plugin


class PluginContract:
    """Tests that a plugin loads, has valid hooks, starts and stops, and that no hook fails under
    ordinary traffic.

    `kind` is the plugin's class. It must accept the configurations in `configs` and refuse those in `bad_configs`. Each
    is a mapping as written below ``config:``, bound as in `hookmq serve`. `use` is the name of the entry point, or ''
    if the plugin is not installed.
    """

    kind: ClassVar[type[Plugin]]
    configs: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    bad_configs: ClassVar[Sequence[Mapping[str, Any]]] = ()
    use: ClassVar[str] = ""

    def instance(self, config: Mapping[str, Any], id: str = "") -> PluginInstance:
        """Return a new plugin object with the given configuration and plugin id."""
        use = self.use or self.kind.__name__.lower()
        return make_plugin(self.kind, dict(config), id or use, use=use)

    def harness(self, config: Mapping[str, Any]) -> Harness:
        """Return a broker that runs the plugin."""
        return Harness([self.instance(config)])

    def test_it_is_installed(self) -> None:
        if not self.use:
            pytest.skip("no entry point is named")
        assert load(find(self.use)) is self.kind

    def test_it_works_with_this_version(self) -> None:
        assert issubclass(self.kind, Plugin)
        assert accepts(self.kind.requires_api, HOOK_API)

    def test_good_configurations_are_bound(self) -> None:
        for config in self.configs:
            plugin = self.instance(config).plugin
            if self.kind.Config is not None:
                assert isinstance(plugin.config, self.kind.Config)

    def test_bad_configurations_are_refused(self) -> None:
        for config in self.bad_configs:
            with pytest.raises((ConfigError, PluginError)):
                self.instance(config)

    def test_it_starts_and_stops(self) -> None:
        for config in self.configs:
            with nothing_deprecated():
                harness = self.harness(config)
                self._no_failures(harness)
                harness.close()
                self._no_failures(harness)

    def test_it_stops_when_it_was_never_started(self) -> None:
        harness = Harness([self.instance(self.configs[0])], start=False)
        harness.close()

    def test_two_of_it_live_together(self) -> None:
        first, second = (self.instance(self.configs[0], id) for id in ("first", "second"))
        with Harness([first, second]) as harness:
            traffic(harness)
            self._no_failures(harness)

    def test_ordinary_traffic(self) -> None:
        for config in self.configs:
            with nothing_deprecated(), self.harness(config) as harness:
                traffic(harness)
                self._no_failures(harness)

    def _no_failures(self, harness: Harness) -> None:
        harness.settle()
        failed = [
            (name, dict(labels), value)
            for name, labels, value in harness.hooks.metrics()
            if value and labels.get("outcome") in ("error", "timeout")
        ]
        assert not failed, f"{failed}: {[log for log in harness.logs if log[0] != 'info']}"
        assert not harness.logged("internal.error")


@contextmanager
def nothing_deprecated() -> Iterator[None]:
    """Turn HookMQ's own DeprecationWarnings into errors. Their messages begin with ``hookmq``, and they announce that a
    feature will be removed.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="hookmq", category=DeprecationWarning)
        yield


def traffic(harness: Harness) -> None:
    """Generate common and unusual traffic with clients of every MQTT version. Clients that the plugin refuses send
    nothing more.
    """
    for version in (5, 4, 3):
        expiry = {"session_expiry_interval": 60} if version == 5 else {}
        name = f"client{version}"
        testament = will("wills/x", b"gone", qos=1, retain=True, delay=5 if version == 5 else None)
        one = harness.connect(
            name, version, False, 30, "user", b"secret", testament, expiry, expect=None
        )
        two = harness.connect(f"other{version}", version, expect=None)
        for client in (one, two):
            if client.connack is None or client.connack.code:
                continue
            client.send_subscribe(["a/#", "+/b", "wills/#"], 2)
            for qos in (0, 1, 2):
                if not client.closed:
                    client.publish("a/b", b"payload", qos, retain=qos == 1)
            if not client.closed:
                client.send_unsubscribe("+/b")
        harness.advance(1)
        if not one.closed:
            one.drop()
        two.publish("a/away", b"waits", 1) if not two.closed else None
        harness.advance(10)
        one.reconnect(expect=None)
        again = harness.connect(name, version, expect=None)
        harness.advance(100)
        for client in (one, two, again):
            if not client.closed:
                client.disconnect()
        harness.advance(100)
