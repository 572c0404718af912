"""One HTTP/1.1 connection to a service or a proxy: send a request, and receive its response within limits.

The reason for this module is its speed: a POST costs a third of the CPU time that it costs with aiohttp's client. The
page on performance has the figures. The library httptools parses the responses.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import httptools
from hookmq_toolkit.network_errors import CLOSED, MALFORMED

MAX_HEAD: Final = 65536
"""Maximum size of the status line and the headers of a response, in bytes."""


class Response(NamedTuple):
    """A response. The names of `headers` are in lower case. `whole` is False if the body was longer than the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True


class ExchangeFailed(Exception):
    """The request got no usable response. The text is a reason; see `hookmq_toolkit.network_errors`."""


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time. Use it as the protocol of a transport."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        """When the latest response was complete, set by the owner of the connection."""
        self.answered = False
        """Whether any byte of the response to the latest request has arrived."""
        self.reusable = False
        """Whether another request may be sent after this one."""
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Response] | None = None
        self._limit = 0
        self._headers: dict[str, str] = {}
        self._status = 0
        """The status of the response whose body is arriving, or 0."""
        self._head = 0
        """Number of bytes that have arrived before the status was complete."""
        self._body: list[bytes] = []
        self._tunnel = False
        """Whether the request in progress asks for a tunnel, so that the response has no body."""

    @property
    def ready(self) -> bool:
        """Whether a request may be sent now. A service can close an idle connection at any time."""
        return self.reusable and self.transport is not None and not self.transport.is_closing()

    def request(self, data: bytes, limit: int) -> "asyncio.Future[Response]":
        """Send the encoded request `data`. Return a future for its response.

        At most `limit` bytes of the response's body are read. The future raises `ExchangeFailed` and OSError. If the
        caller stops waiting, it must close the connection.
        """
        assert self.transport is not None
        self._waiting = future = asyncio.get_running_loop().create_future()
        self._limit = limit
        self._head = 0
        self._body = []
        self.answered = self.reusable = False
        self.transport.write(data)
        return future

    async def open_tunnel(self, data: bytes) -> int:
        """Send the encoded CONNECT request `data` to a proxy, and return the status of the response. Raises the same
        errors as `request`.
        """
        self._tunnel = True
        response = await self.request(data, 0)
        self._tunnel = False
        self._parser = httptools.HttpResponseParser(self)
        return response.status

    def close(self) -> None:
        """Close the connection at once. The response to a request in progress is lost."""
        self.reusable = False
        self._waiting = None
        if self.transport is not None:
            self.transport.abort()

    def _fail(self, error: Exception) -> None:
        waiting = self._waiting
        self.close()
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def _end(self, whole: bool) -> None:
        """Pass the response to the caller."""
        waiting, self._waiting = self._waiting, None
        response = Response(self._status, self._headers, b"".join(self._body), whole)
        self._status = 0
        if waiting is not None and not waiting.done():
            waiting.set_result(response)

    # asyncio.Protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's class is unrelated

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol`."""
        if self._waiting is None:
            self.close()  # nothing was requested
            return
        self.answered = True
        if not self._status:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ExchangeFailed(MALFORMED))
            return
        if self._head > MAX_HEAD and not self._status and self._waiting is not None:
            self._fail(ExchangeFailed(f"{MALFORMED}: the headers are too long"))

    def connection_lost(self, error: Exception | None) -> None:
        """Implement `asyncio.Protocol`."""
        headers = self._headers
        if isinstance(error, OSError):
            self._fail(error)
        elif not self._status:
            self._fail(ExchangeFailed(f"{CLOSED}: before the answer"))
        elif "content-length" in headers or "transfer-encoding" in headers:
            self._fail(ExchangeFailed(f"{CLOSED}: the answer is incomplete"))
        else:
            self._end(True)  # the end of the connection is the end of the body
        self.reusable = False

    # httptools ------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a response. One that was not requested makes the connection useless."""
        self._headers = {}
        if self._waiting is None:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Of headers with the same name, the last one counts."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Take the status, and begin the body."""
        status = self._parser.get_status_code()
        if status >= 200:  # others precede the response
            self._status = status
            if self._tunnel:
                self._end(True)

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        if self._waiting is None:
            return
        self._body.append(data[: self._limit])
        self._limit -= len(data)
        if self._limit < 0:
            self._end(False)
            self.close()

    def on_message_complete(self) -> None:
        """End a response."""
        if not self._status or self._waiting is None:
            return
        assert self.transport is not None
        # A service may respond before it has received the whole request.
        self.reusable = (
            self._parser.should_keep_alive() and not self.transport.get_write_buffer_size()
        )
        self._end(True)


__all__ = ["Connection", "ExchangeFailed", "Response"]
