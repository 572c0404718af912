from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.instance import PluginEntry, PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.specs import SPECS
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq_testing.runtime import VirtualRuntime


def _make(plugin_id: str, **members: Any) -> Plugin:
    """Return a plugin. Any of the `members` named after a hook becomes that hook's implementation."""
    body = {k: hookimpl(v) if k in SPECS and callable(v) else v for k, v in members.items()}
    made: type[Plugin] = type("Made", (Plugin,), body)
    return made(None, Context(plugin_id))


@pytest.fixture
def runtime() -> VirtualRuntime:
    return VirtualRuntime(blocking=0.0)  # times are asserted


@pytest.fixture
def make() -> Callable[..., Plugin]:
    return _make


@pytest.fixture
def client() -> ClientInfo:
    return ClientInfo("c1", 5, None, Peer("127.0.0.1", 1), Scope("tcp"))


@pytest.fixture
def instance() -> Callable[..., PluginInstance]:
    """Return a function. Calling `instance(plugin, **entry)` returns the plugin with a configuration entry."""

    def instance(plugin: Plugin, **entry: Any) -> PluginInstance:
        return PluginInstance(PluginEntry(use=plugin.id, id=plugin.id, **entry), plugin)

    return instance


@pytest.fixture
def bound(runtime: VirtualRuntime) -> Callable[..., Hooks]:
    """Return a function. Calling `bound(*instances_or_plugins)` returns hooks that are ready to use. Each plugin's
    handle is a string that contains its id.
    """

    def bound(*plugins: Plugin | PluginInstance) -> Hooks:
        made = [
            one
            if isinstance(one, PluginInstance)
            else PluginInstance(PluginEntry(use=one.id, id=one.id), one)
            for one in plugins
        ]
        hooks = Hooks(made)
        handle: Any = lambda one: f"handle of {one.id}"  # noqa: E731
        hooks.bind(runtime, handle)
        return hooks

    return bound
