"""One entry of ``plugins:`` in the configuration, and the plugin object made of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hookmq.hooks.specs import SPECS, BrokerHandle
from hookmq.hooks.stats import Stats
from hookmq.plugin import Plugin
from hookmq.settings import Seconds, setting


@dataclass(frozen=True, slots=True)
class HookOptions:
    """``plugins[].hooks.HOOK:`` what differs from the hook's defaults. None is the default."""

    timeout: Seconds | None = setting(None, "how long an answer may be awaited")
    on_error: Literal["deny", "pass", "drop"] | None = setting(
        None, "what becomes of a message when the plugin fails"
    )
    queue: int | None = setting(
        None, "events that may wait for an observer; the oldest are dropped", minimum=1
    )
    filters: tuple[str, ...] | None = setting(
        None, "topic filters this hook is called for, instead of the plugin's", nonempty=True
    )


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """``plugins[]:`` one plugin."""

    use: str = setting("", "the plugin's name, as `hookmq plugins` lists it")
    id: str = setting("", "a name of its own, where one plugin is used twice; else that of `use`")
    enabled: bool = setting(True, "false leaves the entry out")
    required: bool | Literal["if_installed"] = setting(
        True,
        "false lets the broker start without it if it fails to start, if_installed if it is not installed",
    )
    listeners: tuple[str, ...] | None = setting(
        None, "listeners whose clients it is called for; without it all", nonempty=True
    )
    filters: tuple[str, ...] | None = setting(
        None, "topic filters it is called for; without it all", nonempty=True
    )
    hooks: Mapping[str, HookOptions] = field(
        default_factory=dict, metadata={"help": "options by hook"}
    )
    config: Any = field(default_factory=dict, metadata={"help": "what the plugin itself is told"})

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.use)

    def options(self, hook: str) -> HookOptions:
        """The options of one hook."""
        return self.hooks.get(hook, DEFAULT_OPTIONS)


DEFAULT_OPTIONS = HookOptions()


class PluginInstance:
    """A plugin at work: its entry, its object, and where that came from.

    `broker` is its handle, given by `Hooks.bind`. `apply`, where it is not None, makes the object go on with another
    configuration, as `Plugin.reconfigure` gave it. `kept` survives reloads that keep the plugin object: counters, queue,
    and whether it was started and told that the broker is ready.
    """

    __slots__ = (
        "apply",
        "broker",
        "disabled",
        "distribution",
        "entry",
        "kept",
        "plugin",
        "version",
    )

    def __init__(
        self,
        entry: PluginEntry,
        plugin: Plugin,
        distribution: str = "",
        version: str = "",
    ) -> None:
        self.entry = entry
        self.plugin = plugin
        self.distribution = distribution
        self.version = version
        self.broker: BrokerHandle | None = None
        self.apply: Callable[[], None] | None = None
        self.disabled = ""
        self.kept = Kept(entry.id)

    @property
    def id(self) -> str:
        """The entry's id."""
        return self.entry.id

    def timeout(self, hook: str) -> float | None:
        """Seconds that this hook of it may be awaited: as configured, else as the plugin says, else the hook's default;
        None where it is never awaited."""
        default = SPECS[hook].timeout
        if default is None:
            return None
        return self.entry.options(hook).timeout or self.plugin.timeouts.get(hook) or default

    def stats(self, hook: str) -> Stats:
        """The counters of one of its hooks."""
        stats = self.kept.stats.get(hook)
        if stats is None:
            stats = self.kept.stats[hook] = Stats(self.id, hook, SPECS[hook].hot)
        return stats

    def with_entry(self, entry: PluginEntry) -> "PluginInstance":
        """The same plugin object under other options, after a reload that did not touch its own config."""
        other = PluginInstance(entry, self.plugin, self.distribution, self.version)
        other.broker = self.broker
        other.disabled = self.disabled
        other.kept = self.kept
        return other

    def __repr__(self) -> str:
        return f"<PluginInstance {self.id!r}>"


class Kept:
    """What stays with a plugin object as long as it lives."""

    __slots__ = ("hiding", "queue", "ready", "started", "stats")

    def __init__(self, plugin_id: str) -> None:
        self.stats: dict[str, Stats] = {}
        self.hiding = Stats(plugin_id, "hides_username")
        self.queue: Any = None
        self.started = False
        self.ready = False
