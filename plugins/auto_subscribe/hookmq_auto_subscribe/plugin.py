"""Implement the `auto_subscribe` plugin: subscribe clients to topics by rules when they connect."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hookmq.plugin import (
    BrokerHandle,
    ClientInfo,
    Context,
    MetricRegistry,
    Plugin,
    PluginError,
    SessionEvent,
    hookimpl,
    setting,
)
from hookmq_toolkit.rules import rule_values
from hookmq_toolkit.topic_template import TopicTemplate


@dataclass(frozen=True)
class Rule:
    """One entry of `rules`."""

    filter: str = field(
        metadata={"help": "topic filter, with %c, %u and ${CLAIM} filled in; may be shared"}
    )
    qos: int = setting(0, "highest QoS of the messages: 0, 1 or 2", minimum=0, maximum=2)
    no_local: bool = setting(False, "whether the client does not receive its own messages")
    retain_as_published: bool = setting(False, "whether messages keep their RETAIN flag")
    retain_handling: int = setting(
        1,
        "retained messages: 0 at each connect, 1 if the subscription is new, 2 never",
        minimum=0,
        maximum=2,
    )
    listeners: tuple[str, ...] = setting(
        (), "listeners whose clients are subscribed; all by default", nonempty=True
    )
    authorize: bool = setting(
        True, "whether the client must be allowed to subscribe; false: the rule is enough"
    )

    def __post_init__(self) -> None:
        TopicTemplate(self.filter).check("filter")


@dataclass(frozen=True)
class AutoSubscribeConfig:
    """Settings of `use: auto_subscribe`."""

    rules: tuple[Rule, ...] = field(
        metadata={"help": "subscriptions that clients receive", "nonempty": True}
    )


class AutoSubscribePlugin(Plugin):
    """A plugin that subscribes each client after CONNACK, by the rules for its listener.

    The subscriptions are ordinary ones: limits, hooks and durable sessions apply, and the client may unsubscribe.
    """

    Config = AutoSubscribeConfig
    config: AutoSubscribeConfig

    def __init__(self, config: AutoSubscribeConfig, context: Context) -> None:
        super().__init__(config, context)
        self.counts: dict[str, int] = {"subscribed": 0, "refused": 0, "skipped": 0}
        self._rules = [(rule, TopicTemplate(rule.filter)) for rule in config.rules]

    @hookimpl
    async def on_session(
        self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle
    ) -> None:
        """Create the subscriptions for a client that has connected."""
        if event not in (SessionEvent.CREATED, SessionEvent.RESUMED):
            return
        for rule, template in self._rules:
            if rule.listeners and client.listener not in rule.listeners:
                continue
            await self._subscribe(client, rule, template, broker)

    async def _subscribe(
        self, client: ClientInfo, rule: Rule, template: TopicTemplate, broker: BrokerHandle
    ) -> None:
        values: Mapping[str, str] = rule_values(client, template.variables)
        try:
            filter = template.fill(values)
        except ValueError as error:
            self.counts["skipped"] += 1
            broker.log(
                "info", "auto_subscribe.skipped",
                client_id=client.client_id, rule=rule.filter, error=str(error),
            )  # fmt: skip
            return
        try:
            code = await broker.subscribe(
                client.client_id,
                filter,
                rule.qos,
                no_local=rule.no_local,
                retain_as_published=rule.retain_as_published,
                retain_handling=rule.retain_handling,
                authorize=rule.authorize,
            )
        except PluginError as error:
            # The client may have gone meanwhile.
            self.counts["skipped"] += 1
            broker.log(
                "info", "auto_subscribe.skipped",
                client_id=client.client_id, rule=rule.filter, error=str(error),
            )  # fmt: skip
            return
        if code.failed:
            self.counts["refused"] += 1
            broker.log(
                "warning", "auto_subscribe.refused",
                client_id=client.client_id, rule=rule.filter, code=f"0x{code:02X}",
            )  # fmt: skip
        else:
            self.counts["subscribed"] += 1

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metric that counts subscriptions."""
        registry.counter(
            "auto_subscribe_subscriptions_total",
            "Subscriptions by rule, by result.",
            lambda: [({"result": result}, count) for result, count in self.counts.items()],
        )
