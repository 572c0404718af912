"""Routes: for one topic, who gets its messages and how. Compiled once per topic by the router, valid until a
subscription that concerns the topic changes.

A target is plain where the bytes that came in may go out as they are: nothing of the message is the receiver's own. Only
the others cost an encoding and a call each.
"""

from collections.abc import Sequence
from typing import Final

from hookmq.broker.groups import Group
from hookmq.hooks.meter import Charge
from hookmq.properties import EMPTY
from hookmq.session import Session
from hookmq.store import Bounded, BoundedJournal, Journal
from hookmq.types import Subscription

Subscriber = Session | Group

GROUP_STEPS: Final = 8
"""What a shared subscription counts as, where a session counts as one."""


class Target:
    """One session's share in a topic: its overlapping subscriptions merged into one copy at the highest QoS, with all
    identifiers [MQTT-3.3.4-2, 3.3.4-3, 3.3.4-4] [MQTT311-3.3.5-1]."""

    __slots__ = (
        "identifiers",
        "no_local",
        "plain",
        "qos",
        "remote",
        "retain_as_published",
        "session",
        "subscription",
        "subscriptions",
    )

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
        self.remote: Target | None = None
        self.plain = False

    def merge(self, subscription: Subscription) -> None:
        """Take in another subscription of the same session."""
        if self.subscriptions is None:
            self.subscriptions = [self.subscription]
        self.subscriptions.append(subscription)
        if subscription.qos > self.qos:
            self.qos = subscription.qos
            self.subscription = subscription
        self.no_local = self.no_local or subscription.no_local
        self.retain_as_published = self.retain_as_published or subscription.retain_as_published

    def complete(self) -> None:
        """Collect the identifiers of all subscriptions that were merged; at once, since there may be thousands."""
        if self.subscriptions is not None:
            self.identifiers = tuple(
                [one.identifier for one in self.subscriptions if one.identifier is not None]
            )

    def without_local(self) -> "Target | None":
        """Return what is left of it for a message that the session itself sent [MQTT-3.8.3-3], None if nothing is. Made
        once: the subscriptions of a target do not change."""
        if not self.no_local:
            return self
        remote = self.remote
        if remote is None:
            for subscription in self.subscriptions or [self.subscription]:
                if subscription.no_local:
                    continue
                if remote is None:
                    remote = Target(self.session, subscription)
                else:
                    remote.merge(subscription)
            if remote is None:
                self.subscriptions = None  # nothing is left: one subscription tells it as well
                return None
            remote.complete()
            self.remote = remote
        return remote


class Route:
    """Who gets the messages of `topic`. `plain3` and `plain5` are the sessions that take shared bytes of MQTT 3.x and
    5.0, `rest` the other targets; `targets` are all. `simple`: nothing but plain targets."""

    __slots__ = (
        "_by_session", "bounded", "groups", "journals", "kept", "large", "matched", "plain3", "plain5", "rest", "simple",
        "targets", "topic", "valid", "volatile",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        targets: Sequence[Target],
        groups: Sequence[Group],
        journals: Sequence[Journal],
        slice_size: int,
    ) -> None:
        self.valid = True
        self.topic = topic
        self._by_session: dict[Session, Target] = {}
        self.targets = tuple(targets)
        self.groups = tuple(groups)
        self.journals = tuple(journals)
        self.bounded: tuple[BoundedJournal, ...] = tuple(
            journal for journal in journals if isinstance(journal, Bounded)
        )
        self.plain3 = [t.session for t in targets if t.plain and t.session.kind == 3]
        self.plain5 = [t.session for t in targets if t.plain and t.session.kind == 5]
        self.rest = tuple(t for t in targets if not t.plain)
        self.large = len(targets) + GROUP_STEPS * len(groups) > slice_size
        """Whether its messages are handed out in slices."""
        self.simple = not (self.rest or groups or journals) and not self.large
        self.volatile = self.simple and not any(t.session.durable for t in targets)
        """Simple, and no target's state goes through the store: QoS 1 and 2 need no commit either."""
        self.kept = self.simple and len(targets) == 1 and targets[0].session.durable
        """Simple, and the only target's state goes through the store."""
        self.matched = len(self.targets) + len(self.groups) + len(self.journals)

    def target_of(self, session: Session) -> "Target | None":
        """The target that stands for `session`; None if there is none."""
        found = self._by_session
        if not found:
            found = self._by_session = {target.session: target for target in self.targets}
        return found.get(session)


class Permit:
    """What a connection needs to know to pass on a PUBLISH like one it sent before: the first byte it holds for, the
    route, what it counts against, and whom the same bytes serve. `section` are the bytes of the `properties` that the
    last one had, their length before them: as a rule the next has the same."""

    __slots__ = (
        "charge", "header", "kept", "other", "properties", "route", "same", "section", "simple",
    )  # fmt: skip

    def __init__(
        self,
        header: int,
        route: Route,
        five: bool,
        simple: bool,
        charge: Charge | None = None,
        kept: bool = False,
    ) -> None:
        self.header = header
        self.route = route
        self.kept = kept
        """Whether one plain receiver that outlives its connection gets it, at QoS 1, and nobody is to be told."""
        self.simple = simple
        """Whether bytes alone may be handed on: plain receivers, no record, nobody to tell."""
        self.charge = charge
        self.section = b""
        self.properties = EMPTY
        self.same = route.plain5 if five else route.plain3
        self.other = route.plain3 if five else route.plain5
