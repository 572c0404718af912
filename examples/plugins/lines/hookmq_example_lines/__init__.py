"""A gateway for devices that exchange lines of text: a plugin that opens clients.

The plugin has its own TCP listener. Each connection becomes one of the broker's clients; see
`connection`.
"""

import asyncio
from dataclasses import dataclass

from hookmq.plugin import BrokerHandle, ConfigError, Plugin, hookimpl, setting

from hookmq_example_lines.connection import LineConnection


@dataclass(frozen=True)
class LinesConfig:
    """The listener's address, and the clients' settings."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int | None = setting(
        None, "port to listen on; 0 lets the system choose; none does not listen", maximum=65535
    )
    max_connections: int = setting(1000, "devices connected at once", minimum=1)
    mount_point: str = setting("", "prefix of all topics of the devices")

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("host: expected an address")


class LinesPlugin(Plugin):
    """A plugin that listens for devices. When the plugin ends, so do its clients, and their wills are published."""

    Config = LinesConfig
    config: LinesConfig

    _server: asyncio.Server | None = None

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Open the listener. The log event `lines.opened` contains its port."""
        self._connections: set[LineConnection] = set()
        if self.config.port is None:
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: LineConnection(
                broker, self.config.mount_point, self._enter, self._connections.discard
            ),
            self.config.host,
            self.config.port,
        )
        port = self._server.sockets[0].getsockname()[1]
        self.log("info", "lines.opened", address=f"{self.config.host}:{port}")

    def _enter(self, connection: LineConnection) -> bool:
        """Count a connection. Return False if there are too many."""
        if len(self._connections) >= self.config.max_connections:
            return False
        self._connections.add(connection)
        return True

    @hookimpl
    async def on_shutdown(self) -> None:
        """Close the listener and its connections. The broker ends the remaining clients."""
        if self._server is not None:
            self._server.close()
            for connection in tuple(self._connections):
                connection.abort()
            await self._server.wait_closed()
