"""Implement the `rewrite` plugin: change the topics that clients publish to, subscribe to and receive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hookmq.plugin import (
    ClientInfo,
    Context,
    Deny,
    Drop,
    Message,
    MetricRegistry,
    Plugin,
    ReasonCode,
    Subscription,
    hookimpl,
)
from hookmq_toolkit.rules import rule_values

from hookmq_rewrite.rule import Rule, RuleAction, is_filter
from hookmq_rewrite.rule_set import RuleSet, Values


@dataclass(frozen=True)
class RewriteConfig:
    """Settings of `use: rewrite`."""

    rules: tuple[Rule, ...] = field(
        metadata={"help": "rules; the first one that applies rewrites", "nonempty": True}
    )

    def __post_init__(self) -> None:
        RuleSet(self.rules)


class RewritePlugin(Plugin):
    """A plugin that rewrites topics and topic filters according to rules.

    The broker authorizes both the topic that the client sent and the rewritten one. If a rule applies but one of its
    placeholders has no value, the action is denied.
    """

    Config = RewriteConfig
    config: RewriteConfig

    def __init__(self, config: RewriteConfig, context: Context) -> None:
        super().__init__(config, context)
        self.rewritten: dict[RuleAction, int] = dict.fromkeys(
            ("publish", "subscribe", "will", "deliver"), 0
        )
        """Rewritten topics and topic filters, by action."""
        self._rules = RuleSet(config.rules)
        hooks: Mapping[str, RuleAction] = {
            "on_publish": "publish",
            "on_subscribe": "subscribe",
            "on_will": "will",
            "on_deliver": "deliver",
        }
        self.idle_hooks = frozenset(
            hook for hook, action in hooks.items() if not self._rules.handles(action)
        )

    @hookimpl
    def on_publish(self, client: ClientInfo | None, message: Message) -> Message | Deny | None:
        """Rewrite the topic of a published message."""
        return self._message("publish", client, message)

    @hookimpl
    def on_will(self, client: ClientInfo, message: Message) -> Message | Deny | None:
        """Rewrite the topic of a will that is about to be published."""
        return self._message("will", client, message)

    def _message(
        self, action: RuleAction, client: ClientInfo | None, message: Message
    ) -> Message | Deny | None:
        try:
            topic = self._rules.rewrite(action, message.topic, _values(client))
        except ValueError as error:
            return _cannot(error)
        if topic == message.topic:
            return None
        if not topic or "+" in topic or "#" in topic:
            return Deny(ReasonCode.TOPIC_NAME_INVALID, f"rewritten to {topic!r}")
        self.rewritten[action] += 1
        return message.replace(topic=topic)

    @hookimpl
    def on_subscribe(
        self, client: ClientInfo, subscription: Subscription
    ) -> Subscription | Deny | None:
        """Rewrite the topic filter of a subscription. The client still unsubscribes with its original filter."""
        before = subscription.topic_filter
        try:
            after = self._rules.rewrite("subscribe", before, _values(client))
        except ValueError as error:
            return _cannot(error)
        if after == before:
            return None
        if not is_filter(after):
            return Deny(ReasonCode.TOPIC_FILTER_INVALID, f"rewritten to {after!r}")
        self.rewritten["subscribe"] += 1
        return subscription.replace(topic_filter=after)

    @hookimpl
    def on_deliver(self, client: ClientInfo, message: Message) -> Message | Drop | None:
        """Rewrite the topic of a message that a client receives."""
        try:
            topic = self._rules.rewrite("deliver", message.topic, _values(client))
        except ValueError:
            return Drop()
        if topic == message.topic:
            return None
        if not topic or "+" in topic or "#" in topic:
            return Drop()
        self.rewritten["deliver"] += 1
        return message.replace(topic=topic)

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metric that counts rewritten topics."""
        registry.counter(
            "rewrite_rewritten_total",
            "Topics and topic filters that were rewritten, by action.",
            lambda: [({"action": action}, count) for action, count in self.rewritten.items()],
        )


def _values(client: ClientInfo | None) -> Values:
    def values(variables: Sequence[str]) -> Mapping[str, str]:
        return rule_values(client, variables) if client is not None and variables else {}

    return values


def _cannot(error: ValueError) -> Deny:
    return Deny(ReasonCode.NOT_AUTHORIZED, f"the topic cannot be rewritten: {error}")
