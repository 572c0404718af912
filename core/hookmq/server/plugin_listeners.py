"""Listener types added by plugins: their registry, and the listeners that run them."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from hookmq.model.client import Peer
from hookmq.model.errors import PluginError
from hookmq.model.metrics import Metrics
from hookmq.model.runtime import Runtime, Wire
from hookmq.model.settings import BrokerSettings
from hookmq.mqtt.errors import HookMQError
from hookmq.server.base_listener import BaseListener
from hookmq.server.connection_limit import ListenerConnections, Log
from hookmq.server.protocols import AcceptConnection, ConnectionHandler
from hookmq.server.settings import TYPES, ListenerSettings

EnterConnection = Callable[[Wire, Peer], ConnectionHandler]
"""Returns the handler for a new transport. It may close or abort the wire before it returns."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")


class OpenedListener(Protocol):
    """A plugin's listener, as its factory returns it. All methods are called on the loop's thread."""

    @property
    def address(self) -> str:
        """The address to show in logs."""

    async def open(self) -> None:
        """Start listening. If it fails, leave nothing open and raise BindError or ConfigError."""

    def shut(self) -> None:
        """Stop accepting, but keep open connections. Calling this again, or before `open`, must be harmless."""

    async def close(self) -> None:
        """Release all resources, even after `open` has raised an error. All wires have already been aborted."""


ListenerFactory = Callable[[ListenerSettings, EnterConnection, Runtime], OpenedListener]
"""``factory(settings, accept, runtime)`` makes a listener from `settings.bind` and the mapping `settings.settings`.

For each transport, call `accept` once with its `Wire` and `Peer`; it returns a handler. Pass the peer's bytes to the
handler's `feed`, and call its `closed` once when the transport ends. `accept` enforces ``max_connections``.
"""
ListenerCheck = Callable[[ListenerSettings], None]
"""Raises ConfigError for unusable settings. It must not open anything."""


class ListenerTypes:
    """The listener types that plugins added, by name."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, ListenerFactory, ListenerCheck | None]] = {}

    def of(self, plugin: str) -> "PluginTypes":
        """Return the registry for the plugin with the id `plugin`."""
        return PluginTypes(self, plugin)


class PluginTypes:
    """Adds listener types for one plugin; the argument of `register_listeners`."""

    __slots__ = ("_plugin", "_types")

    def __init__(self, types: ListenerTypes, plugin: str) -> None:
        self._types = types
        self._plugin = plugin

    def add(self, name: str, factory: ListenerFactory, check: ListenerCheck | None = None) -> None:
        """Register `factory` for listeners with ``type: name``. `check` validates their settings before they are made.

        Raises PluginError if the name is invalid or taken.
        """
        found = self._types.found
        problem = ""
        if not _NAME.fullmatch(name):
            problem = f"invalid listener type {name!r}"
        elif name in TYPES:
            problem = f"HookMQ has a listener type {name}"
        elif name in found:
            problem = f"plugin {found[name][0]!r} also adds the listener type {name}"
        if problem:
            raise PluginError(self._plugin, problem)
        found[name] = (self._plugin, factory, check)


class PluginListener(BaseListener):
    """A listener whose type was added by a plugin."""

    def __init__(
        self,
        settings: ListenerSettings,
        plugin: str,
        factory: ListenerFactory,
        accept: AcceptConnection,
        metrics: Metrics,
        runtime: Runtime,
        loop: asyncio.AbstractEventLoop,
        broker: BrokerSettings,
    ) -> None:
        self._log: Log = runtime.log
        high = broker.max_write_buffer
        super().__init__(
            settings, ListenerConnections(settings, accept, metrics, loop, high, self._log)
        )
        self._plugin = plugin
        with self._blamed():
            self._opened = factory(settings, self._enter, runtime)

    @property
    def address(self) -> str:
        """The address on which the plugin's listener accepts connections."""
        return self._opened.address

    def _enter(self, wire: Wire, peer: Peer) -> ConnectionHandler:
        return CountedConnection(self.gate, wire, peer)

    async def open(self, inherited: object = None) -> None:
        """Start listening. Raises BindError or ConfigError."""
        with self._blamed():
            await self._opened.open()
        self._log(
            "info", "listener.opened", listener=self.settings.name, type=self.settings.type,
            address=self.address,
        )  # fmt: skip

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except HookMQError:
            raise
        except Exception as error:
            message = f"the listener {self.settings.name!r} cannot open: {error!r}"
            raise PluginError(self._plugin, message) from error

    async def reload_certificates(self) -> None:
        """Do nothing: the plugin rereads its own files."""

    def shut(self) -> None:
        """Stop accepting, but keep open connections. Calling this again is harmless."""
        self._opened.shut()
        super().shut()

    async def close(self) -> None:
        """Stop accepting, close all connections at once, and wait until they have ended."""
        await super().close()
        await self._opened.close()


class CountedConnection:
    """The broker's side of a transport, counted in `gate` while it is open. Aborts the transport if `gate` is full.

    `accept` makes the connection; the default is that of `gate`.
    """

    __slots__ = ("_connection", "_gate", "_wire")

    def __init__(
        self,
        gate: ListenerConnections,
        wire: Wire,
        peer: Peer,
        accept: AcceptConnection | None = None,
    ) -> None:
        self._gate = gate
        self._wire = wire
        self._connection: ConnectionHandler | None = None
        if gate.enter(self, peer):
            self._connection = (accept or gate.accept)(wire, peer, gate.scope)
        else:
            wire.abort()

    @property
    def goodbye(self) -> bool:
        """True if the peer announced that it will send nothing more."""
        return self._connection is not None and self._connection.goodbye

    @property
    def accepted(self) -> bool:
        """True once the client is accepted."""
        return self._connection is not None and self._connection.accepted

    def feed(self, data: bytes) -> None:
        """Process bytes received from the peer."""
        if self._connection is not None:
            self._connection.feed(data)

    def closed(self, error: str = "") -> None:
        """Clean up after the transport has closed. Further calls are ignored."""
        connection, self._connection = self._connection, None
        self._gate.leave(self)
        if connection is not None:
            connection.closed(error)

    def pause_writing(self) -> None:
        """Record that the unsent bytes exceed the high-water mark."""
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Record that the unsent bytes have been sent."""
        if self._connection is not None:
            self._connection.resume_writing()

    # the OpenTransport protocol, for ListenerConnections

    def abort(self) -> None:
        """Close the transport at once."""
        self._wire.abort()

    def retire(self) -> None:
        """Do nothing: the broker knows this connection and will close it."""
