"""The live tail: messages that match a filter, sampled and streamed as server-sent events. Clients that read too
slowly miss messages."""

import asyncio
import json
from collections import deque
from secrets import token_hex
from typing import Any, Final

from aiohttp import web
from hookmq.plugin import (
    Accept,
    ClientHandle,
    ClientRequest,
    ConnectRefused,
    Delivery,
    DisconnectReason,
    Peer,
)

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.sampling import SampledSubscription
from hookmq_admin.services import Call

TICK: Final = 1.0
"""Seconds between two checks of the token, and between two reports of skipped messages."""
SILENCE: Final = 15
"""Ticks without an event after which a comment is sent, so that proxies keep the connection open."""
MOST: Final = 1000
"""Messages per second after which a tail is not subscribed for the rest of the second, or four times its rate."""
MAX_BUFFER: Final = 1 << 20
"""Maximum number of bytes of events that may wait to be sent. Further messages are skipped."""
HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def tail(call: Call) -> Any:
    """Stream the messages that match a filter until the client disconnects or its token is no longer valid."""
    services = call.services
    if services.tails >= services.config.max_tails:
        raise ApiError(503, f"{services.tails} live tails are open, which is the limit")
    services.tails += 1
    follower = Follower(call)
    try:
        await follower.open()
        return await follower.run()
    finally:
        services.tails -= 1
        follower.close()


class Follower:
    """One live tail. It is a plugin client, so every hook and limit for deliveries applies."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._rate = min(call.arguments["rate"], call.services.config.tail_rate)
        self._events: deque[bytes] = deque()
        self._size = 0
        self._second = 0
        self._sent = 0  # messages of this second
        self._skipped = 0
        self._ended = ""
        self._wake = asyncio.Event()
        self._client: ClientHandle | None = None
        self._sampled: SampledSubscription | None = None
        self._missed = 0

    async def open(self) -> None:
        """Connect and subscribe. Raises ApiError."""
        call = self._call
        client_id = f"$admin/tail/{token_hex(8)}"
        request = ClientRequest(
            client_id,
            accept=Accept(call.token.identity),
            peer=Peer(call.address, 0, "plugin"),
        )
        try:
            self._client = await call.broker.connect(request)
        except ConnectRefused as error:
            raise ApiError(503, error.message) from None
        self._client.on_message = self._hear
        self._client.on_end = self._over
        most = max(MOST, 4 * self._rate)
        self._sampled = SampledSubscription(call.broker, client_id, call.arguments["filter"], most)
        code = await self._sampled.open(call.arguments["retained"])
        if code >= 0x80:
            raise ApiError(403, f"the subscription was refused: {code.text}")

    def close(self) -> None:
        """Disconnect the plugin client."""
        if self._sampled is not None:
            self._sampled.close()
        if self._client is not None and self._client.connected:
            self._client.disconnect()

    async def run(self) -> web.StreamResponse:
        """Send events until the tail ends."""
        services, request = self._call.services, self._call.request
        response = web.StreamResponse(headers=HEADERS)
        silent = 0
        now = asyncio.get_running_loop().time
        due = now() + TICK
        try:
            await self._send(response, b": tail\n\n")
            while not self._ended:
                try:
                    async with asyncio.timeout_at(due):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                if now() >= due:  # also while messages arrive all the time
                    due = now() + TICK
                    self._tick()
                    silent += 1
                if silent >= SILENCE:
                    self._add(b": still here\n\n")
                if self._events:
                    silent = 0
                    await self._send(response, self._take())
            await self._send(response, _event("end", {"reason": self._ended}))
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
        """Report skipped messages, and end the tail if its token is no longer valid."""
        services, token = self._call.services, self._call.token
        if self._sampled is not None:
            missed, self._missed = self._sampled.missed - self._missed, self._sampled.missed
            self._skipped += missed
            services.counts["tail_skipped"] += missed
        if self._skipped:
            self._add(_event("skipped", {"messages": self._skipped}))
            self._skipped = 0
        known = services.tokens.get(token.id)
        if known is None or not known.valid(services.broker.time()):
            self._ended = "the token is not valid any more"

    def _hear(self, delivery: Delivery) -> None:
        received_at = delivery.message.received_at
        # A retained message is as old as it is, and does not come again.
        if (
            not delivery.retain
            and self._sampled is not None
            and not self._sampled.take(received_at)
        ):
            return
        services = self._call.services
        second = int(services.broker.now())
        if second != self._second:
            self._second, self._sent = second, 0
            if self._skipped:
                self._add(_event("skipped", {"messages": self._skipped}))
                self._skipped = 0
        if self._sent >= self._rate or self._size > MAX_BUFFER:
            self._skipped += 1
            services.counts["tail_skipped"] += 1
            return
        self._sent += 1
        self._add(_event("message", shown.message(delivery.message, payloads=True)))

    def _over(self, reason: DisconnectReason) -> None:
        self._ended = self._ended or reason.error or "the plugin client was disconnected"
        self._wake.set()

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
