"""Shared subscriptions. A message belongs to the shared subscription until it is sent to a member.

The message goes to an online member with room. If there is none, it waits in the shared queue, and the first member
with room receives it [MQTT-4.8.2-3]. When a member goes offline, its unacknowledged QoS 1 messages return to the queue.
QoS 2 messages in flight stay with the member [MQTT-4.8.2-4, 4.8.2-5].
"""

from collections import deque
from collections.abc import Callable
from zlib import crc32

from hookmq.model.message import Message
from hookmq.model.settings import ShareStrategy
from hookmq.model.subscription import Subscription
from hookmq.session.inflight import Delivery
from hookmq.session.serial_index import Numbered
from hookmq.session.session import Session


class SharedSubscription(Numbered):
    """The members of a shared subscription, and the messages waiting for any of them."""

    __slots__ = (
        "first_seq", "last_seq", "members", "online", "owner", "payer", "queue", "queued", "queued_bytes", "share",
        "sticky", "strategy", "topic_filter", "turn",
    )  # fmt: skip

    def __init__(self, share: str, topic_filter: str, owner: str, strategy: ShareStrategy) -> None:
        super().__init__()
        self.share = share
        self.topic_filter = topic_filter
        self.owner = owner
        self.strategy = strategy
        self.members: dict[Session, Subscription] = {}
        self.payer: Session | None = None
        """The member whose queue limits apply to the messages waiting here.

        All shared subscriptions with the same payer share its limits. Otherwise a client could multiply its limits by
        creating thousands of shared subscriptions.
        """
        self.online: list[Session] = []
        """Online members, in order of connection."""
        self.turn = 0
        self.sticky: Session | None = None
        self.queue: deque[Delivery] = deque()
        self.queued = 0
        self.queued_bytes = 0
        self.first_seq = 0
        self.last_seq = 0

    @property
    def durable(self) -> bool:
        """Whether any member is durable, so that waiting messages must be stored."""
        return any(session.durable for session in self.members)

    @property
    def qos(self) -> int:
        """The highest QoS granted to any member. Messages have this QoS while they wait and their recipient is not yet
        known.
        """
        return max((s.qos for s in self.members.values()), default=0)

    def admit(self, session: Session, subscription: Subscription) -> None:
        """Add a member, or change its subscription."""
        self.members[session] = subscription
        if self.payer is None:
            self._pay(session)

    def expel(self, session: Session) -> None:
        """Remove a member."""
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
        """Count a message that has begun to wait."""
        self.queued += 1
        self.queued_bytes += weight
        payer = self.payer
        if payer is not None:
            payer.shared_queued += 1
            payer.shared_bytes += weight

    def gone(self, weight: int) -> None:
        """Count a message that has stopped waiting."""
        self.queued -= 1
        self.queued_bytes -= weight
        payer = self.payer
        if payer is not None:
            payer.shared_queued -= 1
            payer.shared_bytes -= weight

    def enter(self, session: Session) -> None:
        """Record that a member is online."""
        if session not in self.online:
            self.online.append(session)

    def leave(self, session: Session) -> None:
        """Record that a member is offline or was removed."""
        if session in self.online:
            self.online.remove(session)
        if self.sticky is session:
            self.sticky = None

    def candidates(self, message: Message, random: Callable[[], float]) -> list[Session]:
        """Return the online members in the order in which to offer `message` to them."""
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
