"""A TCP load balancer: it sends each connection to the next node that accepts one."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

CHUNK: Final = 65536
CONNECT: Final = 2.0
"""Seconds within which a node must accept a connection."""


class Balancer:
    """Accepts connections on `port`, and passes each one to one of the `targets`, which are ports by node."""

    def __init__(self, targets: dict[str, int]) -> None:
        self.port = 0
        self.open = dict.fromkeys(targets, 0)
        """Connections that are open now, by node."""
        self._targets = targets
        self._next = 0
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port of the loopback interface."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            await self._pass_on(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            await _abort(writer)
            self._passing.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for name in self._order():
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT):
                    found = await asyncio.open_connection("127.0.0.1", self._targets[name])
                break
        else:
            return
        node_reader, node_writer = found
        self.open[name] += 1
        ways = [
            asyncio.create_task(_copy(reader, node_writer)),
            asyncio.create_task(_copy(node_reader, writer)),
        ]
        try:
            await asyncio.wait(ways)
        finally:
            self.open[name] -= 1
            for way in ways:
                way.cancel()
            await _abort(node_writer)

    def _order(self) -> Sequence[str]:
        """Return the nodes in the order in which to try them."""
        names = list(self._targets)
        self._next = (self._next + 1) % len(names)
        return names[self._next :] + names[: self._next]


async def _abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one side closes its connection, then close the other one."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()
