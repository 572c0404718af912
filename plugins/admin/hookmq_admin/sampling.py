"""Limit the messages that a plugin client receives, by subscribing it for only part of each second.

A message for a plugin client costs about as much as one for any other subscriber. It also keeps its topic off the fast
path. A client that needs only samples must therefore not stay subscribed all the time.
"""

from typing import Final

from hookmq.plugin import BrokerHandle, Cancel, ReasonCode, Timer

SECOND: Final = 1.0


class SampledSubscription:
    """A QoS 0 subscription of the client `client_id` to `filter`, limited to about `most` messages a second.

    Call `open` first, `take` for each message, and `close` at the end. If the client cannot resubscribe, no more
    messages arrive, and `lost` becomes true.
    """

    def __init__(self, broker: BrokerHandle, client_id: str, filter: str, most: int) -> None:
        self._broker = broker
        self._client_id = client_id
        self._filter = filter
        self._most = most
        self._listened = 0.0
        self._opened_at: float | None = None
        self._closed_at = 0.0
        self._second = 0.0
        self._taken = 0
        self._timer: Timer | None = None
        self._cancel: Cancel | None = None
        self.lost = False
        """Whether the client was unable to subscribe again after a pause."""
        self.missed = 0
        """An estimate of the messages for which the client was not subscribed, updated at each end of a pause."""

    @property
    def listened(self) -> float:
        """How many seconds the client was subscribed."""
        open_ = 0.0 if self._opened_at is None else self._broker.time() - self._opened_at
        return self._listened + max(0.0, open_)

    async def open(self, retained: bool = False) -> ReasonCode:
        """Subscribe, and return the reason code. With `retained`, retained messages are sent first."""
        code = await self._broker.subscribe(
            self._client_id, self._filter, retain_handling=0 if retained else 2, retain_as_published=True
        )  # fmt: skip
        if code < 0x80:
            self._begin()
        return code

    def _begin(self) -> None:
        self._opened_at = self._second = self._broker.time()
        self._taken = 0

    def take(self, received_at: float) -> bool:
        """Count a message. Return False if it arrived after this second's subscription had ended."""
        opened_at = self._opened_at
        if opened_at is None:
            return False
        if received_at - self._second >= SECOND:
            self._second, self._taken = received_at, 0
        self._taken += 1
        if self._taken >= self._most:
            self._pause(opened_at, received_at)
        return True

    def _pause(self, opened_at: float, received_at: float) -> None:
        """Unsubscribe for the rest of the second."""
        self._listened += max(0.0, received_at - opened_at)
        self._opened_at = None
        self._closed_at = received_at
        self._broker.unsubscribe(self._client_id, self._filter)
        rest = SECOND - (self._broker.time() - self._second)
        self._timer = self._broker.runtime.call_later(max(0.05, rest), self._resume)

    def _resume(self) -> None:
        self._timer = None
        rate = self._taken / max(self._closed_at - self._second, 0.001)
        paused = max(0.0, self._broker.time() - self._closed_at)
        self.missed += int(rate * paused)
        subscribed = self._broker.subscribe(
            self._client_id, self._filter, retain_handling=2, retain_as_published=True
        )
        self._cancel = self._broker.runtime.spawn(subscribed, self._resumed)

    def _resumed(self, code: ReasonCode | None, error: BaseException | None) -> None:
        self._cancel = None
        if error is None and code is not None and code < 0x80:
            self._begin()
        else:
            self.lost = True

    def close(self) -> None:
        """Stop receiving messages. The caller must disconnect the client itself."""
        self._listened = self.listened
        self._opened_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
