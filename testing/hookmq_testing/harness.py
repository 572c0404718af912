"""A whole in-memory broker for one test, without ports, threads or sleeps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from hookmq.broker import Broker
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.model.client import Peer, Scope
from hookmq.model.metrics import Metrics
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.mqtt.packets import Connect, WillFields
from hookmq.mqtt.properties import Properties
from hookmq.plugin import Plugin
from hookmq.storage.protocols import Journal, Store

from hookmq_testing.client import MemoryClient
from hookmq_testing.packets import make_properties
from hookmq_testing.plugins import instance_of, make_plugin
from hookmq_testing.recorder import Faults
from hookmq_testing.wire import HIGH_WATER, Clock

ALLOW = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
"""The default settings of a harness: if no plugin decides, everything is allowed."""


class Harness:
    """A broker with plugins on a virtual clock, started and ready. Several brokers may share a `clock`.

    `plugins` are plugin objects, classes (created with their default configuration) or results of `make_plugin`. You
    can pass `hooks` instead. `config` overrides `settings` by section: ``{"broker": {"max_qos": 1}, "auth": {"default":
    "deny"}}``. Plugins may provide the store and journals if you pass none.

    Use the harness as a context manager, or call `close`. Both shut everything down and raise AssertionError if the
    broker logged an internal error.
    """

    def __init__(
        self,
        plugins: Iterable[Plugin | type[Plugin] | PluginInstance] = (),
        settings: Settings | None = None,
        hooks: Hooks | None = None,
        store: Store | None = None,
        journals: Sequence[Journal] = (),
        config: Mapping[str, Mapping[str, Any]] | None = None,
        seed: int = 0,
        start: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._owns_clock = clock is None
        self.clock = clock or Clock(seed)
        """The runtime and its virtual clock: ``harness.clock.advance(seconds)``."""
        self.settings = override(settings or ALLOW, config or {})
        self.hooks = hooks or Hooks(_instance(plugin) for plugin in plugins)
        self._faults = Faults(self.clock.event)
        self._intercept(self.hooks)
        self.broker = Broker(self.settings, self.clock, self.hooks, store, journals or None)
        self.store: Store = self.broker.store
        self.journals = self.broker.state.journals
        self.clients: list[MemoryClient] = []
        self.allow_errors = False
        """Whether the broker's internal errors (``internal.error``) are accepted."""
        self._together = 0
        self._closed = False
        if start:
            self.start()

    # --- start and stop ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the store, run `on_startup` and `on_ready`. If startup fails, raise the error."""
        for step in (self.broker.load, self.hooks.startup, self.broker.start):
            error = self.wait(step)
            if error is not None:
                raise error
        self.wait(lambda done: self.hooks.ready(lambda: done(None)))

    def close(self) -> None:
        """Disconnect all clients, shut down the plugins and close the store. Further calls have no effect."""
        if self._closed:
            return
        self._closed = True
        for client in self.clients:
            client.wire.unblock()
            client.auto_ack = False
        self.wait(lambda done: self.broker.drain("", lambda: done(None)), required=False)
        self.wait(lambda done: self.hooks.shutdown(10.0, lambda: done(None)))
        self.wait(lambda done: self.broker.commit(lambda: done(None)), required=False)
        self.broker.end()
        self.wait(lambda done: self.store.close(lambda: done(None)), required=False)
        if self._owns_clock:
            for task in list(self.clock.tasks):
                task.cancel()
        self.clock.run_until_idle()
        errors = [fields for _, event, fields in self.logs if event == "internal.error"]
        if errors and not self.allow_errors:
            raise AssertionError(f"the broker failed: {errors}")

    def __enter__(self) -> "Harness":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(Exception):  # raise the first failure instead
            self.close()

    def restart(self, settings: Settings | None = None, store: Store | None = None) -> None:
        """Simulate a crash: lose all connections and start a new broker from the store and journals, with the same
        plugin objects."""
        for client in self.clients:
            client.wire.closed = True
        self.broker.state.deadlines.clear()
        for instance in self.hooks.plugins:
            instance.broker = None  # otherwise it would use the old broker
        self.settings = settings or self.settings
        self.store = store or self.store
        self.broker = Broker(self.settings, self.clock, self.hooks, self.store, self.journals)
        error = self.wait(self.broker.start)
        if error is not None:
            raise error

    def reload(
        self,
        config: Mapping[str, Mapping[str, Any]] | None = None,
        plugins: Iterable[Plugin | type[Plugin] | PluginInstance] | None = None,
    ) -> None:
        """Reload the broker with changed settings or other plugins; the default keeps both. `on_startup` and `on_ready`
        are called on new plugins."""
        self.settings = override(self.settings, config or {})
        if plugins is not None:
            self.hooks = Hooks(_instance(plugin) for plugin in plugins)
            self._intercept(self.hooks)
        self.broker.reload(self.settings, self.hooks)
        if plugins is not None:
            error = self.wait(self.hooks.startup)
            if error is not None:
                raise error
            self.wait(lambda done: self.hooks.ready(lambda: done(None)))
        self.settle()

    # --- time --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run the event loop until nothing is due and no blocking call is running. Time passes only during blocking
        calls."""
        if not self._together:
            self.clock.run_until_idle()
            self.clock.advance(0)

    def advance(self, seconds: float) -> None:
        """Advance virtual time by `seconds`."""
        self.clock.advance(seconds)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Deliver everything that clients send in this block to the broker in one turn."""
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
        self.settle()

    def wait(self, step: Callable[[Callable[[Any], None]], object], required: bool = True) -> Any:
        """Call `step` with a callback, advance time until it is called, and return its argument.

        If the callback is never called, raise AssertionError, or return None if not `required`.
        """
        told: list[Any] = []
        step(told.append)
        end = self.clock.now() + 3600
        self.clock.run_until_idle()
        while not told:
            due = self.clock.next_timer()
            if due is None or due > end:
                if required:
                    raise AssertionError("the callback will never be called")
                return None
            self.clock.advance(due - self.clock.now())
        return told[0]

    # --- clients -----------------------------------------------------------------------------------------------------

    def connect(
        self,
        client_id: str = "",
        version: int = 5,
        clean_start: bool = True,
        keep_alive: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        will: WillFields | None = None,
        properties: Properties | Mapping[str, Any] | None = None,
        *,
        bridge: bool = False,
        scope: Scope | None = None,
        peer: Peer | None = None,
        auto_ack: bool = True,
        high_water: int = HIGH_WATER,
        expect: int | None = 0,
        **more: Any,
    ) -> MemoryClient:
        """Connect a client, check that its CONNACK has the code `expect` (0 to 5 in MQTT 3.x), and return it.

        If `expect` is None, the response is left unread. `more` are properties, such as ``session_expiry_interval=60``.
        Use the function `will` to create a will.
        """
        packet = Connect(
            client_id,
            version,
            clean_start,
            keep_alive,
            username,
            password,
            will,
            bridge,
            make_properties(properties, more),
        )
        client = self._client(packet, scope, peer, auto_ack, high_water)
        client.handshake(expect)
        return client

    def open(
        self,
        version: int = 5,
        scope: Scope | None = None,
        peer: Peer | None = None,
        auto_ack: bool = True,
        high_water: int = HIGH_WATER,
    ) -> MemoryClient:
        """Return a client that has sent nothing yet. `version` is used to encode and decode packets."""
        return self._client(Connect("", version, True, 0), scope, peer, auto_ack, high_water)

    def _client(
        self,
        packet: Connect,
        scope: Scope | None,
        peer: Peer | None,
        auto_ack: bool,
        high_water: int,
    ) -> MemoryClient:
        client = MemoryClient(
            self,
            packet,
            scope=scope or Scope(),
            peer=peer or Peer("192.0.2.1", 40000 + len(self.clients), "memory"),
            auto_ack=auto_ack,
            high_water=high_water,
        )
        self.clients.append(client)
        return client

    # --- plugins, metrics and logs -----------------------------------------------------------------------------------

    def fail(self, plugin_id: str, hook: str, fault: Any, times: int | None = None) -> None:
        """Make a plugin's hook fail, for `times` calls or until you call `heal`.

        `fault` is an exception to raise, a value to return (valid or not), or ``"timeout"``, which makes the hook never
        return. If `fault` is a function, it is called with the arguments that it names.
        """
        instance = self.hooks.instance(plugin_id)
        if instance is None or not any(
            one.instance is instance for one in self.hooks.registry[hook]
        ):
            raise ValueError(f"no plugin {plugin_id!r} implements {hook}")
        self._faults.set(plugin_id, hook, fault, times)

    def heal(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def handle(self, plugin_id: str) -> BrokerHandle:
        """Return the `BrokerHandle` that the plugin gets as its `broker` argument."""
        instance = self.hooks.instance(plugin_id)
        if instance is None or instance.broker is None:
            raise ValueError(f"unknown plugin {plugin_id!r}")
        return instance.broker

    @property
    def metrics(self) -> Metrics:
        """The broker's counters."""
        return self.broker.metrics

    @property
    def logs(self) -> list[tuple[str, str, dict[str, object]]]:
        """All log events, as (level, event, fields)."""
        return self.clock.logged

    def logged(self, event: str) -> list[dict[str, object]]:
        """Return the fields of each log event named `event`."""
        self.settle()
        return [fields for _, name, fields in self.logs if name == event]

    def _intercept(self, hooks: Hooks) -> None:
        hooks.registry = {
            name: tuple(
                one._replace(
                    function=self._faults.wrap(one.instance.id, name, one.arguments, one.function)
                )
                for one in found
            )
            for name, found in hooks.registry.items()
        }


def override(settings: Settings, config: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return `settings` with the fields in `config` changed, by section. Raises TypeError for unknown names."""
    sections = {name: replace(getattr(settings, name), **dict(config[name])) for name in config}
    return replace(settings, **sections)


def _instance(plugin: Plugin | type[Plugin] | PluginInstance) -> PluginInstance:
    if isinstance(plugin, PluginInstance):
        return plugin
    return make_plugin(plugin) if isinstance(plugin, type) else instance_of(plugin)
