"""Types of listeners that plugins add: how they are told apart, checked, and run like those of our own."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from hookmq.errors import HookMQError, PluginError
from hookmq.metrics import Metrics
from hookmq.runtime import Runtime, Wire
from hookmq.server.gate import Gate, Log
from hookmq.server.ports import Accept, Connection
from hookmq.server.settings import TYPES, ListenerSettings
from hookmq.settings import BrokerSettings
from hookmq.types import Peer, Scope

Enter = Callable[[Wire, Peer], Connection]
"""A transport is there; the answer is who handles it. May close or abort the wire before it returns."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")


class Opened(Protocol):
    """What a factory makes: one listener of a plugin's type. All calls on the loop's thread."""

    @property
    def address(self) -> str:
        """Where it listens, for logs."""

    async def open(self) -> None:
        """Listen. Raises BindError or ConfigError when it cannot, and then holds nothing open."""

    def shut(self) -> None:
        """Accept no more; who is connected stays. Harmless when shut or never opened."""

    async def close(self) -> None:
        """Shut, and let go of everything; also after `open` raised. Wires that were still open have been aborted."""


Factory = Callable[[ListenerSettings, Enter, Runtime], Opened]
"""``factory(settings, accept, runtime)``. `settings.bind` and the mapping `settings.settings` are the plugin's to read;
`accept` is called once for each transport, with a `Wire` for it and its `Peer`, and limits how many there are. It
answers with a connection: `feed` gets the peer's bytes, and `closed` must be called once when the transport ended."""
Check = Callable[[ListenerSettings], None]
"""Raises ConfigError for settings that cannot be used; opens nothing."""


class ListenerTypes:
    """The types of listeners that plugins added, by name."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, Factory, Check | None]] = {}

    def of(self, plugin: str) -> "PluginTypes":
        """The registry as the plugin of that id gets it."""
        return PluginTypes(self, plugin)


class PluginTypes:
    """What `register_listeners` gets."""

    __slots__ = ("_plugin", "_types")

    def __init__(self, types: ListenerTypes, plugin: str) -> None:
        self._types = types
        self._plugin = plugin

    def add(self, name: str, factory: Factory, check: Check | None = None) -> None:
        """Have listeners of ``type: name`` made by `factory`; `check` is asked about their settings when a configuration
        is validated. Raises PluginError for a name that is taken or cannot be."""
        found = self._types.found
        if not _NAME.fullmatch(name):
            raise PluginError(self._plugin, f"{name!r} is no name of a type of listener")
        if name in TYPES:
            raise PluginError(self._plugin, f"listeners of type {name} are HookMQ's own")
        if name in found:
            raise PluginError(
                self._plugin, f"plugin {found[name][0]!r} adds the type {name} as well"
            )
        found[name] = (self._plugin, factory, check)


class PluggedListener:
    """A listener of a plugin's type, with the face of `hookmq.server.listener.Listener`."""

    def __init__(
        self,
        settings: ListenerSettings,
        plugin: str,
        factory: Factory,
        accept: Accept,
        metrics: Metrics,
        runtime: Runtime,
        loop: asyncio.AbstractEventLoop,
        broker: BrokerSettings,
    ) -> None:
        self.settings = settings
        self.gate = Gate(settings, accept, metrics, loop, broker.max_write_buffer, runtime.log)
        self._log: Log = runtime.log
        self._plugin = plugin
        with self._blamed():
            self._opened = factory(settings, self._enter, runtime)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._opened.address

    def _enter(self, wire: Wire, peer: Peer) -> Connection:
        return Counted(self.gate, wire, peer)

    async def open(self, inherited: object = None) -> None:
        """Listen. Raises BindError and ConfigError."""
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

    def apply(self, settings: ListenerSettings) -> None:
        """Take over what may change while connections are open."""
        self.settings = settings
        self.gate.apply(settings)

    async def reload_certificates(self) -> None:
        """Nothing: what a plugin's listener reads it reads by itself."""

    def shut(self) -> None:
        """Accept no more; open connections stay. Harmless when shut."""
        self._opened.shut()
        self.gate.shut()

    async def close(self) -> None:
        """Shut, end at once what is still connected, and return when all are gone."""
        self.shut()
        self.gate.abort_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.close_timeout):
                await self.gate.emptied()
        await self._opened.close()


class Counted:
    """The broker's side of a transport, counted by the gate from its start to its end. Over the limit it is nobody's."""

    __slots__ = ("_connection", "_gate", "_wire")

    def __init__(self, gate: Gate, wire: Wire, peer: Peer) -> None:
        self._gate = gate
        self._wire = wire
        self._connection: Connection | None = None
        if gate.enter(self, peer):
            scope: Scope = gate.scope
            self._connection = gate.accept(wire, peer, scope)
        else:
            wire.abort()

    @property
    def goodbye(self) -> bool:
        """Whether the peer said that it sends nothing more."""
        return self._connection is not None and self._connection.goodbye

    @property
    def accepted(self) -> bool:
        """Whether the client was let in."""
        return self._connection is not None and self._connection.accepted

    def feed(self, data: bytes) -> None:
        """Bytes from the peer."""
        if self._connection is not None:
            self._connection.feed(data)

    def closed(self, error: str = "") -> None:
        """The transport ended; only the first call counts."""
        connection, self._connection = self._connection, None
        self._gate.leave(self)
        if connection is not None:
            connection.closed(error)

    def pause_writing(self) -> None:
        """More is unsent than the high-water mark."""
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """What was unsent went out."""
        if self._connection is not None:
            self._connection.resume_writing()

    # the gate's side: Entrant

    def abort(self) -> None:
        """Close at once."""
        self._wire.abort()

    def retire(self) -> None:
        """Nothing: the broker knows of it and ends it."""
