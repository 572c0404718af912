"""Deliver the messages of a queue to the consumers of one group, and store the group's state.

A message is sent only if its offset is below the stored `reserved`. After a crash, every message that may have been
sent is therefore known, and is sent again with a delivery count above 1. The state is stored at most once per commit:
what changes while a commit runs is in the next one.
"""

from collections import Counter
from collections.abc import Awaitable
from math import inf
from typing import Any, Final, Protocol

from hookmq.mqtt_api import EMPTY
from hookmq.plugin import (
    BrokerHandle,
    DeliveryEnd,
    DirectDeliveries,
    Message,
    PluginError,
    ReasonCode,
    Timer,
)
from hookmq_toolkit.threads import in_thread

from hookmq_queues.backoff import Cause
from hookmq_queues.config import GroupConfig, QueueConfig
from hookmq_queues.consumers import Consumer, Consumers
from hookmq_queues.filters import MAX_FILTERS, ByFilter, is_narrow
from hookmq_queues.group import Group, Lease
from hookmq_queues.holdings import Holdings
from hookmq_queues.order import Selection, make_selection
from hookmq_queues.outgoing import UserProperties, is_for, outgoing
from hookmq_queues.settlement import SettlementError
from hookmq_queues.stalls import Stalls
from hookmq_queues.storage import CLOSED, MessageLog
from hookmq_queues.topics import PREFIX

RESERVE: Final = 1000
"""How many messages may be sent before the state is stored again."""
SLICE: Final = 256
"""Maximum number of messages that one group sends in one turn."""
RETRY: Final = 0.1
"""Seconds until a consumer is tried again that had no room, although it has no message of this queue."""
LONGEST: Final = 3600.0
"""Seconds after which due times are compared again with the clock, which may have been changed."""
CLAIM: Final = 1.0
"""Seconds for which the place of an exclusive consumer is kept while the client subscribes."""
QUIET: Final = 60.0
"""Seconds between two reports that no consumer takes the waiting messages of a group."""
PAUSE: Final = 1.0
"""Seconds until a failed read or write of the disk is tried again."""


Token = tuple["Dispatcher", Consumer, int, int]
"""Identifies a delivery: the dispatcher, the consumer, the offset and the token of the lease."""
Run = list[tuple[Message, bytes, Token]]
"""What to send to one consumer, with the encoded user properties."""
Runs = dict[tuple[str, str], tuple[Consumer, Run]]
"""What to send in this turn, by the consumer's key."""


class Owner(Protocol):
    """The queue of a dispatcher."""

    origin: str
    """The origin of the messages that the plugin itself adds."""

    def count(self, result: str, number: int = 1) -> None:
        """Count messages by what happened to them."""

    def bury(
        self,
        message: Message,
        group: str,
        offset: int,
        count: int,
        reason: str = "delivery-limit",
        description: str = "",
    ) -> None:
        """Add a message that was delivered `count` times to the queue for dead letters, in the commit of this turn."""

    def takes_dead_letters(self) -> bool:
        """Return whether the queue for dead letters has room."""

    def settled(self, offset: int) -> None:
        """Note that a group has settled a message."""

    def all_settled(self, offsets: list[int]) -> None:
        """Note that a group has settled messages."""

    def consumers_changed(self, group: str) -> None:
        """Take note that a group has got or lost a consumer."""


class Dispatcher:
    """The consumers of one group, and what is sent to them. Unless the state is `stored`, it ends with the process."""

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
        self.consumers = Consumers(config.prefetch, config.consumers)
        self.holdings = Holdings(group, self.consumers)
        self._explicit = self.settings.settle == "explicit"
        self._config = config
        self._log = log
        self._broker = broker
        self._deliveries = deliveries
        self._owner = owner
        self._stored = stored
        self._key = state_key(config.name, name)
        self._selection = make_selection(config, group, log.get)
        self._filters: ByFilter | None = None
        self._quiet_until = -inf
        self._narrow: Counter[str] = Counter()
        """The filters of consumers that take only some messages."""
        self._reserved = group.next
        """Messages from this offset on must not be sent before the state is stored again."""
        self._dirty = False
        self._saving = False
        self._scheduled = False
        self._closed = False
        self._expiry: Timer | None = None
        self._retry: Timer | None = None
        self._pause: Timer | None = None
        """Runs after a failed read, until the next one."""
        self._claim: tuple[tuple[str, str] | None, float] = (None, 0.0)
        self._epoch = 0
        """How often the group was moved. Offsets that were reserved before the last move do not count."""
        self._watches = config.type != "stream"
        self._head = (-1, inf)
        """The next message, and when it expires in epoch seconds."""
        self._moved = False
        """Whether a message became a dead letter in this turn, so that the state must be in its commit."""
        self._unread = -1
        """The offset of the message that could not be read."""
        self._added = UserProperties(config.name, name, self._explicit)
        self._again: set[int] = set()
        """The offsets in the runs of this turn that were delivered before."""
        self.paused = False
        """Whether nothing is sent. Call `schedule` when it becomes False."""
        self.stalls = Stalls(config.name, name, broker)

    @property
    def backlog(self) -> int:
        """The number of messages that are not settled."""
        return self.group.backlog(self._log.end)

    # consumers -------------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """Add a consumer and begin to send."""
        active = self.consumers.active
        known = self.consumers.by_key.get(consumer.key)
        if known is not None and known.connection is not consumer.connection:
            self._give_back(known)
        if known is None or known.topic_filter != consumer.topic_filter:
            if known is not None:
                self._count_filter(known.topic_filter, -1)
            self._count_filter(consumer.topic_filter, 1)
        self.consumers.add(consumer)
        self._report_active(active)
        self._owner.consumers_changed(self.name)
        self.schedule()

    def remove(self, key: tuple[str, str]) -> None:
        """Remove a consumer. Its messages stay leased until its deliveries end, or until their deadline."""
        active = self.consumers.active
        consumer = self.consumers.remove(key)
        if consumer is not None:
            self._count_filter(consumer.topic_filter, -1)
            self._give_back(consumer)
        if self._claim[0] == key:
            self._claim = (None, 0.0)
        self._report_active(active)
        self._owner.consumers_changed(self.name)
        self.schedule()

    def claim(self, key: tuple[str, str]) -> bool:
        """Return whether a client may subscribe as the consumer `key`. An exclusive consumer has the group for itself.

        The place is kept for a short time, until the client has subscribed and `add` is called.
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
        """Return whether a consumer can have this filter, or there are too many others."""
        return (
            not is_narrow(topic_filter, self.queue)
            or topic_filter in self._narrow
            or len(self._narrow) < MAX_FILTERS
        )

    def _count_filter(self, topic_filter: str, change: int) -> None:
        """Note that a consumer has a filter, or has it no longer. Select messages by filters only while one is narrow."""
        if not is_narrow(topic_filter, self.queue):
            return
        self._narrow[topic_filter] += change
        if not self._narrow[topic_filter]:
            del self._narrow[topic_filter]
            if self._filters is not None:
                self._filters.forget(topic_filter)
        if bool(self._narrow) != (self._filters is not None):
            self._renew_selection()

    def _report_window(self) -> None:
        """Report that no consumer takes any of the messages in the window. Others may be behind them."""
        now = self._broker.now()
        if self.group.next >= self._log.visible or now < self._quiet_until:
            return
        self._quiet_until = now + QUIET
        fields = {"queue": self.queue, "group": self.name, "messages": self._config.lookahead}
        self._broker.log("warning", "queue.filters_stuck", **fields)
        self._broker.emit("queue.filters_stuck", None, **fields)

    def _renew_selection(self) -> None:
        """Begin to choose anew among the messages that nobody has."""
        if self._narrow:
            self._filters = ByFilter(
                self.queue, self.consumers, self._is_dead, self._expires_at, self._broker.time
            )
            self._selection = Selection(
                self.group, self._filters, self._config.lookahead, self._log.get
            )
        else:
            self._filters = None
            self._selection = make_selection(self._config, self.group, self._log.get)
        self.group.requeue()

    def _is_dead(self, offset: int) -> bool:
        return 0 < self._config.delivery_limit <= self.group.attempts(offset)

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
        """Send what can be sent, in the next turn."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._broker.runtime.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now = self._broker.now()
        expired = self.group.expire(now)
        for offset, lease in expired:
            self._timed_out(offset, lease)
        if expired:
            self.stalls.timed_out(expired, self.consumers)
        if self.group.due:
            self.group.wake(self._broker.time())
        sent = 0 if self.paused else self._send(now)
        dropped = self._drop_expired(SLICE - sent)
        if sent + dropped == SLICE or (dropped and self._filters is not None):
            self.schedule()
        if self._moved:
            self._moved = False
            self.store()  # if it fails, a message may become a dead letter twice
        if self._dirty or (sent and self.group.next + RESERVE // 2 > self._reserved):
            self.save()
        self._arm(now)

    def _send(self, now: float) -> int:
        """Send the next messages, with one call for each consumer. Return how many messages were looked at."""
        runs: Runs = {}
        time = self._broker.time()
        looked = 0
        try:
            while looked < SLICE:
                leased = self._lease_next(now, time, runs, SLICE - looked)
                if not leased and not self._lease_one(now, time, runs):
                    break
                looked += leased or 1
        finally:
            for consumer, run in runs.values():
                self._send_run(consumer, run)
            self._again.clear()
        return looked

    def _send_run(self, consumer: Consumer, run: Run) -> None:
        """Send leased messages to one consumer. Withdraw the leases of those that cannot be sent."""
        sent = self._deliveries.send_run(consumer.client_id, consumer.filter, run)
        left = len(run) - sent
        if left:
            for _, _, (_, _, offset, token) in run[sent:]:
                self.group.withdraw(offset, token)
            self.schedule()
            self.consumers.returned(consumer, left)
        again = 0
        if self._again:
            again = sum(one[2][2] in self._again for one in run[:sent])
        self._owner.count("redelivered", again)
        self._owner.count("delivered", sent - again)

    def _lease_next(self, now: float, time: float, runs: Runs, limit: int) -> int:
        """Add up to `limit` messages that were never delivered to the run of one consumer. Return their number.

        This does for most messages what `_lease_one` does for any. It stops at a message that needs more.
        """
        group, log = self.group, self._log
        first = group.next
        if self._selection is not None or group.peek(log.visible) != first:
            return 0
        consumer = self.consumers.choose()
        if consumer is None:
            return 0
        room = self._room(first)
        end = first + min(limit, room, self.consumers.share(consumer, room))
        count = 0
        if end > first:
            run = runs.get(consumer.key)
            if run is None:
                run = runs[consumer.key] = (consumer, [])
            count = self._take(consumer, first, end, time, run[1])
        if count:
            deadline = now + self._config.visibility_timeout
            group.lease_next(count, consumer.key, deadline)
            self.consumers.took(consumer, count)
            if self._explicit:
                for offset in range(first, first + count):
                    self.holdings.leased(offset)
        return count

    def _room(self, first: int) -> int:
        """Return how many of the messages from `first` on, which were never delivered, can be leased."""
        room = min(
            self._log.visible - first,
            self._config.max_unacknowledged - len(self.group.unsettled),
        )
        return min(room, self._reserved - first) if self._stored else room

    def _take(self, consumer: Consumer, first: int, end: int, time: float, run: Run) -> int:
        """Append the messages from `first` to `end` to a run, until one is not in memory, or needs `_lease_one`. Return
        their number.
        """
        log, own, encode = self._log, self._owner.origin, self._added.encode
        queue, topic_filter, topic = self.queue, consumer.topic_filter, PREFIX + self.queue
        expire = self._config.message_ttl > 0
        added = b""
        token = self.group.token - first + 1
        for offset in range(first, end):
            message = log.get(offset)
            if (
                message is None
                or message.origin == own
                or (
                    (expire or message.expires_at is not None) and self._expires_at(message) <= time
                )
            ):
                return offset - first
            if consumer.with_properties:
                added = encode(offset, 1, message.topic)
            if message.properties is not EMPTY or message.topic != topic:
                message = outgoing(message, queue, topic_filter, own)
            run.append((message, added, (self, consumer, offset, token + offset)))
        return end - first

    def _lease_one(self, now: float, time: float, runs: Runs) -> bool:
        """Add the next message to the run of a consumer, or drop an expired one. Return False if nothing more can be
        done now. `time` is the clock's time.
        """
        group, log = self.group, self._log
        offset = group.peek(log.visible) if self._selection is None else self._select()
        if offset is None:
            return False
        filters = self._filters
        dead = self._is_dead(offset)
        consumer = self.consumers.choose() if filters is None else filters.choose(offset)
        if consumer is None and not dead:
            return False
        if offset == group.next:
            if len(group.unsettled) >= self._config.max_unacknowledged:
                return False
            if offset >= self._reserved and self._stored:
                self._dirty = True
                return False
        elif (
            self._selection is not None
            and not group.unsettled[offset]
            and len(group.unsettled) - self._selection.waiting >= self._config.max_unacknowledged
        ):
            return False
        message = log.get(offset)
        if message is None:
            if self._skips(offset):
                return True
            self._load(offset)
            return False
        if self._expires_at(message) <= time:
            self._expire(offset, message, time)
            return True
        if message.origin == self._owner.origin and not is_for(message, self.name):
            self._settle(offset)
            return True
        if dead and self._owner.takes_dead_letters():
            self._bury(offset, message)
            self._moved = True
            return True
        if consumer is None:
            return False
        if self._selection is not None:
            self._selection.leased(offset)
        token, count = group.lease(offset, consumer.key, now + self._config.visibility_timeout)
        self.consumers.took(consumer)
        if count > 1:
            self._again.add(offset)
        added = b""
        if consumer.with_properties:
            added = self._added.encode(offset, count, message.topic)
        made = outgoing(message, self.queue, consumer.topic_filter, self._owner.origin)
        run = runs.get(consumer.key)
        if run is None:
            run = runs[consumer.key] = (consumer, [])
        run[1].append((made, added, (self, consumer, offset, token)))
        if self._explicit:
            self.holdings.leased(offset)
        return True

    def _select(self) -> int | None:
        """Return the message that the order of the queue chooses, or None."""
        selection, log = self._selection, self._log
        assert selection is not None
        end = log.visible
        if self._stored and end > self._reserved:
            end = self._reserved
            if self.group.next >= end and selection.has_room:
                self._dirty = True
        offset = selection.next(end)
        if self._filters is not None and offset is None and not selection.has_room:
            self._report_window()
        missing = selection.missing
        while missing is not None and self._skips(missing):
            offset = selection.next(end)
            missing = selection.missing
        if missing is not None and (offset is None or log.get(offset) is not None):
            self._load(missing)
        return offset

    def _bury(
        self, offset: int, message: Message, reason: str = "delivery-limit", description: str = ""
    ) -> None:
        """Move a message to the queue for dead letters. Both changes are in the commit of this turn, if `store` is called
        in this turn too.
        """
        count = self.group.attempts(offset)
        description = description or self.holdings.reasons.get(offset, "")
        self._log.hold()
        self._owner.bury(message, self.name, offset, count, reason, description)
        self._settle(offset)

    # expiry ----------------------------------------------------------------------------------------------------------

    def _expires_at(self, message: Message) -> float:
        """Return when a message expires, in epoch seconds."""
        ttl = self._config.message_ttl
        end = message.received_at + ttl if ttl > 0 else inf
        return end if message.expires_at is None else min(end, message.expires_at)

    def _expire(self, offset: int, message: Message, time: float) -> None:
        """Drop an expired message, or make it a dead letter."""
        if message.origin == self._owner.origin and not is_for(message, self.name):
            self._settle(offset)
            return
        if not self._config.dead_letter_expired:
            self._settle(offset)
        elif self._owner.takes_dead_letters():
            self._bury(offset, message, "expired")
            self._moved = True
        else:  # try again later, and continue with the others
            if self._selection is not None:
                self._selection.leased(offset)
            self.group.defer(offset, time + PAUSE)
            self._dirty = True
            return
        self._owner.count("expired")

    @property
    def is_unwatched(self) -> bool:
        """Whether nobody knows when the next message expires."""
        return self._watches and (
            self._selection is not None or self.group.peek(self._log.visible) != self._head[0]
        )

    def _skips(self, offset: int) -> bool:
        """Settle `offset` and those after it that are known to have no message. Return False if there is none."""
        end = self._log.gap_end(offset)
        if end == offset:
            return False
        self.group.skip(offset, min(end, self._log.visible))
        self._dirty = True
        return True

    def _drop_expired(self, most: int) -> int:
        """Drop up to `most` messages that are next and have expired, although no consumer takes them. Return their
        number. Note when the next message expires.
        """
        if not self._watches:
            return 0
        group, log, time = self.group, self._log, self._broker.time()
        head, self._head = self._head, (-1, inf)
        for dropped in range(most):
            offset = group.peek(log.visible) if self._selection is None else self._select()
            if offset is None:
                if self._filters is not None:
                    self._head = (-1, self._filters.next_expiry)
                return dropped
            if offset == head[0] and head[1] > time:
                self._head = head
                return dropped
            message = log.get(offset)
            if message is None:
                if self._skips(offset):
                    continue
                self._load(offset)
                return dropped
            expiry = self._expires_at(message)
            if expiry > time:
                self._head = (offset, expiry)
                return dropped
            self._expire(offset, message, time)
        return most

    def _load(self, offset: int) -> None:
        """Read a message into memory, unless a read has failed a moment ago."""
        if self._pause is None:
            self._log.load(offset, self._loaded)

    def _loaded(self, error: str) -> None:
        if error == CLOSED:
            return
        if not error:
            if self._log.get(self._unread) is not None:
                self._unread = -1
            self.schedule()
            return
        selection = self._selection
        offset = self.group.peek(self._log.visible) if selection is None else selection.missing
        if offset is not None and offset != self._unread:
            self._unread = offset
            self._broker.log(
                "error", "queue.unreadable",
                queue=self._config.name, group=self.name, offset=offset, error=error,
            )  # fmt: skip
        if self._pause is None:
            self._pause = self._broker.runtime.call_later(PAUSE, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self.schedule()

    # what becomes of messages ----------------------------------------------------------------------------------------

    def acknowledged(self, deliveries: list[Token]) -> None:
        """Take the acknowledgements of deliveries. Call `schedule` afterwards."""
        if self._explicit or self._selection is not None or self.stalls.counts:
            for _, consumer, offset, token in deliveries:
                self.ended(consumer, offset, token, DeliveryEnd.ACKNOWLEDGED)
            return
        freed, settle, since = self.consumers.freed, self.group.settle, self.group.since
        settled: list[int] = []
        for _, consumer, offset, token in deliveries:
            freed(consumer)
            if token > since and settle(offset):
                settled.append(offset)
        if settled:
            self._dirty = True
            self._owner.all_settled(settled)
            self._owner.count("acknowledged", len(settled))

    def ended(self, consumer: Consumer, offset: int, token: int, end: DeliveryEnd) -> None:
        """Take the end of a delivery. Call `schedule` after one or more of these calls."""
        if self._explicit and end is DeliveryEnd.ACKNOWLEDGED and consumer.with_properties:
            lease = self.group.leases.get(offset)
            if lease is not None and lease.token == token:
                self.holdings.keep(consumer, offset)
                if self.consumers.by_key.get(consumer.key) is not consumer:
                    self._give_back(consumer)  # it has left meanwhile
                return
            self.consumers.freed(consumer)  # settled, or taken away
            return
        self.consumers.freed(consumer)
        if token <= self.group.since:
            return  # the group was moved, and may get this message once more
        if end is DeliveryEnd.LOST:
            if self.group.release(offset, token):
                self._delay(offset, "lost")
        elif self._settle(offset):
            self._owner.count("acknowledged" if end is DeliveryEnd.ACKNOWLEDGED else "refused")

    def _give_back(self, consumer: Consumer) -> None:
        """Make the messages ready that a consumer has acknowledged and can no longer settle."""
        for offset in self.holdings.held_by(consumer.key):
            self._end_lease(offset, "lost")

    def _timed_out(self, offset: int, lease: Lease) -> None:
        self._owner.count("timed_out")
        if self._explicit:
            self.holdings.expired(offset, lease)
        self._delay(offset, "timeout")

    def _end_lease(self, offset: int, cause: Cause, delay: float | None = None) -> None:
        """Take a message from its consumer, and deliver it again after `delay` or the group's backoff."""
        lease = self.group.leases.get(offset)
        if lease is None:
            return
        assert isinstance(lease.consumer, tuple)
        self.group.release(offset, lease.token)
        self.holdings.drop(offset, lease.consumer)
        self._delay(offset, cause, delay)

    def _delay(self, offset: int, cause: Cause, delay: float | None = None) -> None:
        """Defer a message whose lease has ended, unless it will be a dead letter."""
        self._dirty = True
        if self._is_dead(offset):
            return
        if delay is None:
            attempts = self.group.attempts(offset)
            delay = self.settings.backoff.delay(cause, attempts, self._broker.runtime.random())
        if delay > 0:
            self.group.defer(offset, self._broker.time() + delay)

    # explicit settlement ---------------------------------------------------------------------------------------------

    def acknowledge(self, offsets: list[int]) -> None:
        """Settle messages. Call `store` in this turn."""
        for offset in offsets:
            if self._settle(offset):
                self._owner.count("acknowledged")

    def give_back(self, offsets: list[int], delay: float | None, reason: str) -> None:
        """Deliver messages again, after `delay` or the group's backoff. Call `store` in this turn."""
        for offset in offsets:
            if reason:
                self.holdings.reasons[offset] = reason
            self._end_lease(offset, "nack", delay)
            self._owner.count("nacked")

    def reject(self, messages: dict[int, Message], description: str) -> bool:
        """Make messages dead letters, or drop them if the queue has no queue for dead letters. Call `store` in this turn.

        Return False if that queue is full; nothing has changed then. It may exceed its limit by these messages.
        """
        if not self._config.dead_letter:
            for offset in messages:
                if self._settle(offset):
                    self._owner.count("discarded")
            return True
        if not self._owner.takes_dead_letters():
            return False
        for offset, message in messages.items():
            self._bury(offset, message, "rejected", description)
        return True

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
        """Store the state in the commit of this turn. Return an error, or ''. After an error, it is stored later."""
        self.schedule()
        if not self._stored:
            return ""
        try:
            self._broker.state.put(self._key, self.group.encode(self.group.next + RESERVE))
        except PluginError as error:
            self._not_saved(error)
            return str(error)
        self._dirty = False
        return ""

    def drop_oldest(self) -> bool:
        """Drop the oldest message that no consumer has. Return False if there is none."""
        oldest = None if self._selection is None else self._selection.oldest()
        if oldest is not None:
            return self._settle(oldest)
        offset = self.group.drop_oldest(self._log.visible)
        if offset is None:
            return False
        self._dirty = True
        self._owner.settled(offset)
        return True

    def trim(self, first: int) -> int:
        """Settle the messages below `first`, because they were deleted. Return their number.

        The state is not stored for that, because a broker that loads it drops these messages again.
        """
        lost = self.group.trim(first)
        if lost and self._explicit:
            self.holdings.prune()
        if lost and self._selection is not None:
            self._renew_selection()
        return lost

    def _settle(self, offset: int) -> bool:
        if self.stalls.counts:
            self.stalls.settled(self.group.leases.get(offset))
        if self._explicit:
            lease = self.group.leases.get(offset)
            if lease is not None:
                assert isinstance(lease.consumer, tuple)
                self.holdings.drop(offset, lease.consumer)
            self.holdings.settled(offset)
        if not self.group.settle(offset):
            return False
        if self._selection is not None:
            self._selection.settled(offset)
        self._dirty = True
        self._owner.settled(offset)
        return True

    # operation -------------------------------------------------------------------------------------------------------

    def configure(self, config: QueueConfig) -> None:
        """Continue with other settings."""
        self._config = config
        self.consumers.set_prefetch(config.prefetch)
        self.schedule()

    @property
    def stalled(self) -> int:
        """The number of consumers that are stalled."""
        return sum(one in self.consumers.by_key for one in self.stalls.stalled)

    def can_take(self, offset: int) -> bool:
        """Return whether a message is not settled, and no consumer has it."""
        group = self.group
        if offset < group.next:
            return offset in group.unsettled and offset not in group.leases
        return offset < self._log.visible

    def take(self, offset: int) -> None:
        """Settle a message for which `can_take` is True, wherever it is. Call `committed` in the same turn."""
        self._log.hold()
        while self.group.next < offset:
            self.group.admit()
        self._settle(offset)

    def purge(self) -> int:
        """Settle all messages that no consumer has, and return their number. Call `committed` in the same turn."""
        purged = self.group.purge(self._log.visible)
        self._renew_selection()
        self._dirty = True
        if self._explicit:
            self.holdings.prune()
        for offset in self._log.in_memory():
            self._owner.settled(offset)
        return purged

    def committed(self) -> Awaitable[None]:
        """Store the state in the commit of this turn. The awaitable completes after the commit, and raises PluginError
        if the store fails.
        """
        if not self._stored:
            return in_thread(self._broker.runtime, lambda: None)
        return self._broker.state.put(self._key, self.group.encode(self.group.next + RESERVE))

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

    # storing ---------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Store the state, unless an earlier call is not committed yet: it then is stored after that."""
        self._dirty = True
        if self._saving or self._closed:
            return
        self._dirty = False
        if not self._stored:
            return
        self._saving = True
        reserved, epoch = self.group.next + RESERVE, self._epoch
        try:
            stored = self._broker.state.put(self._key, self.group.encode(reserved))
        except PluginError as error:
            self._not_saved(error)
            return

        def saved(result: Any, error: BaseException | None) -> None:
            if error is not None:
                self._not_saved(error)
                return
            self._saving = False
            if epoch == self._epoch:
                self._reserved = reserved
            self.schedule()

        self._broker.runtime.spawn(stored, saved)

    async def seek(self, offset: int) -> None:
        """Move the group to `offset`, and return when this is stored. Raises PluginError if it cannot be stored."""
        self.group.seek(offset)
        self.holdings.prune()
        self._renew_selection()
        self._epoch += 1
        epoch, reserved = self._epoch, offset + RESERVE
        self._reserved = offset
        if self._stored:
            await self._broker.state.put(self._key, self.group.encode(reserved))
        if epoch == self._epoch:
            self._reserved = max(self._reserved, reserved)
        self.schedule()

    def _not_saved(self, error: BaseException) -> None:
        if self._closed:
            return
        self._broker.log(
            "error", "queue.state_not_stored",
            queue=self._config.name, group=self.name, error=str(error),
        )  # fmt: skip

        def again() -> None:
            self._saving = False
            self.save()

        self._broker.runtime.call_later(PAUSE, again)

    def close(self) -> bytes:
        """Stop sending. Return the state to store, and its key is `state_key`."""
        self._closed = True
        for timer in (self._expiry, self._retry, self._pause):
            if timer is not None:
                timer.cancel()
        return self.group.encode(self.group.next)


def state_key(queue: str, group: str) -> str:
    """Return the key under which the state of a group is stored."""
    return f"group/{queue}/{group}"
