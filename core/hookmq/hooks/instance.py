"""An entry under ``plugins:`` in the configuration, and its plugin object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.specs import SPECS
from hookmq.hooks.stats import HookStats
from hookmq.model.settings import Seconds, setting
from hookmq.plugin import Plugin


@dataclass(frozen=True, slots=True)
class HookOptions:
    """``plugins[].hooks.HOOK:`` options of one hook. The hook's default applies to each option that is not set."""

    timeout: Seconds | None = setting(None, "maximum time for the plugin to decide")
    on_error: Literal["deny", "pass", "drop"] | None = setting(
        None, "what to do with a message if the plugin fails"
    )
    queue: int | None = setting(
        None,
        "maximum number of events that wait for an observer; beyond that, the oldest is dropped",
        minimum=1,
    )
    filters: tuple[str, ...] | None = setting(
        None,
        "topic filters for this hook, in place of the plugin's `filters` and matched in the same way",
        nonempty=True,
    )


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """``plugins[]:`` one plugin."""

    use: str = setting("", "the plugin's entry point, as `hookmq plugins` lists it")
    id: str = setting(
        "", "the plugin id, needed if a plugin is used twice; by default the value of `use`"
    )
    enabled: bool = setting(True, "whether the entry is used")
    required: bool | Literal["if_installed"] = setting(
        True,
        "false: the broker starts even if the plugin fails; "
        "if_installed: the broker starts even if the plugin is not installed",
    )
    listeners: tuple[str, ...] | None = setting(
        None, "listeners whose clients the plugin is called for; all by default", nonempty=True
    )
    filters: tuple[str, ...] | None = setting(
        None,
        "topic filters for which the plugin's hooks are called, matched against topics with the listener's mount point; "
        "all topics by default",
        nonempty=True,
    )
    hooks: Mapping[str, HookOptions] = field(
        default_factory=dict, metadata={"help": "options by hook"}
    )
    config: Any = field(default_factory=dict, metadata={"help": "settings of the plugin itself"})

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.use)

    def options(self, hook: str) -> HookOptions:
        """Return the options of one hook."""
        return self.hooks.get(hook, DEFAULT_OPTIONS)


DEFAULT_OPTIONS = HookOptions()


class PluginInstance:
    """A plugin object, its entry and its distribution.

    `broker` is the plugin's handle, set by `Hooks.bind`. `apply` is the function that `Plugin.reconfigure` returned.
    `disabled` is the reason why the plugin is disabled, or empty. `kept` survives reloads that keep the plugin object.
    """

    __slots__ = (
        "apply", "broker", "disabled", "distribution", "entry", "kept", "plugin", "version",
    )  # fmt: skip

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
        self.kept = KeptState(entry.id)

    @property
    def id(self) -> str:
        """The plugin id."""
        return self.entry.id

    def timeout(self, hook: str) -> float | None:
        """Return a hook's timeout in seconds: the configured value, else the plugin's, else the
        hook's default. Return None if the hook cannot be async.
        """
        default = SPECS[hook].timeout
        if default is None:
            return None
        return self.entry.options(hook).timeout or self.plugin.timeouts.get(hook) or default

    def stats(self, hook: str) -> HookStats:
        """Return a hook's counters, creating them if necessary."""
        stats = self.kept.stats.get(hook)
        if stats is None:
            stats = self.kept.stats[hook] = HookStats(self.id, hook, SPECS[hook].hot)
        return stats

    def with_entry(self, entry: PluginEntry) -> "PluginInstance":
        """Return an instance with the same plugin object and a different entry. A reload calls this if the plugin's own
        configuration has not changed.
        """
        other = PluginInstance(entry, self.plugin, self.distribution, self.version)
        other.broker = self.broker
        other.disabled = self.disabled
        other.kept = self.kept
        return other

    def __repr__(self) -> str:
        return f"<PluginInstance {self.id!r}>"


class KeptState:
    """State that lives as long as the plugin object: the plugin's counters, its observer queue and the hooks it
    implements. It also records whether the plugin has been started, is ready or has ended. `ready_ended` says whether
    `on_ready` has returned, so that timers may be called.
    """

    __slots__ = (
        "callbacks", "ends_clients", "farewells", "hiding", "hooks", "left", "paused", "queue", "ready", "ready_ended",
        "started", "stats",
    )  # fmt: skip

    def __init__(self, plugin_id: str) -> None:
        self.stats: dict[str, HookStats] = {}
        self.hiding = HookStats(plugin_id, "hides_username")
        self.callbacks = HookStats(plugin_id, "client")
        """Failures of the functions that the plugin's clients call."""
        self.left = False
        """Whether the plugin has been disabled or shut down."""
        self.farewells: list[Callable[[], None]] = []
        """Functions to call once when the plugin has been disabled or shut down."""
        self.ends_clients = False
        """Whether one of the `farewells` ends the plugin's clients."""
        self.queue: Any = None
        self.hooks: frozenset[str] = frozenset()
        self.paused: set[str] = set()
        """Observer hooks that the plugin has switched off."""
        self.started = False
        self.ready = False
        self.ready_ended = False

    def leave(self) -> None:
        """Call the `farewells`, because the plugin object will not be used again."""
        self.left = True
        farewells, self.farewells = self.farewells, []
        for call in farewells:
            call()
