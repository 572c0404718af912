"""The base class of all listeners, including those of plugins. This module imports no HTTP library, because every command
imports it.
"""

import asyncio
import contextlib

from hookmq.server.connection_limit import ListenerConnections
from hookmq.server.settings import ListenerSettings


class BaseListener:
    """The base class of all listeners. `settings` are the listener's settings, and `gate` holds its connections."""

    def __init__(self, settings: ListenerSettings, gate: ListenerConnections) -> None:
        self.settings = settings
        self.gate = gate

    def apply(self, settings: ListenerSettings) -> None:
        """Apply the settings that can change while the listener is open. Open connections keep their scope."""
        self.settings = settings
        self.gate.apply(settings)

    def shut(self) -> None:
        """Stop accepting, but keep open connections. Calling this again is harmless."""
        self.gate.shut()

    async def close(self) -> None:
        """Stop accepting, close all connections at once, and wait until they have ended."""
        self.shut()
        self.gate.abort_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.close_timeout):
                await self.gate.emptied()
