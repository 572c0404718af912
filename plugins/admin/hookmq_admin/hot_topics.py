"""Count the messages of each topic for a while, with a plugin client. While nobody asks, it costs nothing."""

from secrets import token_hex
from typing import Final

from hookmq.plugin import (
    Accept,
    BrokerHandle,
    ClientHandle,
    ClientRequest,
    ConnectRefused,
    Delivery,
    DisconnectReason,
    Peer,
    Timer,
)

from hookmq_admin.errors import ApiError
from hookmq_admin.top_counts import TopCounts

CAPACITY: Final = 1000
"""Number of topics that are counted at the same time."""
MOST: Final = 5000
"""Messages to count per second. Above that, only one message in 2, 3, ... is counted, for all of these."""


class HotTopics:
    """At most one measurement at a time, and the result of the last one."""

    def __init__(self, broker: BrokerHandle) -> None:
        self._broker = broker
        self._client: ClientHandle | None = None
        self._timer: Timer | None = None
        self._starting = False
        self._second = 0
        self._arrived = 0
        self.counts = TopCounts(CAPACITY)
        self.filter = ""
        self.levels = 0
        self.every = 1
        """One message in this many is counted now."""
        self.messages = 0
        self.started_at = 0.0
        self.ended_at = 0.0

    @property
    def running(self) -> bool:
        """Whether messages are being counted."""
        return self._client is not None

    @property
    def seconds(self) -> float:
        """How long the measurement has lasted."""
        end = self._broker.time() if self.running else self.ended_at
        return max(0.0, end - self.started_at)

    async def start(
        self, filter: str, seconds: float, levels: int, identity: str, address: str
    ) -> None:
        """Count the messages that match `filter`, by the first `levels` levels of their topics, or by whole topics if
        `levels` is 0. Raises ApiError."""
        if self.running or self._starting:
            raise ApiError(409, "another measurement is running")
        self._starting = True
        try:
            await self._open(filter, identity, address)
        finally:
            self._starting = False
        self.counts = TopCounts(CAPACITY)
        self.filter, self.levels = filter, levels
        self.messages = 0
        self.every = 1
        self._arrived = 0
        self._second = int(self._broker.now())
        self.started_at = self._broker.time()
        self._timer = self._broker.runtime.call_later(seconds, self._due)

    async def _open(self, filter: str, identity: str, address: str) -> None:
        client_id = f"$admin/hot/{token_hex(8)}"
        request = ClientRequest(client_id, accept=Accept(identity), peer=Peer(address, 0, "plugin"))
        try:
            client = await self._broker.connect(request)
        except ConnectRefused as error:
            raise ApiError(503, error.message) from None
        client.on_message = self._hear
        client.on_end = self._over
        code = await self._broker.subscribe(client_id, filter, retain_handling=2)
        if code >= 0x80:
            client.disconnect()
            raise ApiError(403, f"the subscription was refused: {code.text}")
        self._client = client

    def stop(self) -> bool:
        """End the measurement and keep its result. Return False if none is running."""
        client, self._client = self._client, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if client is None:
            return False
        self.ended_at = self._broker.time()
        if client.connected:
            client.disconnect()
        return True

    def _due(self) -> None:
        self.stop()

    def _over(self, reason: DisconnectReason) -> None:
        self.stop()

    def _hear(self, delivery: Delivery) -> None:
        delivery.acknowledge()
        self.messages += 1
        self._arrived += 1
        if self.messages % self.every:
            return
        second = int(self._broker.now())
        if second != self._second:
            # As many as in the last second are expected in this one.
            self.every = 1 + self._arrived // MOST
            self._second, self._arrived = second, 0
        elif self._arrived > MOST * self.every:
            self.every += 1
        message = delivery.message
        topic = message.topic
        if self.levels:
            topic = "/".join(topic.split("/", self.levels)[: self.levels])
        self.counts.add(topic, self.every, len(message.payload) * self.every)
