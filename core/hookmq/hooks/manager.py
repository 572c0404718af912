"""Manage a configuration's plugins: their chains, observers, lifecycle and counters."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hookmq.hooks import lifecycle
from hookmq.hooks.async_calls import put_away
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.chain import (
    EMPTY_CHAINS,
    Calls,
    Chains,
    HookImplementation,
    Narrowing,
    any_contains,
    any_matches,
    any_overlaps,
)
from hookmq.hooks.instance import PluginEntry, PluginInstance
from hookmq.hooks.observer_queue import ObserverQueue
from hookmq.hooks.observers import ObservedHook, Observers
from hookmq.hooks.place import at
from hookmq.hooks.registry import Implementation, Registry, adapt, register
from hookmq.hooks.specs import OBSERVERS, SPECS, HookKind
from hookmq.model.errors import PluginError, StoreError
from hookmq.model.events import Action
from hookmq.model.histogram import Histogram
from hookmq.model.runtime import Runtime
from hookmq.model.settings import Settings
from hookmq.model.snapshots import HookSnapshot, PluginSnapshot
from hookmq.plugin import Plugin
from hookmq.storage.cluster import Cluster
from hookmq.storage.protocols import Journal, Store

Metric = tuple[str, Mapping[str, str], float]
"""(name, labels, value)."""


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One step of a hook's chain, for ``hookmq plugins explain``. Missing names are empty; missing times are None."""

    order: int
    plugin: str
    use: str
    version: str
    mode: str
    """``sync``, ``async``, ``thread``, or ``off`` with the reason in `note`."""
    arguments: tuple[str, ...]
    listeners: tuple[str, ...] | None
    filters: tuple[str, ...] | None
    actions: tuple[str, ...]
    timeout: float | None
    on_error: str
    queue: int
    note: str = ""


class Hooks:
    """The hooks of a set of plugins, called in configuration order.

    No runtime is needed until `bind`, so a configuration can be checked without one. Raises PluginError or ConfigError
    if a plugin or its options are invalid.
    """

    def __init__(self, plugins: Iterable[PluginInstance] = ()) -> None:
        self.plugins = tuple(plugins)
        self.registry: Registry = register(self.plugins)
        self.observers = Observers()
        self.runtime: Runtime | None = None
        self.delivers = False
        """Whether any plugin decides on deliveries."""
        self.on_ready_ended: Callable[[], None] = _nothing
        """Called each time a plugin's `on_ready` has returned. The broker sets this function, so that the plugin's
        timers can be called."""
        self.wrapping: Callable[[Chains], Chains] | None = None
        """The function that replaces each listener's chains while traces run; see `wrap`."""
        self._chains: dict[str | None, Chains] = {}
        self._named: frozenset[str] = frozenset()
        self._calls: dict[
            tuple[str, Action | None], tuple[tuple[PluginInstance, HookImplementation], ...]
        ] = {}

    @classmethod
    def of(cls, *plugins: Plugin, **options: Any) -> "Hooks":
        """Create hooks for plugin objects, for embedding and tests. Each plugin gets an entry with its id and the
        `options`.
        """
        return cls(
            PluginInstance(PluginEntry(use=plugin.id, id=plugin.id, **options), plugin)
            for plugin in plugins
        )

    def bind(
        self, runtime: Runtime, handle: Callable[[PluginInstance], BrokerHandle] | None = None
    ) -> None:
        """Set the runtime. `handle` creates the `broker` argument for each plugin that does not have one yet. Call
        this before you call hooks."""
        self.runtime = runtime
        for instance in self.plugins:
            if handle is not None and instance.broker is None:
                instance.kept.farewells.clear()  # of another broker, if there was one
                instance.kept.ends_clients = False
                instance.broker = handle(instance)
            instance.kept.hiding.bind(runtime.now, runtime.log, runtime.logs)
            instance.kept.callbacks.bind(runtime.now, runtime.log, runtime.logs)
            for found in self.registry.values():
                for one in found:
                    if one.instance is instance:
                        instance.stats(one.spec.name).bind(runtime.now, runtime.log, runtime.logs)
        self._compile()

    def chains(self, listener: str) -> Chains:
        """Return the chains for a listener's clients. Returns the same object until the chains change."""
        if not self.plugins and self.wrapping is None:
            return EMPTY_CHAINS
        if self.runtime is None:
            raise RuntimeError("bind() the hooks to a runtime first")
        # Listeners that no entry names share one object.
        key = listener if listener in self._named else None
        chains = self._chains.get(key)
        if chains is None:
            chains = self._fold(key)
            if self.wrapping is not None:
                chains = self.wrapping(chains)
            self._chains[key] = chains
        return chains

    def wrap(self, wrapping: Callable[[Chains], Chains] | None) -> None:
        """Pass all chains through `wrapping` from now on. None stops this. In both cases, `chains` returns new objects
        afterwards.
        """
        self.wrapping = wrapping
        self._chains = {}

    def disable(self, plugin_id: str, why: str) -> None:
        """Remove a plugin from every chain. Does not change chains that were already returned."""
        for instance in self.plugins:
            if instance.id == plugin_id:
                instance.disabled = why
        if self.runtime is not None:
            self._compile()
        for instance in self.plugins:
            if instance.id == plugin_id:
                instance.kept.leave()

    def instance(self, plugin_id: str) -> PluginInstance | None:
        """Return the plugin with this id, or None."""
        return next((one for one in self.plugins if one.id == plugin_id), None)

    def timer_call(self, plugin_id: str) -> HookImplementation | None:
        """Return a plugin's implementation of `on_timer`. Return None if it has none, or is not
        ready yet.
        """
        for instance, call in self._calls.get(("on_timer", None), ()):
            if instance.id == plugin_id and instance.kept.ready_ended:
                return call
        return None

    def switch_observer(self, plugin_id: str, hook: str, wanted: bool) -> bool:
        """Switch a plugin's observer on or off. Return whether this changed anything. Events that are already waiting
        are still passed to the plugin.
        """
        instance = self.instance(plugin_id)
        if instance is None or (hook not in instance.kept.paused) == wanted:
            return False
        if wanted:
            instance.kept.paused.discard(hook)
        else:
            instance.kept.paused.add(hook)
        self._bind_observers()
        return True

    def asks_anew(self) -> bool:
        """Reread every plugin's `authorize_actions`. Return whether they changed; if so, `chains` returns new
        objects."""
        if self.runtime is None:
            return False
        before = {action: [one for one, _ in self._calls["authorize", action]] for action in Action}
        self._compile_authorize()
        if all(before[a] == [one for one, _ in self._calls["authorize", a]] for a in Action):
            return False
        self._chains = {}
        return True

    def in_flight(self) -> int:
        """Return the number of unfinished plugin calls."""
        return sum(s.pending for one in self.plugins for s in one.kept.stats.values())

    # lifecycle ---------------------------------------------------------------------------------------------------

    def startup(self, done: Callable[[PluginError | None], None]) -> None:
        """Run `on_startup` for every plugin that has not been started yet.

        If a required plugin fails, stop and pass the error to `done`. If another plugin fails, log the error and
        disable that plugin.
        """
        lifecycle.startup(self, done)

    def ready(self, done: Callable[[], None]) -> None:
        """Run `on_ready` for each plugin whose `on_ready` has not run yet. Failures are counted and logged."""
        lifecycle.ready(self, done)

    def reloaded(
        self, old: Any, new: Any, kept: Iterable[PluginInstance], done: Callable[[], None]
    ) -> None:
        """Run `on_reload` for the plugins in `kept`. Failures are counted and logged."""
        mine = {one.id for one in kept}
        chosen = tuple(one for one in self.plugins if one.id in mine)
        lifecycle.each(self, "on_reload", (old, new), chosen, done)

    def shutdown(
        self, deadline: float, done: Callable[[], None], successor: "Hooks | None" = None
    ) -> None:
        """Stop the started plugins, except those that continue in `successor`, within `deadline` seconds.

        The shutdown first waits for unfinished calls and lets observers finish. When the time is up, remaining events
        are dropped. `on_shutdown` then runs in reverse order.
        """
        lifecycle.shutdown(self, deadline, done, successor)

    # provide and register ----------------------------------------------------------------------------------------

    def provide_store(self, config: Settings) -> Store | None:
        """Return the store that a plugin provides, or None.

        Raises StoreError if the store is unusable. Raises PluginError if the hook fails for another reason, or if two
        plugins provide a store.
        """
        store: Store | None = self._only("store", config)
        return store

    def provide_cluster(self, config: Settings) -> Cluster | None:
        """Return the cluster that a plugin provides, or None. Raises PluginError if the hook fails, or if two plugins
        provide a cluster.
        """
        cluster: Cluster | None = self._only("cluster", config)
        return cluster

    def _only(self, kind: str, config: Settings) -> Any:
        provided = self._collect(f"provide_{kind}", lambda _: (config,))
        if len(provided) > 1:
            first, second = provided[0][0], provided[1][0]
            raise PluginError(second, f"provides a {kind}, but plugin {first!r} already does")
        return provided[0][1] if provided else None

    def provide_journals(self, config: Settings) -> tuple[Journal, ...]:
        """Return the journals that plugins provide. Raises PluginError if a hook fails."""
        journals: list[Journal] = []
        for _, answer in self._collect("provide_journal", lambda _: (config,)):
            journals += answer if isinstance(answer, tuple) else (answer,)
        return tuple(journals)

    def register(self, hook: str, target: Callable[[str], Any]) -> None:
        """Call every plugin's implementation of a ``register_`` hook with the result of `target(plugin_id)`.

        Raises PluginError if an implementation fails.
        """
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
                raise PluginError(
                    instance.id, f"{hook} must be synchronous: it returned a coroutine"
                )
            instance.stats(hook).ok += 1
            if answer is not None:
                collected.append((instance.id, answer))
        return collected

    # reading -----------------------------------------------------------------------------------------------------

    def calls(self) -> list[tuple[Mapping[str, str], int]]:
        """Return the number of calls by outcome, for all implemented hooks."""
        return [
            (
                {"hook": name, "outcome": outcome, "plugin": one.instance.id},
                getattr(stats, outcome),
            )
            for name, found in self.registry.items()
            for one in found
            for stats in (one.instance.stats(name),)
            for outcome in SPECS[name].outcomes
        ]

    def metrics(self) -> list[Metric]:
        """Return the counters of all observers, and of the calls to all hooks."""
        rows: list[Metric] = [
            ("hookmq_hook_calls_total", labels, float(count)) for labels, count in self.calls()
        ]
        return rows + self.queues()

    def queues(self) -> list[Metric]:
        """Return the counters of all observers."""
        rows: list[Metric] = []
        for name in OBSERVERS:
            for one in self.registry.get(name, ()):
                rows += _queue_metrics(one.instance, name)
        for instance in self.plugins:
            queue: ObserverQueue | None = instance.kept.queue
            if queue is not None:
                labels = {"plugin": instance.id}
                is_open = float(queue.open_until is not None)
                rows.append(("hookmq_hook_circuit_open", labels, is_open))
        return rows

    def durations(self) -> list[tuple[Mapping[str, str], Histogram]]:
        """Return the durations of all hooks that have been timed, with their labels."""
        return [
            ({"hook": name, "plugin": one.instance.id}, stats.durations())
            for name, found in self.registry.items()
            for one in found
            for stats in (one.instance.stats(name),)
            if stats.timed
        ]

    def snapshots(self) -> tuple[PluginSnapshot, ...]:
        """Return all plugins in configuration order, with their hooks' counters."""
        hooks: dict[str, list[HookSnapshot]] = {one.id: [] for one in self.plugins}
        for name, found in self.registry.items():
            for one in found:
                hooks[one.instance.id].append(_hook_snapshot(one.instance, name))
        return tuple(_plugin_snapshot(one, tuple(hooks[one.id])) for one in self.plugins)

    def services(self, name: str) -> dict[str, object]:
        """Return the services that plugins offer under `name`, by plugin id. Leaves out plugins that are disabled or have
        not been started.
        """
        return {
            one.id: one.plugin.offered_services[name]
            for one in self.plugins
            if one.kept.started and not one.disabled and name in one.plugin.offered_services
        }

    def explain(self, hook: str) -> list[ChainStep]:
        """Return a hook's chain, step by step. Raises KeyError for an unknown hook."""
        spec = SPECS[hook]
        rows = []
        for order, one in enumerate(self.registry[hook], 1):
            entry, plugin = one.instance.entry, one.instance.plugin
            options = entry.options(hook)
            mode = _mode(one)
            # Observer threads have no timeout.
            awaited = ("async",) if spec.kind is HookKind.OBSERVE else ("async", "thread")
            actions = sorted(plugin.authorize_actions) if hook == "authorize" else ()
            rows.append(
                ChainStep(
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
        self._bind_observers()

    def _bind_observers(self) -> None:
        watches = []
        for name in sorted(OBSERVERS):
            for instance, call in self._calls[name, None]:
                if name in instance.kept.paused:
                    continue
                limit = instance.entry.options(name).queue or SPECS[name].queue
                watches.append(ObservedHook(instance, call, limit))
        if self.runtime is not None:
            self.observers.bind(self.runtime, watches)

    def _compile_authorize(self) -> None:
        working = [one for one in self.registry["authorize"] if not one.instance.disabled]
        for action in Action:
            asked = [one for one in working if action in one.instance.plugin.authorize_actions]
            self._calls["authorize", action] = tuple((o.instance, _call(o, action)) for o in asked)
        self.delivers = bool(
            self._calls["on_deliver", None] or self._calls["authorize", Action.DELIVER]
        )

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
            provide_rate_limiter=chain("provide_rate_limiter"),
            hides_username=tuple(
                partial(_hides, one)
                for one in self.plugins
                if not one.disabled and serves(one.entry, listener)
            ),
        )


def _nothing() -> None:
    pass


def serves(entry: PluginEntry, listener: str | None) -> bool:
    """Return whether an entry applies to a listener. None stands for any listener that no entry names."""
    return entry.listeners is None or listener in entry.listeners


def _hides(instance: PluginInstance, username: str) -> bool:
    """Call `Plugin.hides_username`. A failure counts as True. It is logged without its message, which may contain the
    secret."""
    try:
        return bool(instance.plugin.hides_username(username))
    except Exception as error:
        instance.kept.hiding.failed(f"{type(error).__name__}{at(error)}")
        return True


def _mode(one: Implementation) -> str:
    if one.is_async:
        return "async"
    if one.spec.kind is HookKind.OBSERVE:
        return "thread"
    if not one.instance.plugin.blocking:
        return "sync"
    # Hooks without a timeout are synchronous, even in blocking plugins.
    return "sync" if one.spec.timeout is None else "thread"


def _filters(one: Implementation) -> tuple[str, ...] | None:
    if not one.spec.topic:
        return None
    mine = one.instance.entry.options(one.spec.name).filters
    return one.instance.entry.filters if mine is None else mine


def _on_error(one: Implementation) -> str:
    default = one.spec.on_error[0] if one.spec.on_error else ""
    return one.instance.entry.options(one.spec.name).on_error or default


def _call(one: Implementation, action: Action | None = None) -> HookImplementation:
    instance, spec = one.instance, one.spec
    filters = _filters(one)
    about_filter = spec.topic == "filter" or action is Action.SUBSCRIBE
    topic: Narrowing | None = None
    if filters is not None:
        topic = any_overlaps(filters) if about_filter else any_matches(filters)
    return HookImplementation(
        instance.id,
        spec.name,
        adapt(one.function, one.arguments, spec, instance.broker),
        direct=one.function if tuple(one.arguments) == ("message",) else None,
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


def _plugin_snapshot(instance: PluginInstance, hooks: tuple[HookSnapshot, ...]) -> PluginSnapshot:
    entry = instance.entry
    queue: ObserverQueue | None = instance.kept.queue
    circuit_open = queue is not None and queue.open_until is not None
    return PluginSnapshot(
        entry.id, entry.use, instance.version, entry.listeners, entry.filters, instance.disabled, circuit_open, hooks,
    )  # fmt: skip


def _hook_snapshot(instance: PluginInstance, hook: str) -> HookSnapshot:
    stats = instance.stats(hook)
    queue: ObserverQueue | None = instance.kept.queue
    lane = queue.lanes.get(hook) if queue is not None else None
    return HookSnapshot(
        hook,
        {outcome: getattr(stats, outcome) for outcome in SPECS[hook].outcomes},
        stats.timed,
        stats.seconds,
        0 if lane is None else lane.waiting,
        0 if lane is None else lane.dropped,
        stats.last_error,
    )


def _queue_metrics(instance: PluginInstance, hook: str) -> list[Metric]:
    labels = {"hook": hook, "plugin": instance.id}
    rows: list[Metric] = []
    queue: ObserverQueue | None = instance.kept.queue
    lane = queue.lanes.get(hook) if queue is not None else None
    if lane is not None:
        rows.append(("hookmq_hook_queue_depth", labels, float(lane.waiting)))
        rows.append(("hookmq_hook_dropped_total", labels, float(lane.dropped)))
    return rows
