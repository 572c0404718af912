"""A stream of server-sent events, used by the live tail and by traces. A client that reads too slowly misses events."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from hookmq_admin.services import Call

TICK: Final = 1.0
"""Seconds between checks of the token, and between reports of skipped events."""
SILENCE: Final = 5
"""A comment is sent after this many ticks without an event, so that clients and proxies keep the connection open."""
MAX_BUFFER: Final = 1 << 20
"""Maximum number of bytes of events that may wait to be sent. Further events are skipped."""
HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class EventStream:
    """One response. `name` is its route's name, and `what` describes the skipped events. `on_tick` is called once a
    second.
    """

    def __init__(
        self, call: Call, name: str, what: str, on_tick: Callable[[], None] | None = None
    ) -> None:
        self._call = call
        self._name = name
        self._what = what
        self._on_tick = on_tick
        self._events: deque[bytes] = deque()
        self._size = 0
        self._skipped = 0
        self._ended = ""
        self._wake = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether too much data is waiting to be sent, so that new events must be skipped."""
        return self._size > MAX_BUFFER

    def add(self, name: str, data: dict[str, Any]) -> None:
        """Queue an event to be sent soon."""
        self._add(_event(name, data))

    def skip(self, count: int = 1) -> None:
        """Count events that were skipped."""
        self._skipped += count

    def say_skipped(self) -> None:
        """Report the skipped events, if any."""
        if self._skipped:
            self.add("skipped", {self._what: self._skipped})
            self._skipped = 0

    def end(self, reason: str) -> None:
        """End the response once the waiting events have been sent. Only the first reason counts."""
        self._ended = self._ended or reason
        self._wake.set()

    async def run(self) -> web.StreamResponse:
        """Send events until the stream ends. Return the response."""
        services, request = self._call.services, self._call.request
        response = web.StreamResponse(headers=HEADERS)
        silent = 0
        now = asyncio.get_running_loop().time
        due = now() + TICK
        try:
            await self._send(response, f": {self._name}\n\n".encode())
            while not self._ended:
                try:
                    async with asyncio.timeout_at(due):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                if now() >= due:  # also while events arrive all the time
                    due = now() + TICK
                    self._tick()
                    silent += 1
                if silent >= SILENCE:
                    self._add(b": still here\n\n")
                if self._events:
                    silent = 0
                    await self._send(response, self._take())
            self.say_skipped()
            self.add("end", {"reason": self._ended})
            await self._send(response, self._take())
        except TimeoutError:
            services.counts["tails_dropped"] += 1
            services.log("info", "admin.tail_dropped", address=self._call.address)
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass
        return response

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self._call.services.config.tail_timeout):
            if not response.prepared:
                await response.prepare(self._call.request)
            await response.write(data)

    def _tick(self) -> None:
        """Report skipped events, and end the response if its token is no longer valid."""
        services, token = self._call.services, self._call.token
        if self._on_tick is not None:
            self._on_tick()
        self.say_skipped()
        known = services.tokens.get(token.id)
        if known is None or not known.valid(services.broker.time()):
            self.end("the token is not valid any more")

    def _add(self, event: bytes) -> None:
        self._events.append(event)
        self._size += len(event)
        self._wake.set()

    def _take(self) -> bytes:
        data = b"".join(self._events)
        self._events.clear()
        self._size = 0
        self._wake.clear()
        return data


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
