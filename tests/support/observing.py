"""A plugin that observes the broker and records every call it gets, and functions that send it events."""

from collections.abc import Callable
from typing import Any

from hookmq.hooks.instance import PluginEntry, PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.specs import SPECS
from hookmq.model.message import Message
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq_testing.runtime import VirtualRuntime

MESSAGE = Message("t/1", b"x")
WAYS = ["async", "sync", "sync, awaited"]


class Watcher:
    """A plugin that observes the broker and records every call it gets."""

    def __init__(
        self,
        runtime: VirtualRuntime,
        way: str,
        *hooks: str,
        seconds: float = 0.0,
        plugin_id: str = "p",
        **entry: Any,
    ) -> None:
        self.runtime = runtime
        self.seen: list[Any] = []
        self.at: list[float] = []
        self.failing: Callable[[Any], bool] = lambda value: False
        self.seconds = seconds
        members = {hook: hookimpl(self.hook(hook, way)) for hook in hooks or ("on_published",)}
        made: type[Plugin] = type("Made", (Plugin,), members)
        plugin = made(None, Context(plugin_id))
        self.instance = PluginInstance(PluginEntry(use=plugin_id, **entry), plugin)

    def hook(self, name: str, way: str) -> Any:
        arguments = SPECS[name].given
        value = "matched" if "matched" in arguments else arguments[0]

        def see(value: Any) -> None:
            self.seen.append(value)
            self.at.append(self.runtime.now())
            if self.failing(value):
                raise ValueError(f"no {value}")

        async def later(value: Any) -> None:
            if self.seconds:
                await self.runtime.sleep(self.seconds)
            see(value)

        word = "async " if way == "async" else ""
        call = {"async": "await later", "sync": "see", "sync, awaited": "later"}[way]
        scope: dict[str, Any] = {"see": see, "later": later}
        exec(f"{word}def {name}(self, {value}):\n    return {call}({value})", scope)
        return scope[name]

    @property
    def queue(self) -> Any:
        return self.instance.kept.queue

    def dropped(self, hook: str = "on_published") -> int:
        dropped: int = self.queue.lanes[hook].dropped
        return dropped

    def count(self, outcome: str, hook: str = "on_published") -> int:
        count: int = getattr(self.instance.stats(hook), outcome)
        return count


def bind(runtime: VirtualRuntime, *watchers: Watcher) -> Hooks:
    hooks = Hooks(watcher.instance for watcher in watchers)
    hooks.bind(runtime)
    return hooks


def publish(hooks: Hooks, *values: Any, listener: str = "tcp", topic: str = "t/1") -> None:
    for value in values:
        hooks.observers.notify("on_published", listener, None, MESSAGE.replace(topic=topic), value)
