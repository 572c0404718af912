"""Routes: a topic's recipients. A route is valid until a subscription that affects its topic changes.

A recipient is plain if the received bytes can be forwarded unchanged. Every other recipient needs its own encoding and
call.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from hookmq.hooks.chain import Calls
from hookmq.hooks.rate_limit import PublishLimit
from hookmq.model.subscription import Subscription
from hookmq.mqtt.properties import EMPTY
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.session import UNENCODED, Session
from hookmq.storage.cluster import Remote, RemoteMatch, RemoteRoute
from hookmq.storage.cluster_packets import RemotePackets
from hookmq.storage.columns import MessageColumns, Room
from hookmq.storage.protocols import (
    Bounded,
    BoundedJournal,
    Columnar,
    Diverting,
    Journal,
    Volatile,
)

Subscriber = Session | SharedSubscription | Remote

GROUP_STEPS: Final = 8
"""The number of sessions that a shared subscription counts as in the work of a route."""


class Recipient:
    """A session that receives a route's messages. It receives one copy, even if its subscriptions overlap.

    The copy has the highest QoS and all subscription identifiers [MQTT-3.3.4-2, 3.3.4-3, 3.3.4-4] [MQTT311-3.3.5-1].
    """

    __slots__ = (
        "calls", "identifiers", "no_local", "plain", "qos", "remote", "retain_as_published", "session", "subscription",
        "subscriptions",
    )  # fmt: skip

    def __init__(self, session: Session, subscription: Subscription) -> None:
        self.session = session
        self.qos = subscription.qos
        self.no_local = subscription.no_local
        self.retain_as_published = subscription.retain_as_published
        self.identifiers: tuple[int, ...] = (
            () if subscription.identifier is None else (subscription.identifier,)
        )
        self.subscription = subscription
        self.subscriptions: list[Subscription] | None = None
        self.remote: Recipient | None = None
        self.plain = False
        self.calls: Calls = ()
        """The calls to `on_deliver` that decide on each delivery, if the recipient would be plain without them."""

    def merge(self, subscription: Subscription) -> None:
        """Add another subscription of the same session."""
        if self.subscriptions is None:
            self.subscriptions = [self.subscription]
        self.subscriptions.append(subscription)
        if subscription.qos > self.qos:
            self.qos = subscription.qos
            self.subscription = subscription
        self.no_local = self.no_local or subscription.no_local
        self.retain_as_published = self.retain_as_published or subscription.retain_as_published

    def complete(self) -> None:
        """Collect the merged subscriptions' identifiers. This is done only once, because there may be thousands of
        identifiers.
        """
        if self.subscriptions is not None:
            self.identifiers = tuple(
                [one.identifier for one in self.subscriptions if one.identifier is not None]
            )

    def without_local(self) -> "Recipient | None":
        """Return this recipient without its No Local subscriptions, for messages that the session itself publishes
        [MQTT-3.8.3-3]. Return None if no subscription remains. The result is cached.
        """
        if not self.no_local:
            return self
        remote = self.remote
        if remote is None:
            for subscription in self.subscriptions or [self.subscription]:
                if subscription.no_local:
                    continue
                if remote is None:
                    remote = Recipient(self.session, subscription)
                else:
                    remote.merge(subscription)
            if remote is None:
                self.subscriptions = None  # all are No Local, so one of them is enough
                return None
            remote.complete()
            self.remote = remote
        return remote


class Route:
    """The recipients of `topic`.

    `plain3` and `plain5` are the plain sessions that share encoded bytes, for MQTT 3.x and 5.0. `plugin_clients` are the
    plain sessions that get no bytes. `asked` contains the recipients that would be plain if `on_deliver` did not have to
    be called for them. `recipients` contains all sessions on the route. `simple` is True if all of these are plain or in
    `asked`, if one slice can serve them all, and if there are no groups, journals or remotes.
    """

    __slots__ = (
        "_by_session", "asked", "bounded", "columns", "groups", "journals", "large", "local", "matched", "plain3",
        "plain5", "plugin_clients", "recipients", "remotes", "rooms", "simple", "single_durable", "topic", "valid",
        "volatile",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        recipients: Sequence[Recipient],
        groups: Sequence[SharedSubscription],
        journals: Sequence[Journal],
        slice_size: int,
        remotes: RemoteRoute | None = None,
    ) -> None:
        self.valid = True
        self.topic = topic
        self._by_session: dict[Session, Recipient] = {}
        self.recipients = tuple(recipients)
        self.groups = tuple(groups)
        self.journals = tuple(journals)
        self.remotes = remotes
        """The other nodes of a cluster that want the messages, or None."""
        self.bounded: tuple[BoundedJournal, ...] = ()
        if journals:
            self.bounded = tuple(journal for journal in journals if isinstance(journal, Bounded))
        self.columns: tuple[MessageColumns, ...] = ()
        """The columns of all journals, if only journals receive the messages and all of them have columns."""
        self.rooms: tuple[Room, ...] = ()
        """The `Room` of each of the `columns`, if it has one."""
        if journals and not recipients and not groups and remotes is None:
            self._collect()
        self.plain3: list[Session] = []
        self.plain5: list[Session] = []
        self.plugin_clients: list[Session] = []
        asked: list[Recipient] = []
        others = False
        durable = 0
        for recipient in recipients:
            session = recipient.session
            durable += session.durable
            if not recipient.plain:
                if recipient.calls:
                    asked.append(recipient)
                else:
                    others = True
            elif session.encoding_version == 5:
                self.plain5.append(session)
            elif session.encoding_version == 3:
                self.plain3.append(session)
            elif session.encoding_version == UNENCODED:
                self.plugin_clients.append(session)
        self.asked = tuple(asked)
        self.large = len(recipients) + GROUP_STEPS * len(groups) > slice_size
        """Whether messages are delivered in slices."""
        self.local = not (others or groups or journals or self.large)
        """Whether the route is simple, apart from remotes."""
        self.simple = self.local and remotes is None
        self.volatile = self.simple and not durable
        """Whether the route is simple and all recipients are clean sessions. QoS 1 and 2 then need no commit."""
        self.single_durable = self.simple and durable == 1 and len(recipients) == 1 and not asked
        """Whether the route is simple and its only recipient is durable and plain."""
        self.matched = len(self.recipients) + len(self.groups) + len(self.journals)
        if remotes is not None:
            self.matched += len(remotes.matches)

    def _collect(self) -> None:
        """Set `columns` and `rooms` if all journals have columns."""
        columns: list[MessageColumns] = []
        rooms: list[Room] = []
        for journal in self.journals:
            if not isinstance(journal, Columnar) or isinstance(journal, Volatile):
                return
            found = journal.columns(self.topic)
            columns.append(found)
            if found.room is not None:
                rooms.append(found.room)
            elif isinstance(journal, Bounded):
                return
        self.columns = tuple(columns)
        self.rooms = tuple(rooms)

    def recipient_of(self, session: Session) -> "Recipient | None":
        """Return the recipient for `session`, or None."""
        found = self._by_session
        if not found:
            found = self._by_session = {
                recipient.session: recipient for recipient in self.recipients
            }
        return found.get(session)


class WorkCounter(Protocol):
    """Counts units of work, to limit the work that one client can cause in a turn."""

    work: int


class RouteCompiler:
    """Creates a broker's routes.

    `decides` returns the calls to `on_deliver` for a topic and a session, or None if `authorize` decides on each
    delivery too. `decides` itself is None if no plugin decides on deliveries.
    """

    def __init__(
        self,
        counter: WorkCounter,
        journals: Sequence[Journal],
        slice_size: int,
        decides: Callable[[Session, str], Calls | None] | None,
    ) -> None:
        self.counter = counter
        self.journals = journals
        self.slice_size = slice_size
        self.decides = decides

    def compile(self, topic: str, entries: list[tuple[Subscriber, str, Subscription]]) -> Route:
        """Return the route for `topic`: the subscribers in `entries` and the journals that want the topic."""
        journals = [one for one in self.journals if one.wants(topic)] if self.journals else []
        if journals and any(isinstance(one, Diverting) and one.diverts(topic) for one in journals):
            entries = []
        recipients: dict[Session, Recipient] = {}
        groups: list[SharedSubscription] = []
        remotes: list[RemoteMatch] = []
        for subscriber, _, subscription in entries:
            if isinstance(subscriber, SharedSubscription):
                groups.append(subscriber)
                continue
            if isinstance(subscriber, Remote):
                remotes.append(RemoteMatch(subscriber, subscription))
                continue
            recipient = recipients.get(subscriber)
            if recipient is None:
                recipients[subscriber] = Recipient(subscriber, subscription)
            else:
                recipient.merge(subscription)
        # The tree was searched level by level.
        levels = topic.count("/")
        self.counter.work += (len(entries) >> 3) + (len(topic) >> 11) + (levels >> 4)
        for session, recipient in recipients.items():
            if recipient.subscriptions is not None:
                recipient.complete()
            recipient.plain = (
                session.encoding_version != 0
                and not recipient.identifiers
                and not recipient.no_local
            )
            if recipient.plain and self.decides is not None:
                calls = self.decides(session, topic)
                if calls is None:
                    recipient.plain = False
                elif calls:
                    recipient.plain = False
                    recipient.calls = calls
        return Route(
            topic,
            list(recipients.values()),
            groups,
            journals,
            self.slice_size,
            RemoteRoute(tuple(remotes)) if remotes else None,
        )


class CachedPublish:
    """The cached route for all PUBLISHes on one connection that have the same topic and first byte.

    `section` contains the encoded `properties` of the last PUBLISH, since the next one usually has the same properties.
    """

    __slots__ = (
        "calls", "header", "other_version", "others", "plain_receivers", "properties", "publish_limit",
        "raw_forwardable", "remotes", "route", "same_version", "section", "single_durable", "start", "start_for", "told",
    )  # fmt: skip

    def __init__(
        self,
        header: int,
        route: Route,
        five: bool,
        plain_receivers: bool,
        publish_limit: PublishLimit | None = None,
        single_durable: bool = False,
        calls: Calls = (),
        told: bool = False,
        remotes: Sequence[RemotePackets] = (),
    ) -> None:
        self.header = header
        self.route = route
        self.single_durable = single_durable
        """Whether the only recipient is plain and durable, and the QoS is 1."""
        self.calls = calls
        """The calls to `on_publish` that apply to the topic. None of them needs to wait."""
        self.told = told
        """Whether a plugin observes the message with `on_published`."""
        self.plain_receivers = plain_receivers
        """Whether the recipients may get the received bytes, if their `on_deliver` permits it. Apart from that hook,
        all of them are plain, and nothing is recorded."""
        self.raw_forwardable = plain_receivers and not (calls or route.asked)
        """Whether no plugin sees the message before its packets are written, so that writing them needs no
        `Message`."""
        self.publish_limit = publish_limit
        self.remotes = remotes
        """Other nodes that get the received bytes too, if the packets are `raw_forwardable`."""
        self.section = b""
        self.properties = EMPTY
        self.start = b""
        self.start_for = -1
        """The bytes before a payload of `start_for` bytes in a plugin client's MQTT 5 packet, with packet id 0."""
        self.same_version = route.plain5 if five else route.plain3
        """Plain recipients with the publisher's protocol version, which can receive the same bytes."""
        self.other_version = route.plain3 if five else route.plain5
        self.others = bool(self.other_version or route.plugin_clients)
        """Whether a plain recipient cannot receive the same bytes."""
