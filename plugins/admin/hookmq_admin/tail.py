"""The live tail streams a sample of the messages that match a filter, as server-sent events. Clients that read too
slowly miss messages.
"""

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
from hookmq_admin.event_stream import EventStream
from hookmq_admin.sampling import SampledSubscription
from hookmq_admin.services import Call

MOST: Final = 1000
"""A tail unsubscribes for the rest of the second after this many messages, or after four times its rate."""


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
    """One live tail. It is a plugin client, so all hooks and limits for deliveries apply to it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._rate = min(call.arguments["rate"], call.services.config.tail_rate)
        self._stream = EventStream(call, "tail", "messages", self._tick)
        self._second = 0
        self._sent = 0  # messages of this second
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
        return await self._stream.run()

    def _tick(self) -> None:
        """Count the messages that were missed while the tail was not subscribed. If the tail cannot resubscribe, end
        it.
        """
        if self._sampled is not None:
            missed, self._missed = self._sampled.missed - self._missed, self._sampled.missed
            self._stream.skip(missed)
            self._call.services.counts["tail_skipped"] += missed
            if self._sampled.lost:
                self._stream.end("the subscription was refused")

    def _hear(self, delivery: Delivery) -> None:
        received_at = delivery.message.received_at
        # A retained message is as old as it is, and does not come again.
        if (
            not delivery.retain
            and self._sampled is not None
            and not self._sampled.take(received_at)
        ):
            return
        services, stream = self._call.services, self._stream
        second = int(services.broker.now())
        if second != self._second:
            self._second, self._sent = second, 0
            stream.say_skipped()
        if self._sent >= self._rate or stream.full:
            stream.skip()
            services.counts["tail_skipped"] += 1
            return
        self._sent += 1
        stream.add("message", shown.message(delivery.message, payloads=True))

    def _over(self, reason: DisconnectReason) -> None:
        self._stream.end(reason.error or "the plugin client was disconnected")
