"""Implement the `exclusive` plugin: ``$exclusive/TOPIC`` has at most one subscriber at a time."""

from dataclasses import dataclass
from typing import Final

from hookmq.plugin import (
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Context,
    Deny,
    MetricRegistry,
    Plugin,
    ReasonCode,
    SessionEvent,
    Subscription,
    hookimpl,
    setting,
)

from hookmq_exclusive.holders import UNCONFIRMED, Holder, Holders

PREFIX: Final = "$exclusive/"


@dataclass(frozen=True)
class ExclusiveConfig:
    """Settings of `use: exclusive`."""

    max_topics: int = setting(
        100_000, "topics that may be held at the same time; further ones are refused", minimum=1
    )

    def __post_init__(self) -> None:
        if self.max_topics < 1:
            raise ConfigError(f"max_topics: expected at least 1, found {self.max_topics}")


class ExclusivePlugin(Plugin):
    """A plugin that grants ``$exclusive/TOPIC`` to the first client. Until that subscription ends, other clients are
    refused.

    The subscription then receives messages on TOPIC, like an ordinary one. The broker authorizes both the exclusive
    filter and TOPIC.
    """

    Config = ExclusiveConfig
    config: ExclusiveConfig
    per_node = (
        "each node grants a topic to one of its own clients, so that several clients can hold it"
    )

    def __init__(self, config: ExclusiveConfig, context: Context) -> None:
        super().__init__(config, context)
        self.holders = Holders()
        self.refused = 0
        self._expired = 0.0
        """When the plugin last searched for subscriptions that were allowed but never created, in monotonic seconds."""

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Find the exclusive subscriptions of stored sessions, and those created before a reload."""
        cursor = ""
        while True:
            page = broker.subscriptions(cursor, 1000)
            for one in page.items:
                if one.subscription.filter.startswith(PREFIX):
                    topic = one.subscription.topic_filter
                    self.holders.take(topic, one.client_id, broker.now(), confirmed=True)
            cursor = page.cursor
            if not cursor:
                return

    @hookimpl
    def on_subscribe(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> Subscription | Deny | None:
        """Grant an exclusive subscription if no other client holds the topic."""
        mount = client.scope.mount_point
        wanted = subscription.topic_filter.removeprefix(mount)
        if not wanted.startswith(PREFIX):
            return None
        topic = wanted.removeprefix(PREFIX)
        if subscription.share is not None:
            return self._refuse(
                ReasonCode.TOPIC_FILTER_INVALID, "a shared subscription is not exclusive"
            )
        if not topic or "+" in topic or "#" in topic or topic.startswith("$"):
            why = (
                "an exclusive subscription needs a topic without wildcards and without a leading $"
            )
            return self._refuse(ReasonCode.TOPIC_FILTER_INVALID, why)
        topic = mount + topic
        holder = self.holders.holder(topic)
        if holder is not None and holder.client_id != client.client_id:
            if self._holds(holder, topic, broker):
                return self._refuse(ReasonCode.QUOTA_EXCEEDED, "another client holds this topic")
        elif holder is None and self._is_full(broker.now()):
            return self._refuse(ReasonCode.QUOTA_EXCEEDED, "too many exclusive topics")
        if holder is None or holder.client_id != client.client_id:
            self.holders.take(topic, client.client_id, broker.now())
        return subscription.replace(topic_filter=topic)

    def _is_full(self, now: float) -> bool:
        most = self.config.max_topics
        if len(self.holders) >= most and now >= self._expired + UNCONFIRMED:
            self._expired = now
            self.holders.expire(now)
        return len(self.holders) >= most

    def _holds(self, holder: Holder, topic: str, broker: BrokerHandle) -> bool:
        """Return whether the client still has the subscription, or may be about to create it."""
        kept = broker.subscriptions(client_id=holder.client_id, filter=topic, limit=1000).items
        if any(
            one.client_id == holder.client_id and one.subscription.filter.startswith(PREFIX)
            for one in kept
        ):
            return True
        return not holder.confirmed and broker.now() - holder.since < UNCONFIRMED

    def _refuse(self, code: ReasonCode, reason: str) -> Deny:
        self.refused += 1
        return Deny(code, reason)

    @hookimpl
    async def on_subscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        """Record that an allowed subscription was created."""
        if subscription.filter.startswith(PREFIX):
            self.holders.confirm(subscription.topic_filter, client.client_id)

    @hookimpl
    async def on_unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        """Free the topic of a subscription that has ended."""
        if subscription.filter.startswith(PREFIX):
            self.holders.release(subscription.topic_filter, client.client_id)

    @hookimpl
    async def on_session(
        self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle
    ) -> None:
        """Free the topics of a session that has ended. The client may already have a new session with other topics."""
        if event not in (SessionEvent.ENDED, SessionEvent.EXPIRED):
            return
        for topic in self.holders.topics(client.client_id):
            holder = self.holders.holder(topic)
            if holder is not None and not self._holds(holder, topic, broker):
                self.holders.release(topic, client.client_id)

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics for held topics and refused subscriptions."""
        registry.gauge("exclusive_topics", "Topics that a client holds.", lambda: len(self.holders))
        registry.counter(
            "exclusive_refused_total", "Refused exclusive subscriptions.", lambda: self.refused
        )
