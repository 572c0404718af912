"""Shared subscriptions: a group owns a message until it is sent to one of its members.

The message goes to a member that is online and has room; else it waits in the group's own queue, under the group's
bounds, and the first member with room takes it [MQTT-4.8.2-3]. When a member leaves, what it had not acknowledged at
QoS 1 comes back; QoS 2 that was started stays its own [MQTT-4.8.2-4, 4.8.2-5].
"""

from collections import deque
from collections.abc import Callable
from zlib import crc32

from hookmq.qos import Delivery
from hookmq.session import Session
from hookmq.settings import ShareStrategy
from hookmq.types import Message, Subscription


class Group:
    """The members of one share name and topic filter, and the messages that wait for any of them."""

    __slots__ = (
        "first_seq", "last_seq", "members", "online", "owner", "payer", "queue", "queued", "queued_bytes", "share",
        "sticky", "strategy", "topic_filter", "turn",
    )  # fmt: skip

    def __init__(self, share: str, topic_filter: str, owner: str, strategy: ShareStrategy) -> None:
        self.share = share
        self.topic_filter = topic_filter
        self.owner = owner
        self.strategy = strategy
        self.members: dict[Session, Subscription] = {}
        self.payer: Session | None = None
        """The member whose bounds hold for what waits here: all groups that it pays for share them. One client may make
        thousands of groups, and each of them had bounds of its own."""
        self.online: list[Session] = []
        """Members with a connection, in the order in which they came."""
        self.turn = 0
        self.sticky: Session | None = None
        self.queue: deque[Delivery] = deque()
        self.queued = 0
        self.queued_bytes = 0
        self.first_seq = 0
        self.last_seq = 0

    @property
    def durable(self) -> bool:
        """Whether a member outlives its connection, so that waiting messages go through the store."""
        return any(session.durable for session in self.members)

    @property
    def qos(self) -> int:
        """The highest QoS granted to a member: what a waiting message keeps until its receiver is known."""
        return max((s.qos for s in self.members.values()), default=0)

    def admit(self, session: Session, subscription: Subscription) -> None:
        """Make `session` a member, or change its subscription."""
        self.members[session] = subscription
        if self.payer is None:
            self._pay(session)

    def expel(self, session: Session) -> None:
        """Make `session` no member any more."""
        self.members.pop(session, None)
        self.leave(session)
        if self.payer is session:
            self._pay(next(iter(self.members), None))

    def _pay(self, session: Session | None) -> None:
        before = self.payer
        if before is not None:
            before.shared_queued -= self.queued
            before.shared_bytes -= self.queued_bytes
        self.payer = session
        if session is not None:
            session.shared_queued += self.queued
            session.shared_bytes += self.queued_bytes

    def waits(self, weight: int) -> None:
        """Count a message more that waits."""
        self.queued += 1
        self.queued_bytes += weight
        payer = self.payer
        if payer is not None:
            payer.shared_queued += 1
            payer.shared_bytes += weight

    def gone(self, weight: int) -> None:
        """Count a message less."""
        self.queued -= 1
        self.queued_bytes -= weight
        payer = self.payer
        if payer is not None:
            payer.shared_queued -= 1
            payer.shared_bytes -= weight

    def enter(self, session: Session) -> None:
        """A member came online."""
        if session not in self.online:
            self.online.append(session)

    def leave(self, session: Session) -> None:
        """A member went offline or left."""
        if session in self.online:
            self.online.remove(session)
        if self.sticky is session:
            self.sticky = None

    def candidates(self, message: Message, random: Callable[[], float]) -> list[Session]:
        """The online members in the order in which they should be tried for `message`."""
        online = self.online
        count = len(online)
        if count < 2:
            return list(online)
        strategy = self.strategy
        if strategy == "least_inflight":
            return sorted(online, key=_load)
        if strategy == "sticky":
            if self.sticky is None:
                self.sticky = online[0]
            start = online.index(self.sticky)
        elif strategy == "random":
            start = int(random() * count)
        elif strategy == "hash_topic":
            start = crc32(message.topic.encode()) % count
        elif strategy == "hash_client":
            start = crc32((message.sender or "").encode()) % count
        else:
            start = self.turn % count
            self.turn = start + 1
        return online[start:] + online[:start]


def _load(session: Session) -> int:
    return len(session.inflight) + session.queued
