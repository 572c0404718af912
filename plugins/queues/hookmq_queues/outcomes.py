"""Handle what becomes of a group's messages: settle them, deliver them again, or turn them into dead letters."""

from collections.abc import Callable
from typing import Final, Protocol

from hookmq.plugin import BrokerHandle, DeliveryEnd, Message

from hookmq_queues.backoff import Cause
from hookmq_queues.choice import Choice
from hookmq_queues.config import GroupConfig
from hookmq_queues.consumers import Consumer, Consumers
from hookmq_queues.group import Group, Lease
from hookmq_queues.group_state import PAUSE, GroupState
from hookmq_queues.holdings import Holdings
from hookmq_queues.limits import Limits
from hookmq_queues.outgoing import is_for
from hookmq_queues.stalls import Stalls
from hookmq_queues.storage import MessageLog

Token = tuple["Outcomes", Consumer, int, int]
"""Identifies a delivery: its group, the consumer, the offset and the lease's token."""


class Owner(Protocol):
    """The queue that a group belongs to, as seen by `Outcomes`."""

    origin: str
    """The origin of the messages that the plugin adds itself."""

    def count(self, result: str, number: int = 1) -> None:
        """Count messages with this result."""

    def bury(
        self,
        message: Message,
        group: str,
        offset: int,
        count: int,
        reason: str = "delivery-limit",
        description: str = "",
    ) -> None:
        """Add a message to the dead-letter queue in this turn's commit. The message was delivered `count` times."""

    def takes_dead_letters(self) -> bool:
        """Return whether the dead-letter queue has room."""

    def settled(self, offset: int) -> None:
        """Record that a group has settled a message."""

    def all_settled(self, offsets: list[int]) -> None:
        """Record that a group has settled messages."""

    def ended(self) -> None:
        """Free the space of settled messages."""

    def consumers_changed(self, group: str) -> None:
        """Record that a group has gained or lost a consumer."""


class Outcomes:
    """Settles one group's messages, and takes messages away from consumers that do not settle them."""

    def __init__(
        self,
        name: str,
        settings: GroupConfig,
        group: Group,
        state: GroupState,
        consumers: Consumers,
        holdings: Holdings,
        stalls: Stalls,
        limits: Limits,
        choice: Choice,
        log: MessageLog,
        broker: BrokerHandle,
        owner: Owner,
        schedule: Callable[[], None],
    ) -> None:
        self.queue: Final = limits.config.name
        self.schedule: Final = schedule
        """Sends as many messages as possible in the next turn."""
        self.has_buried = False
        """Whether a message became a dead letter in this turn, so that the state must be in its commit."""
        self._name = name
        self._settings = settings
        self._explicit = settings.settle == "explicit"
        self._group = group
        self._state = state
        self._consumers = consumers
        self._holdings = holdings
        self._stalls = stalls
        self._limits = limits
        self._choice = choice
        self._log = log
        self._broker = broker
        self._owner = owner

    def acknowledged(self, deliveries: list[Token]) -> None:
        """Handle acknowledged deliveries. Call `schedule` afterwards."""
        if self._explicit or self._choice.selection is not None or self._stalls.counts:
            for _, consumer, offset, token in deliveries:
                self.ended(consumer, offset, token, DeliveryEnd.ACKNOWLEDGED)
            return
        freed, settle, since = self._consumers.freed, self._group.settle, self._group.since
        settled: list[int] = []
        for _, consumer, offset, token in deliveries:
            freed(consumer)
            if token > since and settle(offset):
                settled.append(offset)
        if settled:
            self._state.dirty = True
            self._owner.all_settled(settled)
            self._owner.count("acknowledged", len(settled))

    def ended(self, consumer: Consumer, offset: int, token: int, end: DeliveryEnd) -> None:
        """Handle the end of a delivery. Call `schedule` after one or more of these calls."""
        if self._explicit and end is DeliveryEnd.ACKNOWLEDGED and consumer.with_properties:
            lease = self._group.leases.get(offset)
            if lease is not None and lease.token == token:
                self._holdings.keep(consumer, offset)
                if self._consumers.by_key.get(consumer.key) is not consumer:
                    self.abandon(consumer)  # it has left meanwhile
                return
            self._consumers.freed(consumer)  # settled, or taken away
            return
        self._consumers.freed(consumer)
        if token <= self._group.since:
            return  # the group was moved, and may get this message once more
        if end is DeliveryEnd.LOST:
            if self._group.release(offset, token):
                self._delay(offset, "lost")
        elif end is DeliveryEnd.DROPPED:
            self._dropped(offset, token)
        elif self.settle(offset):
            self._owner.count("acknowledged")

    def _dropped(self, offset: int, token: int) -> None:
        """Handle a message that could not be sent to its consumer. It becomes a dead letter, or is dropped if there is
        no dead-letter queue.
        """
        lease = self._group.leases.get(offset)
        if lease is None or lease.token != token:
            return  # settled, or taken away
        message, time = self._log.get(offset), self._broker.time()
        if not self._limits.config.dead_letter:
            if self.settle(offset):
                self._owner.count("refused")
        elif message is None or not self._owner.takes_dead_letters():
            # Try again when it is in memory, or there is room.
            if self._group.release(offset, token):
                self._group.defer(offset, time + PAUSE)
                self._state.dirty = True
        elif self._limits.expires_at(message) <= time:
            self.expire(offset, message, time)
        else:
            self.bury(offset, message, "refused")
            self.has_buried = True
            self._owner.count("refused")

    def store_buried(self) -> None:
        """If a message became a dead letter in this turn, store the state in its commit. If that fails, a crash may
        repeat the dead letter.
        """
        if self.has_buried:
            self.has_buried = False
            self._state.store()

    def abandon(self, consumer: Consumer) -> None:
        """Make a consumer's messages ready again if it has acknowledged them but can no longer settle them."""
        for offset in self._holdings.held_by(consumer.key):
            self._end_lease(offset, "lost")

    def timed_out(self, offset: int, lease: Lease) -> None:
        """Take a message away from its consumer, because its lease has expired."""
        self._owner.count("timed_out")
        if self._explicit:
            self._holdings.expired(offset, lease)
        self._delay(offset, "timeout")

    def _end_lease(self, offset: int, cause: Cause, delay: float | None = None) -> None:
        """Take a message away from its consumer. Deliver it again after `delay` or the group's backoff."""
        lease = self._group.leases.get(offset)
        if lease is None:
            return
        assert isinstance(lease.consumer, tuple)
        self._group.release(offset, lease.token)
        self._holdings.drop(offset, lease.consumer)
        self._delay(offset, cause, delay)

    def _delay(self, offset: int, cause: Cause, delay: float | None = None) -> None:
        """Defer a message whose lease has ended, unless it becomes a dead letter."""
        self._state.dirty = True
        if self._limits.is_dead(offset):
            return
        if delay is None:
            attempts = self._group.attempts(offset)
            delay = self._settings.backoff.delay(cause, attempts, self._broker.runtime.random())
        if delay > 0:
            self._group.defer(offset, self._broker.time() + delay)

    def settle(self, offset: int) -> bool:
        """Settle a message. Return False if it is already settled."""
        if self._stalls.counts:
            self._stalls.settled(self._group.leases.get(offset))
        if self._explicit:
            lease = self._group.leases.get(offset)
            if lease is not None:
                assert isinstance(lease.consumer, tuple)
                self._holdings.drop(offset, lease.consumer)
            self._holdings.settled(offset)
        if not self._group.settle(offset):
            return False
        if self._choice.selection is not None:
            self._choice.selection.settled(offset)
        self._state.dirty = True
        self._owner.settled(offset)
        return True

    def bury(
        self, offset: int, message: Message, reason: str = "delivery-limit", description: str = ""
    ) -> None:
        """Move a message to the dead-letter queue. If `store` is also called in this turn, one commit contains both
        changes.
        """
        count = self._group.attempts(offset)
        description = description or self._holdings.reasons.get(offset, "")
        self._log.hold()
        self._owner.bury(message, self._name, offset, count, reason, description)
        self.settle(offset)

    def expire(self, offset: int, message: Message, time: float) -> None:
        """Drop an expired message, or turn it into a dead letter."""
        if message.origin == self._owner.origin and not is_for(message, self._name):
            self.settle(offset)
            return
        if not self._limits.config.dead_letter_expired:
            self.settle(offset)
        elif self._owner.takes_dead_letters():
            self.bury(offset, message, "expired")
            self.has_buried = True
        else:  # try again later, and continue with the others
            if self._choice.selection is not None:
                self._choice.selection.leased(offset)
            self._group.defer(offset, time + PAUSE)
            self._state.dirty = True
            return
        self._owner.count("expired")

    # explicit settlement ---------------------------------------------------------------------------------------------

    def acknowledge(self, offsets: list[int]) -> None:
        """Settle messages. Call `store` in this turn."""
        for offset in offsets:
            if self.settle(offset):
                self._owner.count("acknowledged")

    def give_back(self, offsets: list[int], delay: float | None, reason: str) -> None:
        """Deliver messages again, after `delay` or the group's backoff. Call `store` in this turn."""
        for offset in offsets:
            if reason:
                self._holdings.reasons[offset] = reason
            self._end_lease(offset, "nack", delay)
            self._owner.count("nacked")

    def reject(self, messages: dict[int, Message], description: str) -> bool:
        """Turn messages into dead letters, or drop them if there is no dead-letter queue. Call `store` in this turn.

        If the dead-letter queue is full, change nothing and return False. If it is not full, adding these messages may
        exceed its limit.
        """
        if not self._limits.config.dead_letter:
            for offset in messages:
                if self.settle(offset):
                    self._owner.count("discarded")
            return True
        if not self._owner.takes_dead_letters():
            return False
        for offset, message in messages.items():
            self.bury(offset, message, "rejected", description)
        return True
