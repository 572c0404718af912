"""A channel between the broker and one of its processes: a Unix socket that carries values and requests.

Values are what `marshal` encodes: None, numbers, text, bytes, and tuples, lists and dictionaries of them. Both ends run
the same Python, because the broker starts the process. Do not open a channel to any other program.
"""

import asyncio
import marshal
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

_HEADER: Final = struct.Struct("<I")
_VALUE, _REQUEST, _RESULT, _REFUSAL = range(4)
Take = Callable[[Any], None]
"""Called with each value that arrives."""
Answer = Callable[[Any], Awaitable[Any]]
"""Called with each request that arrives. It returns the result, or raises `Refused`."""


class Refused(Exception):
    """A request was refused by the other end, or was lost because the channel closed. The text says why."""


def encode_frame(value: Any) -> bytes:
    """Encode a value for the socket. Raises ValueError if `marshal` cannot encode it."""
    data = marshal.dumps(value)
    return _HEADER.pack(len(data)) + data


class Frames:
    """Splits a stream into the values that `encode_frame` encoded."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add `data`, and return the values that are now complete."""
        buffer = self._buffer
        buffer += data
        found = []
        start = 0
        while len(buffer) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(buffer, start)
            end = start + _HEADER.size + size
            if len(buffer) < end:
                break
            found.append(marshal.loads(memoryview(buffer)[start + _HEADER.size : end]))
            start = end
        if start:
            del buffer[:start]
        return found


class Channel(asyncio.Protocol):
    """One end of a channel. Use it as the protocol of a socket, on a running event loop.

    `take` receives values, and `answer` carries out requests. `closed` is set to a result when the channel closes.
    """

    def __init__(self, take: Take, answer: Answer | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.frames = 0
        """Number of frames that have arrived."""
        self._loop = loop
        self._take = take
        self._answer = answer
        self._arriving = Frames()
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is unrelated

    def connection_lost(self, error: Exception | None) -> None:
        """Implement `asyncio.Protocol`."""
        if not self.closed.done():
            self.closed.set_result(None)
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(Refused("the process ended"))

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol`."""
        for kind, *rest in self._arriving.feed(data):
            self.frames += 1
            if kind == _VALUE:
                self._take(rest[0])
            elif kind == _REQUEST:
                task = self._loop.create_task(self._reply(*rest))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            else:
                future = self._asked.pop(rest[0], None)
                if future is not None and not future.done():
                    if kind == _RESULT:
                        future.set_result(rest[1])
                    else:
                        future.set_exception(Refused(rest[1]))

    async def _reply(self, number: int, request: Any) -> None:
        try:
            if self._answer is None:
                raise Refused("no requests are answered here")
            self._send((_RESULT, number, await self._answer(request)))
        except Refused as error:
            self._send((_REFUSAL, number, str(error)))
        except Exception as error:  # the other end must not wait for ever
            self._send((_REFUSAL, number, f"{type(error).__name__}: {error}"))

    @property
    def open(self) -> bool:
        """Whether values can still be written."""
        return self._transport is not None and not self.closed.done()

    @property
    def backlog(self) -> int:
        """Number of bytes that the other end has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def write(self, value: Any) -> None:
        """Send a value. It is dropped if the channel has closed."""
        self._send((_VALUE, value))

    def ask(self, request: Any) -> "asyncio.Future[Any]":
        """Send a request, and return a future for its result. The future raises `Refused`."""
        future = self._loop.create_future()
        if not self.open:
            future.set_exception(Refused("the process is not running"))
            return future
        self._number += 1
        self._asked[self._number] = future
        self._send((_REQUEST, self._number, request))
        return future

    def _send(self, frame: Any) -> None:
        if self._transport is not None and not self.closed.done():
            self._transport.write(encode_frame(frame))

    def close(self) -> None:
        """Close the channel."""
        if self._transport is not None:
            self._transport.close()


__all__ = ["Channel", "Frames", "Refused", "encode_frame"]
