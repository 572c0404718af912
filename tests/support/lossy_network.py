"""A network between a client and a broker that loses whatever data the test chooses."""

import asyncio
import contextlib
from collections.abc import Callable


class Network:
    """A TCP proxy to the broker. It can lose the data that one side sends, and end all connections."""

    def __init__(self, port: int) -> None:
        self.lose_from_client = False
        self.lose_from_broker = False
        self.connections = 0
        self._broker = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def url(self) -> str:
        """The URL at which clients reach the broker through this network."""
        assert self._server is not None
        return f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()
        await self._server.wait_closed()

    async def cut(self) -> None:
        """End all connections. Later connections lose nothing."""
        for writer in list(self._writers):
            writer.transport.abort()
        await self._idle.wait()
        self.lose_from_client = self.lose_from_broker = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._broker)
        pair = {writer, far_writer}
        self._writers |= pair
        self._idle.clear()

        async def pass_on(
            source: asyncio.StreamReader, target: asyncio.StreamWriter, lost: Callable[[], bool]
        ) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if not lost():
                        target.write(data)
            for one in pair:
                one.close()

        try:
            await asyncio.gather(
                pass_on(reader, far_writer, lambda: self.lose_from_client),
                pass_on(far_reader, writer, lambda: self.lose_from_broker),
            )
            for one in pair:
                with contextlib.suppress(OSError):
                    await one.wait_closed()
        finally:
            self._writers -= pair
            if not self._writers:
                self._idle.set()
