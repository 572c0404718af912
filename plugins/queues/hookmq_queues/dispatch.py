"""Deliver a queue's messages to the consumers of one group."""

from math import inf
from typing import Final

from hookmq.plugin import BrokerHandle, DirectDeliveries, Message, ReasonCode, Timer

from hookmq_queues.choice import Choice
from hookmq_queues.config import GroupConfig, QueueConfig
from hookmq_queues.consumers import Consumer, Consumers
from hookmq_queues.group import Group
from hookmq_queues.group_state import RESERVE, GroupState
from hookmq_queues.holdings import Holdings
from hookmq_queues.limits import Limits
from hookmq_queues.outcomes import Outcomes, Owner
from hookmq_queues.sending import Sender
from hookmq_queues.settlement import SettlementError
from hookmq_queues.stalls import Stalls
from hookmq_queues.storage import MessageLog

SLICE: Final = 256
"""Maximum number of messages that one group sends in one turn."""
RETRY: Final = 0.1
"""Seconds until a consumer is retried that had no room although it has no messages of this queue."""
LONGEST: Final = 3600.0
"""Maximum seconds between checks of the due times, because the clock may be changed."""
CLAIM: Final = 1.0
"""Seconds for which an exclusive consumer's place is reserved while its client subscribes."""


class Dispatcher:
    """Sends messages to one group's consumers. Unless the group is `stored`, its state is lost when the
    process ends.
    """

    def __init__(
        self,
        name: str,
        config: QueueConfig,
        log: MessageLog,
        group: Group,
        broker: BrokerHandle,
        deliveries: DirectDeliveries,
        owner: Owner,
        stored: bool = True,
        settings: GroupConfig | None = None,
    ) -> None:
        self.name = name
        self.settings = settings or GroupConfig(name)
        self.queue = config.name
        self.group = group
        self.state = GroupState(config.name, name, group, broker, stored, self.schedule)
        self.consumers = Consumers(config.prefetch, config.consumers)
        self.holdings = Holdings(group, self.consumers)
        self.stalls = Stalls(config.name, name, broker)
        self.paused = False
        """Whether sending is paused. Call `schedule` after setting this to False."""
        self._explicit = self.settings.settle == "explicit"
        self._log = log
        self._broker = broker
        self._owner = owner
        self._limits = Limits(config, group)
        self._choice = Choice(
            name, group, self.state, self.consumers, self._limits, log, broker, self.schedule
        )
        self.outcomes = Outcomes(
            name,
            self.settings,
            group,
            self.state,
            self.consumers,
            self.holdings,
            self.stalls,
            self._limits,
            self._choice,
            log,
            broker,
            owner,
            self.schedule,
        )
        self._sender = Sender(
            name,
            self._explicit,
            group,
            self.state,
            self.consumers,
            self.holdings,
            self._limits,
            self._choice,
            self.outcomes,
            log,
            deliveries,
            owner,
            self.schedule,
        )
        self._scheduled = False
        self._closed = False
        self._expiry: Timer | None = None
        self._retry: Timer | None = None
        self._claim: tuple[tuple[str, str] | None, float] = (None, 0.0)
        self._watches = config.type != "stream"
        self._head = (-1, inf)
        """The next message, and when it expires in epoch seconds."""

    @property
    def backlog(self) -> int:
        """The number of unsettled messages."""
        return self.group.backlog(self._log.end)

    # consumers -------------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """Add a consumer, and start sending messages to it."""
        active = self.consumers.active
        known = self.consumers.by_key.get(consumer.key)
        if known is not None and known.connection is not consumer.connection:
            self.outcomes.abandon(known)
        if known is None or known.topic_filter != consumer.topic_filter:
            if known is not None:
                self._choice.count_filter(known.topic_filter, -1)
            self._choice.count_filter(consumer.topic_filter, 1)
        self.consumers.add(consumer)
        self._report_active(active)
        self._owner.consumers_changed(self.name)
        self.schedule()

    def remove(self, key: tuple[str, str]) -> None:
        """Remove a consumer. Its messages stay leased until their deliveries end or their deadlines pass."""
        active = self.consumers.active
        consumer = self.consumers.remove(key)
        if consumer is not None:
            self._choice.count_filter(consumer.topic_filter, -1)
            self.outcomes.abandon(consumer)
        if self._claim[0] == key:
            self._claim = (None, 0.0)
        self._report_active(active)
        self._owner.consumers_changed(self.name)
        self.schedule()

    def claim(self, key: tuple[str, str]) -> bool:
        """Return whether a client may subscribe as the consumer `key`. An exclusive consumer has the group to itself.

        The client's place is reserved for a short time, until it has subscribed and `add` is called.
        """
        consumers = self.consumers
        if consumers.mode != "exclusive":
            return True
        now = self._broker.now()
        if consumers.active is not None:
            return consumers.active.key == key
        holder, until = self._claim
        if holder != key and now < until:
            return False
        self._claim = (key, now + CLAIM)
        return True

    def takes_filter(self, topic_filter: str) -> bool:
        """Return whether a consumer may use this filter. It may not if the group already has too many filters."""
        return self._choice.takes_filter(topic_filter)

    def _report_active(self, before: Consumer | None) -> None:
        active = self.consumers.active
        if active is before:
            return
        client = None if active is None else active.client_id
        self._broker.emit(
            "consumer.active", None, queue=self.queue, group=self.name, client_id=client
        )

    # sending ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Send as many messages as possible in the next turn."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._broker.runtime.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now, floor = self._broker.now(), self.group.floor
        expired = self.group.expire(now)
        for offset, lease in expired:
            self.outcomes.timed_out(offset, lease)
        if expired:
            self.stalls.timed_out(expired, self.consumers)
        if self.group.due:
            self.group.wake(self._broker.time())
        sent = 0 if self.paused else self._sender.send(now, self._broker.time(), SLICE)
        dropped = self._drop_expired(SLICE - sent)
        if sent + dropped == SLICE or (dropped and self._choice.filters is not None):
            self.schedule()
        if self.outcomes.has_buried:
            self.outcomes.has_buried = False
            self.store()  # if it fails, a message may become a dead letter twice
        if self.state.dirty or (sent and self.group.next + RESERVE // 2 > self.state.reserved):
            self.state.save()
        if self.group.floor != floor:
            self._owner.ended()  # messages expired, or became dead letters
        self._arm(now)

    # expiry ----------------------------------------------------------------------------------------------------------

    @property
    def is_unwatched(self) -> bool:
        """Whether it is not yet known when the next message expires."""
        return self._watches and (
            self._choice.selection is not None
            or self.group.peek(self._log.visible) != self._head[0]
        )

    def _drop_expired(self, most: int) -> int:
        """Drop up to `most` of the next messages, if they have expired and no consumer takes them. Return how many were
        dropped. Record when the next message expires.
        """
        if not self._watches:
            return 0
        group, log, time = self.group, self._log, self._broker.time()
        head, self._head = self._head, (-1, inf)
        for dropped in range(most):
            offset = (
                group.peek(log.visible) if self._choice.selection is None else self._choice.select()
            )
            if offset is None:
                if self._choice.filters is not None:
                    self._head = (-1, self._choice.filters.next_expiry)
                return dropped
            if offset == head[0] and head[1] > time:
                self._head = head
                return dropped
            message = log.get(offset)
            if message is None:
                if self._choice.skips(offset):
                    continue
                self._choice.load(offset)
                return dropped
            expiry = self._limits.expires_at(message)
            if expiry > time:
                self._head = (offset, expiry)
                return dropped
            self.outcomes.expire(offset, message, time)
        return most

    # settlement ------------------------------------------------------------------------------------------------------

    def loaded(self, offsets: list[int]) -> dict[int, Message]:
        """Return those of the messages that are in memory."""
        found = ((offset, self._log.get(offset)) for offset in offsets)
        return {offset: message for offset, message in found if message is not None}

    async def load(self, offset: int) -> None:
        """Read a message into memory. Raises SettlementError if it cannot be read."""
        result = self._broker.runtime.promise()
        self._log.load(offset, result.set_result)
        error = await result
        if error:
            raise SettlementError(ReasonCode.UNSPECIFIED_ERROR, str(error))

    def store(self) -> str:
        """Store the state in this turn's commit. Return an error, or ''. After an error, the state is stored later."""
        self.schedule()
        return self.state.store()

    def drop_oldest(self) -> bool:
        """Drop the oldest message that no consumer holds. Return False if there is none."""
        oldest = None if self._choice.selection is None else self._choice.selection.oldest()
        if oldest is not None:
            return self.outcomes.settle(oldest)
        offset = self.group.drop_oldest(self._log.visible)
        if offset is None:
            return False
        self.state.dirty = True
        self._owner.settled(offset)
        return True

    def trim(self, first: int) -> int:
        """Settle the messages below `first`, because they were deleted. Return how many were settled.

        This change alone does not cause the state to be saved. A broker that loads the older state settles these
        messages again.
        """
        lost = self.group.trim(first)
        if lost and self._explicit:
            self.holdings.prune()
        if lost and self._choice.selection is not None:
            self._choice.renew()
        return lost

    # operation -------------------------------------------------------------------------------------------------------

    def configure(self, config: QueueConfig) -> None:
        """Apply new settings."""
        self._limits.config = config
        self.consumers.set_prefetch(config.prefetch)
        self.schedule()

    @property
    def stalled(self) -> int:
        """The number of stalled consumers."""
        return sum(one in self.consumers.by_key for one in self.stalls.stalled)

    def can_take(self, offset: int) -> bool:
        """Return whether a message is unsettled and no consumer holds it."""
        group = self.group
        if offset < group.next:
            return offset in group.unsettled and offset not in group.leases
        return offset < self._log.visible

    def take(self, offset: int) -> None:
        """Settle a message for which `can_take` is True, no matter where in the queue it is. Call `state.committed` in
        the same turn.
        """
        self._log.hold()
        while self.group.next < offset:
            self.group.admit()
        self.outcomes.settle(offset)

    def purge(self) -> int:
        """Settle all messages that no consumer holds, and return how many were settled. Call `state.committed` in the
        same turn.
        """
        purged = self.group.purge(self._log.visible)
        self._choice.renew()
        self.state.dirty = True
        if self._explicit:
            self.holdings.prune()
        group = self.group
        for offset in self._log.in_memory():
            if offset < group.next and offset not in group.unsettled:
                self._owner.settled(offset)
        return purged

    async def seek(self, offset: int) -> None:
        """Move the group to `offset`. Return once the move is stored. Raises PluginError if it cannot be stored."""
        self.group.seek(offset)
        self.holdings.prune()
        self._choice.renew()
        await self.state.moved(offset)
        self.schedule()

    # timers ----------------------------------------------------------------------------------------------------------

    def _arm(self, now: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        deadline, due, expiry = self.group.deadline, self.group.next_due, self._head[1]
        if deadline is not None or due is not None or expiry < inf:
            wait = inf if deadline is None else deadline - now
            if due is not None or expiry < inf:
                until = expiry if due is None else min(due, expiry)
                wait = min(wait, until - self._broker.time(), LONGEST)
            self._expiry = self._broker.runtime.call_later(max(0.0, wait), self.schedule)
        if self._retry is None and self.consumers.is_stuck:
            self._retry = self._broker.runtime.call_later(RETRY, self._unblock)

    def _unblock(self) -> None:
        self._retry = None
        self.consumers.unblock()
        self.schedule()

    def close(self) -> bytes:
        """Stop sending. Return the state to store under the key `state_key`."""
        self._closed = True
        for timer in (self._expiry, self._retry):
            if timer is not None:
                timer.cancel()
        self._choice.close()
        return self.state.close()
