"""A whole broker in memory for one test: no port, no thread, no sleep."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from hookmq.broker import Broker
from hookmq.codec import Connect, WillFields
from hookmq.hooks.entry import PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.specs import BrokerHandle
from hookmq.metrics import Metrics
from hookmq.plugin import Plugin
from hookmq.properties import Properties
from hookmq.settings import AuthSettings, AuthzSettings, Settings
from hookmq.store import Journal, Store
from hookmq.testing.client import MemoryClient, make_properties
from hookmq.testing.plugins import instance_of, make_plugin
from hookmq.testing.recorder import Faults
from hookmq.testing.wire import HIGH_WATER, Clock
from hookmq.types import Peer, Scope

ALLOW = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
"""The settings of a harness unless it is given others: whatever no plugin decides is allowed."""


class Harness:
    """A broker with plugins, on a virtual clock, started and ready.

    `plugins` are plugin objects, classes (constructed with their defaults) or `PluginInstance`s from `make_plugin`; or
    give `hooks`. `config` overrides `settings` by section: ``{"broker": {"max_qos": 1}, "auth": {"default": "deny"}}``. A
    plugin may provide the store and journals where none are given. As a context manager, or with `close`, everything is
    shut down and an AssertionError raised if the broker logged an error of its own.
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
    ) -> None:
        self.clock = Clock(seed)
        """The runtime: ``harness.clock.advance(seconds)``."""
        self.settings = override(settings or ALLOW, config or {})
        self.hooks = hooks or Hooks(_instance(plugin) for plugin in plugins)
        self._faults = Faults(self.clock.event)
        self._intercept(self.hooks)
        self.broker = Broker(self.settings, self.clock, self.hooks, store, journals or None)
        self.store: Store = self.broker.store
        self.journals = self.broker.core.journals
        self.clients: list[MemoryClient] = []
        self.allow_errors = False
        """Whether errors that the broker logs of itself (``internal.error``) are no failure of the test."""
        self._together = 0
        self._closed = False
        if start:
            self.start()

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run `on_startup`, load the store, run `on_ready`. Raises what forbids to start."""
        for step in (self.hooks.startup, self.broker.start):
            error = self.wait(step)
            if error is not None:
                raise error
        self.wait(lambda done: self.hooks.ready(lambda: done(None)))

    def close(self) -> None:
        """Disconnect everybody, shut the plugins down, close the store; once."""
        if self._closed:
            return
        self._closed = True
        for client in self.clients:
            client.wire.unblock()
            client.auto_ack = False
        self.wait(lambda done: self.broker.drain("", lambda: done(None)), required=False)
        self.wait(lambda done: self.hooks.shutdown(10.0, lambda: done(None)))
        self.wait(lambda done: self.store.close(lambda: done(None)), required=False)
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
        with suppress(Exception):  # the first failure is the one to see
            self.close()

    def restart(self, settings: Settings | None = None, store: Store | None = None) -> None:
        """As after a crash: every connection is lost without the broker noticing, and a new broker starts from the store
        and the journals, with the same plugin objects."""
        for client in self.clients:
            client.wire.closed = True
        self.broker.core.deadlines.clear()
        for instance in self.hooks.plugins:
            instance.broker = None  # else it would speak to the broker that is no more
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
        """Go on with other settings (those in force, overridden) and other plugins (the same by default). New plugins
        get `on_startup` and then `on_ready`."""
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
        """Run the loop until nothing is left to do at this time, timers that are due included, and no blocking call is
        under way; time passes as far as those need."""
        if not self._together:
            self.clock.run_until_idle()
            self.clock.advance(0)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What clients send in this block reaches the broker in one turn of its loop."""
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
        self.settle()

    def wait(self, step: Callable[[Callable[[Any], None]], object], required: bool = True) -> Any:
        """Call `step` with a `done`, and let time pass until that is called; what it was called with. AssertionError if
        it never is and `required`."""
        told: list[Any] = []
        step(told.append)
        end = self.clock.now() + 3600
        self.clock.run_until_idle()
        while not told:
            due = self.clock.next_timer()
            if due is None or due > end:
                if required:
                    raise AssertionError("it waits for what will not happen")
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
        """A client that sent CONNECT and got CONNACK with the code `expect` (a return code, 0 to 5, in MQTT 3.x); None
        does not look at the answer. `more` are properties: ``session_expiry_interval=60``. See `will` for wills."""
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
        """A connection on which nothing was said yet; `version` is how packets are encoded and decoded."""
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

    # --- plugins and what can be seen --------------------------------------------------------------------------------

    def fail(self, plugin_id: str, hook: str, fault: Any, times: int | None = None) -> None:
        """Have a plugin's hook fail: `fault` is an exception to raise, ``"timeout"`` for an answer that never comes, or
        anything to answer instead, right or wrong; a function is called with the arguments it names. `times` calls, or
        all until `heal`."""
        instance = self.hooks.instance(plugin_id)
        if instance is None or not any(
            one.instance is instance for one in self.hooks.registry[hook]
        ):
            raise ValueError(f"no plugin {plugin_id!r} implements {hook}")
        self._faults.set(plugin_id, hook, fault, times)

    def heal(self) -> None:
        """End all faults."""
        self._faults.clear()

    def handle(self, plugin_id: str) -> BrokerHandle:
        """The `broker` argument of a plugin."""
        instance = self.hooks.instance(plugin_id)
        if instance is None or instance.broker is None:
            raise ValueError(f"there is no plugin {plugin_id!r}")
        return instance.broker

    @property
    def metrics(self) -> Metrics:
        """The broker's counters."""
        return self.broker.metrics

    @property
    def logs(self) -> list[tuple[str, str, dict[str, object]]]:
        """What was logged, as (level, event, fields)."""
        return self.clock.logged

    def logged(self, event: str) -> list[dict[str, object]]:
        """The fields of each time that `event` was logged."""
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
    """`settings` with fields changed, by section. Raises TypeError for a name that does not exist."""
    sections = {name: replace(getattr(settings, name), **dict(config[name])) for name in config}
    return replace(settings, **sections)


def _instance(plugin: Plugin | type[Plugin] | PluginInstance) -> PluginInstance:
    if isinstance(plugin, PluginInstance):
        return plugin
    return make_plugin(plugin) if isinstance(plugin, type) else instance_of(plugin)
