"""Lease a group's messages to consumers, and send them."""

from collections.abc import Callable

from hookmq.mqtt_api import EMPTY
from hookmq.plugin import DirectDeliveries, Message

from hookmq_queues.choice import Choice
from hookmq_queues.consumers import Consumer, Consumers
from hookmq_queues.group import Group
from hookmq_queues.group_state import GroupState
from hookmq_queues.holdings import Holdings
from hookmq_queues.limits import Limits
from hookmq_queues.outcomes import Outcomes, Owner, Token
from hookmq_queues.outgoing import UserProperties, is_for, outgoing
from hookmq_queues.storage import MessageLog
from hookmq_queues.topics import PREFIX

Run = list[tuple[Message, bytes, Token]]
"""The messages to send to one consumer, with their encoded user properties and tokens."""
Runs = dict[tuple[str, str], tuple[Consumer, Run]]
"""The messages to send in this turn, by the consumer's key."""


class Sender:
    """Sends one group's messages."""

    def __init__(
        self,
        name: str,
        explicit: bool,
        group: Group,
        state: GroupState,
        consumers: Consumers,
        holdings: Holdings,
        limits: Limits,
        choice: Choice,
        outcomes: Outcomes,
        log: MessageLog,
        deliveries: DirectDeliveries,
        owner: Owner,
        schedule: Callable[[], None],
    ) -> None:
        self._name = name
        self._queue = limits.config.name
        self._explicit = explicit
        self._group = group
        self._state = state
        self._consumers = consumers
        self._holdings = holdings
        self._limits = limits
        self._choice = choice
        self._outcomes = outcomes
        self._log = log
        self._deliveries = deliveries
        self._owner = owner
        self._schedule = schedule
        self._added = UserProperties(self._queue, name, explicit)
        self._again: set[int] = set()
        """The offsets in this turn's runs whose messages were delivered before."""

    def send(self, now: float, time: float, most: int) -> int:
        """Send up to `most` of the next messages, using one call per consumer. Return how many messages were examined.

        `now` is the broker's monotonic time, and `time` is epoch time.
        """
        runs: Runs = {}
        looked = 0
        try:
            while looked < most:
                leased = self._lease_next(now, time, runs, most - looked)
                if not leased and not self._lease_one(now, time, runs):
                    break
                looked += leased or 1
        finally:
            for consumer, run in runs.values():
                self._send_run(consumer, run)
            self._again.clear()
        return looked

    def _send_run(self, consumer: Consumer, run: Run) -> None:
        """Send leased messages to one consumer. Withdraw the leases of any that cannot be sent."""
        sent = self._deliveries.send_run(consumer.client_id, consumer.filter, run)
        left = len(run) - sent
        if left:
            for _, _, (_, _, offset, token) in run[sent:]:
                self._group.withdraw(offset, token)
            self._schedule()
            self._consumers.returned(consumer, left)
        again = 0
        if self._again:
            again = sum(one[2][2] in self._again for one in run[:sent])
        self._owner.count("redelivered", again)
        self._owner.count("delivered", sent - again)

    def _lease_next(self, now: float, time: float, runs: Runs, limit: int) -> int:
        """Add up to `limit` never-delivered messages to one consumer's run. Return how many were added.

        This is a faster version of `_lease_one` for ordinary messages. It stops at the first message that needs more
        work.
        """
        group, log = self._group, self._log
        first = group.next
        if self._choice.selection is not None or group.peek(log.visible) != first:
            return 0
        consumer = self._consumers.choose()
        if consumer is None:
            return 0
        room = self._room(first)
        end = first + min(limit, room, self._consumers.share(consumer, room))
        count = 0
        if end > first:
            run = runs.get(consumer.key)
            if run is None:
                run = runs[consumer.key] = (consumer, [])
            count = self._take(consumer, first, end, time, run[1])
        if count:
            deadline = now + self._limits.config.visibility_timeout
            group.lease_next(count, consumer.key, deadline)
            self._consumers.took(consumer, count)
            if self._explicit:
                for offset in range(first, first + count):
                    self._holdings.leased(offset)
        return count

    def _room(self, first: int) -> int:
        """Return how many messages, starting at `first`, can be leased. None of them has been delivered before."""
        room = min(
            self._log.visible - first,
            self._limits.config.max_unacknowledged - len(self._group.unsettled),
        )
        return min(room, self._state.reserved - first) if self._state.stored else room

    def _take(self, consumer: Consumer, first: int, end: int, time: float, run: Run) -> int:
        """Append the messages from `first` to `end` to a run. Stop at a message that is not in memory or needs
        `_lease_one`. Return how many were appended.
        """
        log, own, encode = self._log, self._owner.origin, self._added.encode
        queue, topic_filter, topic = self._queue, consumer.topic_filter, PREFIX + self._queue
        expire = self._limits.config.message_ttl > 0
        added = b""
        token = self._group.token - first + 1
        for offset in range(first, end):
            message = log.get(offset)
            if (
                message is None
                or message.origin == own
                or (
                    (expire or message.expires_at is not None)
                    and self._limits.expires_at(message) <= time
                )
            ):
                return offset - first
            if consumer.with_properties:
                added = encode(offset, 1, message.topic)
            if message.properties is not EMPTY or message.topic != topic:
                message = outgoing(message, queue, topic_filter, own)
            run.append((message, added, (self._outcomes, consumer, offset, token + offset)))
        return end - first

    def _lease_one(self, now: float, time: float, runs: Runs) -> bool:
        """Add the next message to a consumer's run, or drop it if it has expired. Return False if there is nothing more
        to do now. `time` is epoch time.
        """
        group, log = self._group, self._log
        offset = (
            group.peek(log.visible) if self._choice.selection is None else self._choice.select()
        )
        if offset is None:
            return False
        filters = self._choice.filters
        dead = self._limits.is_dead(offset)
        consumer = self._consumers.choose() if filters is None else filters.choose(offset)
        if consumer is None and not dead:
            return False
        if offset == group.next:
            if len(group.unsettled) >= self._limits.config.max_unacknowledged:
                return False
            if offset >= self._state.reserved and self._state.stored:
                self._state.dirty = True
                return False
        elif not group.unsettled[offset] and not self._state.opened:
            self._state.dirty = True
            return False
        elif (
            self._choice.selection is not None
            and not group.unsettled[offset]
            and len(group.unsettled) - self._choice.selection.waiting
            >= self._limits.config.max_unacknowledged
        ):
            return False
        message = log.get(offset)
        if message is None:
            if self._choice.skips(offset):
                return True
            self._choice.load(offset)
            return False
        if self._limits.expires_at(message) <= time:
            self._outcomes.expire(offset, message, time)
            return True
        if message.origin == self._owner.origin and not is_for(message, self._name):
            self._outcomes.settle(offset)
            return True
        if dead and self._owner.takes_dead_letters():
            self._outcomes.bury(offset, message)
            self._outcomes.has_buried = True
            return True
        if consumer is None:
            return False
        if self._choice.selection is not None:
            self._choice.selection.leased(offset)
        token, count = group.lease(
            offset, consumer.key, now + self._limits.config.visibility_timeout
        )
        self._consumers.took(consumer)
        if count > 1:
            self._again.add(offset)
        added = b""
        if consumer.with_properties:
            added = self._added.encode(offset, count, message.topic)
        made = outgoing(message, self._queue, consumer.topic_filter, self._owner.origin)
        run = runs.get(consumer.key)
        if run is None:
            run = runs[consumer.key] = (consumer, [])
        run[1].append((made, added, (self._outcomes, consumer, offset, token)))
        if self._explicit:
            self._holdings.leased(offset)
        return True
