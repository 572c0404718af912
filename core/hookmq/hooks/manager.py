"""The plugins of one configuration, as the broker sees them: chains, observers, lifecycle, counters."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hookmq.errors import PluginError, StoreError
from hookmq.hooks import lifecycle
from hookmq.hooks.chains import (
    EMPTY_CHAINS,
    Call,
    Calls,
    Chains,
    Narrowing,
    any_contains,
    any_matches,
    any_overlaps,
)
from hookmq.hooks.entry import PluginEntry, PluginInstance
from hookmq.hooks.place import at
from hookmq.hooks.registry import Implementation, Registry, adapt, register
from hookmq.hooks.specs import OBSERVERS, SPECS, BrokerHandle, Kind
from hookmq.hooks.waiting import put_away
from hookmq.observers import Observers, Queue, Watch
from hookmq.plugin import Plugin
from hookmq.runtime import Runtime
from hookmq.settings import Settings
from hookmq.store import Journal, Store
from hookmq.types import Action

Metric = tuple[str, Mapping[str, str], float]
"""(name, labels, value)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One step of a hook's chain, for ``hookmq plugins explain``. Names are empty and times None where there is none."""

    order: int
    plugin: str
    use: str
    version: str
    mode: str
    """``sync``, ``async``, ``thread`` or ``off`` with the reason in `note`."""
    arguments: tuple[str, ...]
    listeners: tuple[str, ...] | None
    filters: tuple[str, ...] | None
    actions: tuple[str, ...]
    timeout: float | None
    on_error: str
    queue: int
    note: str = ""


class Hooks:
    """The hooks of a set of plugins. It knows no runtime until `bind`, so that a configuration can be checked.

    Raises PluginError or ConfigError when the plugins or their options break the rules. `plugins` are in the order of the
    configuration, which is the order of every call.
    """

    def __init__(self, plugins: Iterable[PluginInstance] = ()) -> None:
        self.plugins = tuple(plugins)
        self.registry: Registry = register(self.plugins)
        self.observers = Observers()
        self.runtime: Runtime | None = None
        self._chains: dict[str | None, Chains] = {}
        self._named: frozenset[str] = frozenset()
        self._calls: dict[tuple[str, Action | None], tuple[tuple[PluginInstance, Call], ...]] = {}

    @classmethod
    def of(cls, *plugins: Plugin, **options: Any) -> "Hooks":
        """Hooks of plugin objects, for embedding and tests: entries are made up, with `options` and the plugins' ids."""
        return cls(
            PluginInstance(PluginEntry(use=plugin.id, id=plugin.id, **options), plugin)
            for plugin in plugins
        )

    def bind(
        self, runtime: Runtime, handle: Callable[[PluginInstance], BrokerHandle] | None = None
    ) -> None:
        """Bring it to work: `handle` makes the `broker` argument of each plugin that has none yet. To be called before
        anything below."""
        self.runtime = runtime
        for instance in self.plugins:
            if handle is not None and instance.broker is None:
                instance.broker = handle(instance)
            instance.kept.hiding.bind(runtime.now, runtime.log, runtime.logs)
            for found in self.registry.values():
                for one in found:
                    if one.instance is instance:
                        instance.stats(one.spec.name).bind(runtime.now, runtime.log, runtime.logs)
        self._compile()

    def chains(self, listener: str) -> Chains:
        """The chains for the clients of a listener; always the same object until something is disabled."""
        if not self.plugins:
            return EMPTY_CHAINS
        if self.runtime is None:
            raise RuntimeError("bind() the hooks to a runtime first")
        # Listeners that no entry names share one.
        key = listener if listener in self._named else None
        chains = self._chains.get(key)
        if chains is None:
            chains = self._chains[key] = self._fold(key)
        return chains

    def disable(self, plugin_id: str, why: str) -> None:
        """Take a plugin out of every chain. Chains handed out before stay as they are."""
        for instance in self.plugins:
            if instance.id == plugin_id:
                instance.disabled = why
        if self.runtime is not None:
            self._compile()

    def instance(self, plugin_id: str) -> PluginInstance | None:
        """The plugin of that id."""
        return next((one for one in self.plugins if one.id == plugin_id), None)

    def asks_anew(self) -> bool:
        """Look again at what each plugin wants `authorize` to be called for. True if that changed: then `chains` gives
        others than before."""
        if self.runtime is None:
            return False
        before = {action: [one for one, _ in self._calls["authorize", action]] for action in Action}
        self._compile_authorize()
        if all(before[a] == [one for one, _ in self._calls["authorize", a]] for a in Action):
            return False
        self._chains = {}
        return True

    def in_flight(self) -> int:
        """Calls that wait for a plugin's answer."""
        return sum(s.pending for one in self.plugins for s in one.kept.stats.values())

    # lifecycle ---------------------------------------------------------------------------------------------------

    def startup(self, done: Callable[[PluginError | None], None]) -> None:
        """Run `on_startup` of every plugin not yet started. A failure ends it and is told to `done`, unless the plugin is
        not required: then it is disabled and logged."""
        lifecycle.startup(self, done)

    def ready(self, done: Callable[[], None]) -> None:
        """Run `on_ready` of every plugin that has not had it: of all at the start, of new ones at a reload. Failures are
        counted and logged."""
        lifecycle.ready(self, done)

    def reloaded(
        self, old: Any, new: Any, kept: Iterable[PluginInstance], done: Callable[[], None]
    ) -> None:
        """Run `on_reload` of the plugins that were `kept`. Failures are counted and logged."""
        mine = {one.id for one in kept}
        chosen = tuple(one for one in self.plugins if one.id in mine)
        lifecycle.each(self, "on_reload", (old, new), chosen, done)

    def shutdown(
        self, deadline: float, done: Callable[[], None], successor: "Hooks | None" = None
    ) -> None:
        """End the plugins that were started, less those that work on in `successor`, within `deadline` seconds: wait for
        calls in flight, let observers finish, run `on_shutdown` in reverse order, drop what is left."""
        lifecycle.shutdown(self, deadline, done, successor)

    # provide and register ----------------------------------------------------------------------------------------

    def provide_store(self, config: Settings) -> Store | None:
        """The store that a plugin provides, or None. Raises the StoreError of one that cannot be used, PluginError if one
        fails otherwise or if two provide."""
        provided = self._collect("provide_store", lambda _: (config,))
        if len(provided) > 1:
            first, second = provided[0][0], provided[1][0]
            raise PluginError(second, f"provides a store, and plugin {first!r} does as well")
        store: Store | None = provided[0][1] if provided else None
        return store

    def provide_journals(self, config: Settings) -> tuple[Journal, ...]:
        """The journals that plugins provide. Raises PluginError if one fails."""
        journals: list[Journal] = []
        for _, answer in self._collect("provide_journal", lambda _: (config,)):
            journals += answer if isinstance(answer, tuple) else (answer,)
        return tuple(journals)

    def register(self, hook: str, target: Callable[[str], Any]) -> None:
        """Call a ``register_`` hook of every plugin with what `target` makes for its id. Raises PluginError if one
        fails."""
        self._collect(hook, lambda plugin: (target(plugin),))

    def _collect(self, hook: str, args: Callable[[str], tuple[Any, ...]]) -> list[tuple[str, Any]]:
        collected: list[tuple[str, Any]] = []
        for one in self.registry[hook]:
            instance = one.instance
            if instance.disabled:
                continue
            function = adapt(one.function, one.arguments, one.spec, instance.broker)
            try:
                answer = function(*args(instance.id))
            except (PluginError, StoreError):
                instance.stats(hook).error += 1
                raise
            except Exception as error:
                instance.stats(hook).error += 1
                raise PluginError(instance.id, f"{hook} failed: {error!r}{at(error)}") from error
            if hasattr(type(answer), "__await__"):
                put_away(answer)
                instance.stats(hook).error += 1
                raise PluginError(instance.id, f"{hook} must answer at once, not with a coroutine")
            instance.stats(hook).ok += 1
            if answer is not None:
                collected.append((instance.id, answer))
        return collected

    # reading -----------------------------------------------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """Every counter of every hook that a plugin implements."""
        rows: list[Metric] = []
        for name, found in self.registry.items():
            for one in found:
                rows += _metrics(one.instance, name)
        for instance in self.plugins:
            queue: Queue | None = instance.kept.queue
            if queue is not None:
                labels = {"plugin": instance.id}
                is_open = float(queue.open_until is not None)
                rows.append(("hookmq_hook_circuit_open", labels, is_open))
        return rows

    def explain(self, hook: str) -> list[Row]:
        """A hook's chain, step by step. Raises KeyError if there is no such hook."""
        spec = SPECS[hook]
        rows = []
        for order, one in enumerate(self.registry[hook], 1):
            entry, plugin = one.instance.entry, one.instance.plugin
            options = entry.options(hook)
            mode = _mode(one)
            # An observer's thread is not waited for.
            awaited = ("async",) if spec.kind is Kind.OBSERVE else ("async", "thread")
            actions = sorted(plugin.authorize_actions) if hook == "authorize" else ()
            rows.append(
                Row(
                    order,
                    entry.id,
                    entry.use,
                    one.instance.version,
                    "off" if one.instance.disabled else mode,
                    one.arguments,
                    entry.listeners,
                    _filters(one),
                    tuple(map(str, actions)),
                    one.instance.timeout(spec.name) if mode in awaited else None,
                    _on_error(one),
                    options.queue or spec.queue,
                    one.instance.disabled,
                )
            )
        return rows

    # folding -----------------------------------------------------------------------------------------------------

    def _compile(self) -> None:
        self._chains = {}
        self._named = frozenset(
            name for one in self.plugins for name in one.entry.listeners or () if not one.disabled
        )
        self._calls = {}
        for name, found in self.registry.items():
            working = [one for one in found if not one.instance.disabled]
            if name != "authorize":
                self._calls[name, None] = tuple((o.instance, _call(o)) for o in working)
        self._compile_authorize()
        watches = []
        for name in sorted(OBSERVERS):
            for instance, call in self._calls[name, None]:
                limit = instance.entry.options(name).queue or SPECS[name].queue
                watches.append(Watch(instance, call, limit))
        if self.runtime is not None:
            self.observers.bind(self.runtime, watches)

    def _compile_authorize(self) -> None:
        working = [one for one in self.registry["authorize"] if not one.instance.disabled]
        for action in Action:
            asked = [one for one in working if action in one.instance.plugin.authorize_actions]
            self._calls["authorize", action] = tuple((o.instance, _call(o, action)) for o in asked)

    def _fold(self, listener: str | None) -> Chains:
        def chain(hook: str, action: Action | None = None) -> Calls:
            return tuple(
                call
                for instance, call in self._calls[hook, action]
                if serves(instance.entry, listener)
            )

        return Chains(
            on_connect=chain("on_connect"),
            on_auth=chain("on_auth"),
            authorize={action: chain("authorize", action) for action in Action},
            on_publish=chain("on_publish"),
            on_subscribe=chain("on_subscribe"),
            on_deliver=chain("on_deliver"),
            on_will=chain("on_will"),
            provide_meter=chain("provide_meter"),
            hides_username=(
                partial(_hides, one)
                for one in self.plugins
                if not one.disabled and serves(one.entry, listener)
            ),
        )


def serves(entry: PluginEntry, listener: str | None) -> bool:
    """Whether an entry has to do with a listener; None is one that no entry names."""
    return entry.listeners is None or listener in entry.listeners


def _hides(instance: PluginInstance, username: str) -> bool:
    """As `Plugin.hides_username`. A failure says yes, and is logged without its words: they may hold the secret."""
    try:
        return bool(instance.plugin.hides_username(username))
    except Exception as error:
        instance.kept.hiding.failed(f"{type(error).__name__}{at(error)}")
        return True


def _mode(one: Implementation) -> str:
    if one.is_async:
        return "async"
    if one.spec.kind is Kind.OBSERVE:
        return "thread"
    if not one.instance.plugin.blocking:
        return "sync"
    # What is provided or registered, and what leaves for a subscriber, cannot wait for a thread.
    return "sync" if one.spec.timeout is None else "thread"


def _filters(one: Implementation) -> tuple[str, ...] | None:
    if not one.spec.topic:
        return None
    mine = one.instance.entry.options(one.spec.name).filters
    return one.instance.entry.filters if mine is None else mine


def _on_error(one: Implementation) -> str:
    default = one.spec.on_error[0] if one.spec.on_error else ""
    return one.instance.entry.options(one.spec.name).on_error or default


def _call(one: Implementation, action: Action | None = None) -> Call:
    instance, spec = one.instance, one.spec
    filters = _filters(one)
    about_filter = spec.topic == "filter" or action is Action.SUBSCRIBE
    topic: Narrowing | None = None
    if filters is not None:
        topic = any_overlaps(filters) if about_filter else any_matches(filters)
    return Call(
        instance.id,
        spec.name,
        adapt(one.function, one.arguments, spec, instance.broker),
        is_async=one.is_async,
        blocking=_mode(one) == "thread",
        timeout=instance.timeout(spec.name) or 0.0,
        on_error=_on_error(one),
        topic=topic,
        grants=any_contains(filters)
        if filters is not None and action is Action.SUBSCRIBE
        else None,
        sync_only=spec.timeout is None or action is Action.DELIVER,
        cacheable=instance.plugin.authorize_cached,
        stats=instance.stats(spec.name),
    )


def _metrics(instance: PluginInstance, hook: str) -> list[Metric]:
    stats, spec = instance.stats(hook), SPECS[hook]
    labels = {"hook": hook, "plugin": instance.id}
    rows: list[Metric] = [
        ("hookmq_hook_calls_total", {**labels, "outcome": outcome}, float(getattr(stats, outcome)))
        for outcome in spec.outcomes
    ]
    rows.append(("hookmq_hook_duration_seconds_sum", labels, stats.seconds))
    rows.append(("hookmq_hook_duration_seconds_count", labels, float(stats.timed)))
    queue: Queue | None = instance.kept.queue
    lane = queue.lanes.get(hook) if queue is not None else None
    if lane is not None:
        rows.append(("hookmq_hook_queue_depth", labels, float(len(lane.events))))
        rows.append(("hookmq_hook_dropped_total", labels, float(lane.dropped)))
    return rows
