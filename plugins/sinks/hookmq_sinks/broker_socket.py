"""The socket between a source's process and the broker, on the side of the process."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from hookmq_sinks.source_wire import encode_json, read_frame


class BrokerEnded(Exception):
    """The broker closed the socket."""


class BrokerSocket:
    """The socket to the broker. Each request gets one reply, and replies arrive in request order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: deque[asyncio.Future[dict[str, Any]]] = deque()
        self.stopping = False
        """Whether the broker has asked this process to end, or has ended itself."""
        self.paused = False
        self.changed = asyncio.Event()
        self.on_request: Callable[[dict[str, Any]], None] = lambda told: None
        """Called with each request of an operator."""
        self._closed = False

    async def read(self) -> None:
        """Receive replies until the broker ends."""
        try:
            while True:
                _, data = await read_frame(self._reader)
                told = json.loads(data)
                if "stop" in told:
                    self.stopping = True
                    self.changed.set()
                elif "pause" in told:
                    self.paused = told["pause"]
                    self.changed.set()
                elif "do" in told:
                    self.on_request(told)
                elif self._waiting:
                    waiting = self._waiting.popleft()
                    if not waiting.done():
                        waiting.set_result(told)
        except (EOFError, OSError, ValueError):
            pass
        self._closed = self.stopping = True
        self.changed.set()
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(BrokerEnded())

    def tell(self, **what: Any) -> None:
        """Send a JSON frame."""
        self._writer.write(encode_json(what))

    async def ask(self, frame: bytes) -> dict[str, Any]:
        """Send a frame, and return the broker's reply. Raises BrokerEnded."""
        if self._closed:
            raise BrokerEnded
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        self._writer.write(frame)
        await self._writer.drain()
        return await reply


__all__ = ["BrokerEnded", "BrokerSocket"]
