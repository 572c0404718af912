"""A running broker: the core, its listeners, the service manager and the signals of one process."""

import asyncio
import gc
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1, Signals
from typing import Any, Final

from hookmq import BUILD
from hookmq.errors import ConfigError, HookMQError, StoreError
from hookmq.server.extensions import Extensions
from hookmq.server.http import Site, State
from hookmq.server.listener import Listener
from hookmq.server.plugged import ListenerTypes, PluggedListener
from hookmq.server.ports import Broker
from hookmq.server.runtime import AsyncioRuntime
from hookmq.server.settings import HTTP, ListenerSettings
from hookmq.server.systemd import inherited_sockets, notify, watchdog_interval
from hookmq.server.watchdog import Watchdog
from hookmq.settings import BrokerSettings

GC_THRESHOLDS: Final = (50_000, 50, 100)
"""The broker makes few cycles and many long-lived objects: a collection every 700 allocations (Python's default) mostly
looks at sessions and routes that stay. What exists after start is frozen, never looked at again."""
AnyListener = Listener | PluggedListener
Reload = Callable[[], Awaitable[None]]
"""Reads the configuration again; raises HookMQError when it cannot be used."""


class Node:
    """`broker` behind `listeners`. `reload` is run on SIGHUP, after which certificates are read again too. The runtime,
    the store and the plugins stay the caller's, to be closed after `stop`. Used as

        node = Node(broker, listeners, runtime)
        await node.run()                      # until a signal
    or
        await node.start(); ...; await node.stop()
    """

    def __init__(
        self,
        broker: Broker,
        listeners: Sequence[ListenerSettings],
        runtime: AsyncioRuntime,
        *,
        reload: Reload | None = None,
    ) -> None:
        self.broker = broker
        self.runtime = runtime
        self.listeners: dict[str, AnyListener] = {}
        self._wanted = tuple(listeners)
        self._reload = reload
        self._loop = runtime.loop
        self._watchdog = Watchdog(self._loop, broker.metrics, runtime.log)
        self._hurry: asyncio.Future[None] = self._loop.create_future()
        self._stop_wanted = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False
        self._pulse: asyncio.TimerHandle | None = None
        self._started = False
        self._ending = False
        self._failure = ""
        self._types = ListenerTypes()
        self._site = Site(self.phase)
        broker.on_failure = self._failed
        names = [settings.name for settings in self._wanted]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"two listeners are named {twice[0]!r}")

    async def start(self, inherited: Mapping[str, socket.socket] | None = None) -> None:
        """Open listeners of type http, which say that it starts; `prepare`, load what is stored, then open the others.
        A listener takes the socket of `inherited` that has its name. When it raises (StoreError, BindError, ConfigError),
        nothing stays open."""
        loaded: asyncio.Future[None] = self._loop.create_future()

        def done(error: BaseException | None = None) -> None:
            if not loaded.done():
                loaded.set_exception(error) if error is not None else loaded.set_result(None)

        sockets = dict(inherited or {})
        try:
            await self._open([one for one in self._wanted if one.type in HTTP], sockets)
            await self.prepare()
            self.broker.start(done)
            await loaded
            await self._open([one for one in self._wanted if one.type not in HTTP], sockets)
            self.listeners = {one.name: self.listeners[one.name] for one in self._wanted}
        except BaseException:
            await self._close_listeners()
            raise
        finally:
            for name, unused in sockets.items():
                self.runtime.log("warning", "listener.unknown_socket", name=name)
                unused.close()
        self._watchdog.start()
        self._started = True

    async def prepare(self) -> None:
        """Do what comes before the broker loads its state. Whoever makes a `Node` with plugins starts them here."""

    async def _open(
        self, wanted: Sequence[ListenerSettings], sockets: dict[str, socket.socket]
    ) -> None:
        for settings in wanted:
            listener = self.make(settings, self.broker.settings.broker, self._types)
            self.listeners[settings.name] = listener
            await listener.open(sockets.pop(settings.name, None))

    def use(self, extensions: Extensions) -> None:
        """Offer what plugins add, to be called before `start` and at a reload: types of listeners to those that are yet
        to be opened, routes and metrics at once. The watchdog blames these plugins from then on."""
        self._types = extensions.types
        self._watchdog.owner = extensions.owner
        self._site.metrics = extensions.metrics
        self._site.router = extensions.router

    def make(
        self, settings: ListenerSettings, broker: BrokerSettings, types: ListenerTypes
    ) -> AnyListener:
        """A listener, not yet open. Raises ConfigError for one of a type that is neither ours nor among `types`."""
        found = types.found.get(settings.type)
        accept, metrics, runtime = self.broker.accept, self.broker.metrics, self.runtime
        if found is not None:
            plugin, factory, _ = found
            return PluggedListener(
                settings, plugin, factory, accept, metrics, runtime, self._loop, broker
            )
        return Listener(settings, accept, metrics, runtime.log, broker, self._loop, self._site)

    def phase(self) -> State:
        """What it is doing, as ``/readyz`` tells."""
        if self._failure:
            return "failed"
        if self._ending or self._stop_wanted.is_set():
            return "stopping"
        return "ready" if self._started else "starting"

    def connections(self) -> dict[str, int]:
        """How many transports are open, by listener."""
        return {name: len(listener.gate.entered) for name, listener in self.listeners.items()}

    async def stop(self, reference: str = "") -> None:
        """Accept no more clients, disconnect all (naming `reference`, or `broker.server_reference`, as the next), commit,
        and return when all are gone or `broker.shutdown_timeout` passed; those that are left are then cut off.
        Listeners of type http stay open until then: ``/readyz`` answers 503."""
        if not self._started:
            return
        self._started = False
        self._ending = True
        settings = self.broker.settings.broker
        listeners = [one for one in self.listeners.values() if one.settings.type not in HTTP]
        for listener in listeners:
            listener.shut()
        drained: asyncio.Future[None] = self._loop.create_future()
        self.broker.drain(
            reference or settings.server_reference,
            lambda: None if drained.done() else drained.set_result(None),
        )
        emptied = [self._loop.create_task(listener.gate.emptied()) for listener in listeners]
        work = asyncio.gather(drained, *emptied)
        await asyncio.wait(
            (work, self._hurry),
            timeout=settings.shutdown_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not work.done():
            open_ = sum(len(listener.gate.entered) for listener in listeners)
            self.runtime.log(
                "warning", "node.drain_cut_short", connections=open_, committed=drained.done()
            )
            work.cancel()
        # Its cancelling is of our own making: gather() would have asyncio report it as an exception nobody looked at.
        await asyncio.gather(work, return_exceptions=True)
        await self._close_listeners()
        self._watchdog.stop()
        self.runtime.log("info", "node.drained")

    async def _close_listeners(self) -> None:
        for listener in self.listeners.values():
            await listener.close()

    async def run(self) -> None:
        """Start, serve until SIGTERM or SIGINT, stop. SIGINT again stops at once, SIGHUP reloads, SIGUSR1 logs the state
        (`dump`). Tells the service manager and takes the sockets it opened. Freezes the garbage collector's view of what
        was loaded, so it is for the process whose work this is. A store that fails stops it too; then it raises
        StoreError, as an fsync tried again may lie."""
        handlers: dict[Signals, Callable[[], None]] = {
            SIGTERM: self.request_stop,
            SIGINT: self.request_stop,
            SIGHUP: self.request_reload,
            SIGUSR1: self.dump,
        }
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        try:
            await self.start(inherited_sockets())
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            notify("READY=1")
            self._beat()
            self.runtime.log("info", "node.started", build=str(BUILD), listeners=self.addresses())
            await self._stop_wanted.wait()
            notify("STOPPING=1")
            self.runtime.log("info", "node.stopping")
            if self._reloading is not None:
                self._reloading.cancel()
            await self.stop()
            if self._failure:
                raise StoreError(f"the store failed: {self._failure}")
        finally:
            if self._pulse is not None:
                self._pulse.cancel()
            for number in handlers:
                self._loop.remove_signal_handler(number)

    def _failed(self, reason: str) -> None:
        self._failure = reason or "a commit failed"
        self.runtime.log("error", "node.store_failed", error=self._failure)
        self._stop_wanted.set()

    def _beat(self) -> None:
        """From the loop, so that the service manager restarts a broker whose loop hangs."""
        interval = watchdog_interval()
        if interval:
            notify("WATCHDOG=1")
            self._pulse = self._loop.call_later(interval, self._beat)

    def request_stop(self) -> None:
        """Make `run` stop; a second time, without waiting for clients."""
        if self._stop_wanted.is_set() and not self._hurry.done():
            self._hurry.set_result(None)
        self._stop_wanted.set()

    def request_reload(self) -> None:
        """Reload in the background; requests during a reload make one more, after it."""
        if self._reloading is None or self._reloading.done():
            self._reloading = self._loop.create_task(self._reload_all())
        else:
            self._reload_again = True

    async def _reload_all(self) -> None:
        notify(f"RELOADING=1\nMONOTONIC_USEC={int(self.runtime.now() * 1e6)}")
        worked = True
        try:
            if self._reload is not None:
                await self._reload()
        except Exception as error:
            worked = False
            changed = list(error.changed) if isinstance(error, HookMQError) else []
            self.runtime.log("error", "node.reload_failed", error=str(error), changed=changed)
        await self.reload_certificates()
        notify("READY=1")
        if worked:
            self.runtime.log("info", "node.reloaded")
        if self._reload_again:
            self._reload_again = False
            await self._reload_all()

    async def reload_certificates(self) -> bool:
        """Read every listener's certificates again; a listener whose new ones cannot be used keeps the old, and that is
        logged. Whether all could be used."""
        good = True
        for name, listener in self.listeners.items():
            try:
                await listener.reload_certificates()
            except ConfigError as error:
                good = False
                self.runtime.log(
                    "error", "listener.certificates_refused", listener=name, error=str(error)
                )
        return good

    def addresses(self) -> dict[str, str]:
        """Where each listener listens."""
        return {name: listener.address for name, listener in self.listeners.items()}

    def state(self) -> dict[str, Any]:
        """What goes on, in numbers; what `dump` logs."""
        return {
            "listeners": self.addresses(),
            "connections": self.connections(),
            "sessions": len(getattr(self.broker, "sessions", ())),
            "tasks": len(asyncio.all_tasks(self._loop)),
            "threads": threading.active_count(),
            "objects": len(gc.get_objects()),
            "python": sys.version.split()[0],
            "loop": type(self._loop).__module__.partition(".")[0],
            "metrics": self.broker.metrics.snapshot(),
        }

    def dump(self) -> None:
        """Log `state` as ``node.state``."""
        self.runtime.log("info", "node.state", **self.state())
