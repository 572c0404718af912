"""Count the messages on each topic for a while, using a plugin client. This costs nothing unless a measurement is
running.
"""

from functools import partial
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
from hookmq_admin.sampling import SampledSubscription
from hookmq_admin.top_counts import TopCounts

CAPACITY: Final = 1000
"""Maximum number of topics to count at the same time."""
MOST: Final = 2000
"""Messages to count per second. After that, the client unsubscribes for the rest of the second."""


class HotTopics:
    """Runs one measurement at a time, and keeps the last result."""

    def __init__(self, broker: BrokerHandle) -> None:
        self._broker = broker
        self._client: ClientHandle | None = None
        self._timer: Timer | None = None
        self._starting = False
        self._sampled: SampledSubscription | None = None
        self.counts = TopCounts(CAPACITY)
        self.filter = ""
        self.levels = 0
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

    @property
    def listened(self) -> float:
        """How many seconds messages were actually counted. This is less than `seconds` if there were too many
        messages.
        """
        return 0.0 if self._sampled is None else min(self._sampled.listened, self.seconds)

    async def start(
        self, filter: str, seconds: float, levels: int, identity: str, address: str
    ) -> None:
        """Count the messages that match `filter`. They are grouped by the first `levels` levels of their topics, or by
        whole topics if `levels` is 0. Raises ApiError.
        """
        if self.running or self._starting:
            raise ApiError(409, "another measurement is running")
        self._starting = True
        self.counts = TopCounts(CAPACITY)
        self.filter, self.levels = filter, levels
        self.started_at = self.ended_at = self._broker.time()
        try:
            await self._open(filter, identity, address)
        finally:
            self._starting = False
        self._timer = self._broker.runtime.call_later(seconds, self._due)

    async def _open(self, filter: str, identity: str, address: str) -> None:
        client_id = f"$admin/hot/{token_hex(8)}"
        request = ClientRequest(client_id, accept=Accept(identity), peer=Peer(address, 0, "plugin"))
        try:
            client = await self._broker.connect(request)
        except ConnectRefused as error:
            raise ApiError(503, error.message) from None
        client.on_message = self._hear
        client.on_end = partial(self._over, client)
        self._sampled = SampledSubscription(self._broker, client_id, filter, MOST)
        try:
            code = await self._sampled.open()
            if code >= 0x80:
                raise ApiError(403, f"the subscription was refused: {code.text}")
            if not client.connected:
                raise ApiError(503, "the client that counts was disconnected")
        except BaseException:  # also if the request was canceled
            self._sampled.close()
            if client.connected:
                client.disconnect()
            raise
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
        if self._sampled is not None:
            self._sampled.close()
        if client.connected:
            client.disconnect()
        return True

    def _due(self) -> None:
        self.stop()

    def _over(self, client: ClientHandle, reason: DisconnectReason) -> None:
        """End the measurement whose plugin client was closed. Another measurement may have started in the meantime."""
        if client is self._client:
            self.stop()

    def _hear(self, delivery: Delivery) -> None:
        message = delivery.message
        if self._sampled is None or not self._sampled.take(message.received_at):
            return
        topic = message.topic
        if self.levels:
            topic = "/".join(topic.split("/", self.levels)[: self.levels])
        self.counts.add(topic, 1, len(message.payload))
