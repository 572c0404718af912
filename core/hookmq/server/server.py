"""The server, which runs the broker and its listeners, and handles signals and the service manager."""

import asyncio
import gc
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1, Signals
from typing import Any, Final

from hookmq import BUILD
from hookmq.model.errors import ConfigError, StoreError
from hookmq.model.reload_report import ReloadDone, ReloadReport
from hookmq.model.settings import BrokerSettings
from hookmq.model.snapshots import ListenerSnapshot
from hookmq.mqtt.errors import HookMQError
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.client_drain import ClientDrain
from hookmq.server.connection_limit import ListenerConnections
from hookmq.server.extensions import PluginExtensions
from hookmq.server.http import HttpSite, ServerPhase
from hookmq.server.listener import Listener
from hookmq.server.loop import finished
from hookmq.server.plugin_listeners import CountedConnection, ListenerTypes, PluginListener
from hookmq.server.protocols import Broker
from hookmq.server.settings import HTTP, ListenerSettings
from hookmq.server.systemd import inherited_sockets, notify, watchdog_interval
from hookmq.server.watchdog import LoopWatchdog
from hookmq.storage.cluster import RelayTarget

GC_THRESHOLDS: Final = (50_000, 50, 100)
"""Thresholds for Python's garbage collector. The broker makes few reference cycles and many long-lived objects. With
the default threshold of 700 allocations, collections would mostly traverse sessions and routes. Objects that exist
after startup are frozen, so the collector never visits them again.
"""
REPORTED: Final[Mapping[str, str]] = {
    "listener.handshake_failed": "broker.handshake_failed",
    "listener.refused": "broker.connection_refused",
}
"""The listeners' log events that are reported to `on_event`, and their names there."""
AnyListener = Listener | PluginListener
Reload = Callable[[], Awaitable[ReloadReport]]
"""Rereads the configuration, applies it and returns the changes. Raises HookMQError if it cannot be used."""


class Server:
    """Serves `broker` on `listeners`. SIGHUP calls `reload`, then rereads the certificates.

    After `stop`, the caller must close the runtime, the store and the plugins. Usage::

        server = Server(broker, listeners, runtime)
        await server.run()                      # until a signal
        await server.start(); ...; await server.stop()   # or
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
        self._watchdog = LoopWatchdog(self._loop, broker.metrics, runtime.log)
        self._hurry: asyncio.Future[None] = self._loop.create_future()
        self._stop_wanted = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False
        self._reload_waiting: list[ReloadDone] = []
        """Functions to call after the next reload that starts."""
        self._pulse: asyncio.TimerHandle | None = None
        self._started = False
        self._start: asyncio.Task[None] | None = None
        self._ending = False
        self._failure = ""
        self._types = ListenerTypes()
        self._site = HttpSite(self.readiness)
        broker.on_failure = self._failed
        broker.listeners = self.snapshots
        broker.relay_target = self.relay_target
        self._drain = ClientDrain(broker, self._loop, self._mqtt_gates, self.phase)
        broker.drainer = self._drain
        if reload is not None:
            broker.reloader = self.request_reload
        names = [settings.name for settings in self._wanted]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"two listeners are named {twice[0]!r}")

    async def start(self, inherited: Mapping[str, socket.socket] | None = None) -> None:
        """Start the server: open HTTP listeners, load the stored state, call `prepare`, then open all other listeners.

        Meanwhile, HTTP listeners report "starting". A listener uses the socket in `inherited` that has its name. If
        startup fails, nothing remains open, and StoreError, BindError or ConfigError is raised.
        """
        sockets = dict(inherited or {})
        try:
            await self._open([one for one in self._wanted if one.type in HTTP], sockets)
            await finished(self.broker.load)
            await self.prepare()
            await finished(self.broker.start)
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
        """Prepare for startup, once the broker has loaded its state. Subclasses with plugins start them here."""

    async def _open(
        self, wanted: Sequence[ListenerSettings], sockets: dict[str, socket.socket]
    ) -> None:
        for settings in wanted:
            listener = self.make(settings, self.broker.settings.broker, self._types)
            self.listeners[settings.name] = listener
            await listener.open(sockets.pop(settings.name, None))

    def use(self, extensions: PluginExtensions) -> None:
        """Install plugins' additions to the server. Call this before `start` and at each reload.

        New listener types affect only listeners opened later. HTTP routes, metrics and the watchdog's code owners take
        effect at once.
        """
        self._types = extensions.types
        self._watchdog.owner = extensions.owner
        self._site.metrics = extensions.metrics
        self._site.router = extensions.router

    def make(
        self, settings: ListenerSettings, broker: BrokerSettings, types: ListenerTypes
    ) -> AnyListener:
        """Make a listener without opening it. Raises ConfigError if its type is neither built in nor in `types`."""
        found = types.found.get(settings.type)
        accept, metrics, runtime = self.broker.accept, self.broker.metrics, self.runtime
        listener: AnyListener
        if found is not None:
            plugin, factory, _ = found
            listener = PluginListener(
                settings, plugin, factory, accept, metrics, runtime, self._loop, broker
            )
        else:
            listener = Listener(
                settings, accept, metrics, self._log, broker, self._loop, self._site
            )
        return listener

    def admit(self, listener: AnyListener) -> None:
        """Accept connections on a listener that a reload has added, unless the server is draining."""
        listener.gate.open = listener.settings.type in HTTP or not self._drain.active

    def _mqtt_gates(self) -> list[ListenerConnections]:
        """Return the connections of each listener, except those for HTTP."""
        return [one.gate for one in self.listeners.values() if one.settings.type not in HTTP]

    def _log(self, level: str, event: str, /, **fields: object) -> None:
        """Log a listener's event. If it is in `REPORTED`, notify the observers of `on_event` as well."""
        self.runtime.log(level, event, **fields)
        name = REPORTED.get(event)
        if name is not None:
            self.broker.report(name, str(fields.pop("listener", "")), fields)

    def phase(self) -> ServerPhase:
        """Return the server's phase."""
        if self._failure:
            return "failed"
        if self._ending or self._stop_wanted.is_set():
            return "stopping"
        if self._started:
            return "draining" if self._drain.active else "ready"
        return "starting"

    def readiness(self) -> str:
        """Return what ``/readyz`` reports: the phase, or why the clients of a ready node should use other ones."""
        phase = self.phase()
        return self.broker.unready() or phase if phase == "ready" else phase

    def connections(self) -> dict[str, int]:
        """Return the number of open transports of each listener, by name."""
        return {name: len(listener.gate.entered) for name, listener in self.listeners.items()}

    def snapshots(self) -> tuple[ListenerSnapshot, ...]:
        """Return the listeners as plugins see them, in configuration order."""
        return tuple(
            ListenerSnapshot(
                name,
                one.settings.type,
                one.address,
                len(one.gate.entered),
                one.gate.max_connections,
            )
            for name, one in self.listeners.items()
        )

    def relay_target(self, listener: str) -> RelayTarget | None:
        """Return an open MQTT listener by name, for connections that other nodes of a cluster relay."""
        found = self.listeners.get(listener)
        if found is None or found.settings.type in HTTP or not found.gate.open:
            return None
        gate = found.gate
        accept = partial(self.broker.accept, relayed=True)
        return RelayTarget(gate.scope, partial(CountedConnection, gate, accept=accept))

    async def stop(self, reference: str = "") -> None:
        """Stop accepting connections, disconnect all clients, and commit.

        Clients get `reference`, or `broker.server_reference`, as the server to use. Returns once all connections have
        ended; aborts those still open after `broker.shutdown_timeout`. HTTP listeners remain open until then, and
        ``/readyz`` returns 503.
        """
        if not self._started:
            return
        self._started = False
        self._ending = True
        self._drain.end()
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
        # Retrieve the result of the cancelled task, or asyncio would report an exception that was never retrieved.
        await asyncio.gather(work, return_exceptions=True)
        await self._close_listeners()
        self._watchdog.stop()
        self.runtime.log("info", "node.drained")

    async def _close_listeners(self) -> None:
        for listener in self.listeners.values():
            await listener.close()

    async def run(self, sockets: Mapping[str, socket.socket] | None = None) -> None:
        """Start, serve until SIGTERM or SIGINT, and stop. A second signal stops at once, as does the first one during the
        start. SIGHUP reloads, and SIGUSR1 logs the state.

        Notifies the service manager and uses its sockets, or those in `sockets`. Hides all existing objects from the
        garbage collector (`gc.freeze`), so it must own the process. If the store fails, stops and raises StoreError:
        repeating an fsync could hide lost data.
        """
        handlers: dict[Signals, Callable[[], None]] = {
            SIGTERM: self.request_stop,
            SIGINT: self.request_stop,
            SIGHUP: self.request_reload,
            SIGUSR1: self.dump,
        }
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        try:
            sockets = inherited_sockets() if sockets is None else sockets
            self._start = self._loop.create_task(self.start(sockets))
            try:
                await self._start
            except asyncio.CancelledError:
                if not self._stop_wanted.is_set():
                    raise
                return
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
        """Notify the service manager's watchdog, which restarts a broker whose event loop hangs."""
        interval = watchdog_interval()
        if interval:
            notify("WATCHDOG=1")
            self._pulse = self._loop.call_later(interval, self._beat)

    def request_stop(self) -> None:
        """Ask `run` to stop. A second call stops it without waiting for clients. During the start, the first one does."""
        if self._stop_wanted.is_set() and not self._hurry.done():
            self._hurry.set_result(None)
        self._stop_wanted.set()
        if self._start is not None:
            self._start.cancel()

    def request_reload(self, done: ReloadDone | None = None) -> None:
        """Reload in the background, then call `done`. If further requests arrive during a reload, they share one more
        reload after it. A caller that passes `done` gets an error unless the server is ready.
        """
        if done is not None:
            phase = self.phase()
            if phase != "ready":
                done(None, RuntimeError(f"the broker is {phase}"))
                return
            self._reload_waiting.append(done)
        if self._reloading is None or self._reloading.done():
            self._reloading = self._loop.create_task(self._reload_all())
        else:
            self._reload_again = True

    async def _reload_all(self) -> None:
        notify(f"RELOADING=1\nMONOTONIC_USEC={int(self.runtime.now() * 1e6)}")
        waiting, self._reload_waiting = self._reload_waiting, []
        report: ReloadReport | None = None
        failed: BaseException | None = None
        try:
            if self._reload is not None:
                report = await self._reload()
        except asyncio.CancelledError:
            failed = RuntimeError("the broker is stopping")
            waiting += self._reload_waiting
            raise
        except Exception as error:
            failed = error
            changed = list(error.changed) if isinstance(error, HookMQError) else []
            self.runtime.log("error", "node.reload_failed", error=str(error), changed=changed)
        finally:
            for done in waiting:
                done(report, failed)
        await self.reload_certificates()
        notify("READY=1")
        if failed is None:
            self.runtime.log("info", "node.reloaded")
        if self._reload_again:
            self._reload_again = False
            await self._reload_all()

    async def reload_certificates(self) -> bool:
        """Reread the certificates of all listeners, and return whether all of them could be used.

        If new certificates cannot be used, the listener keeps the old ones, and the error is logged.
        """
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
        """Return the address of each listener, by name."""
        return {name: listener.address for name, listener in self.listeners.items()}

    def state(self) -> dict[str, Any]:
        """Return the state that `dump` logs."""
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
