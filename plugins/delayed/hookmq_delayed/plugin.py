"""Implement the `delayed` plugin: ``$delayed/SECONDS/TOPIC`` publishes to TOPIC after a delay."""

from collections.abc import Awaitable
from dataclasses import dataclass

from hookmq.plugin import (
    EMPTY,
    Action,
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Context,
    Deny,
    Handled,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    ReasonCode,
    hookimpl,
    setting,
)

from hookmq_delayed.record import Record, timer_key
from hookmq_delayed.request import PREFIX, Cancel, InvalidRequest, parse

ID_PROPERTY = "delayed-id"
"""The user property that gives a message an id, with which its client can cancel or replace it."""
MAX_DELAY = 4_294_967
"""The default maximum delay in seconds: 49 days, as in EMQX."""
Verdict = Handled | Deny


@dataclass(frozen=True)
class DelayedConfig:
    """Settings of `use: delayed`."""

    max_delay: int = setting(MAX_DELAY, "maximum delay in seconds", minimum=1)
    max_messages: int = setting(
        10_000, "maximum number of waiting messages; further ones are refused", minimum=1
    )

    def __post_init__(self) -> None:
        if self.max_delay < 1 or self.max_messages < 1:
            raise ConfigError("max_delay and max_messages: expected at least 1")


class DelayedPlugin(Plugin):
    """Stores messages and publishes them when they are due.

    A message is acknowledged once it is committed. It is stored with a timer of the broker, so it
    survives a restart and is published at least once.
    """

    Config = DelayedConfig
    config: DelayedConfig

    def __init__(self, config: DelayedConfig, context: Context) -> None:
        super().__init__(config, context)
        self.counts = {"accepted": 0, "published": 0, "cancelled": 0, "refused": 0}

    @hookimpl
    def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Verdict | Awaitable[Verdict] | None:
        """Store a message to ``$delayed/``, or cancel one."""
        mount = client.scope.mount_point if client is not None else ""
        if not message.topic.startswith(mount + PREFIX):
            return None
        return self._keep(client, mount, Action.PUBLISH, message, broker)

    @hookimpl
    def on_will(
        self, client: ClientInfo, message: Message, broker: BrokerHandle
    ) -> Verdict | Awaitable[Verdict] | None:
        """Store a will with a topic below ``$delayed/``."""
        mount = client.scope.mount_point
        if not message.topic.startswith(mount + PREFIX):
            return None
        return self._keep(client, mount, Action.WILL, message, broker)

    async def _keep(
        self,
        client: ClientInfo | None,
        mount: str,
        action: Action,
        message: Message,
        broker: BrokerHandle,
    ) -> Verdict:
        client_id = client.client_id if client is not None else message.origin
        user = (client.identity or client.username or "") if client is not None else ""
        try:
            request = parse(message.topic.removeprefix(mount))
        except InvalidRequest as error:
            return self._refuse(ReasonCode.TOPIC_NAME_INVALID, str(error))
        if isinstance(request, Cancel):
            self.counts["cancelled"] += await broker.cancel_timer(
                timer_key(client_id, user, request.id)
            )
            return Handled()
        if request.seconds > self.config.max_delay:
            why = f"the delay exceeds {self.config.max_delay} seconds"
            return self._refuse(ReasonCode.QUOTA_EXCEEDED, why)
        target = mount + request.topic
        if client is not None:
            asked = await broker.authorize(client, action, target, message)
            if isinstance(asked, Deny):
                self.counts["refused"] += 1
                return asked
        id = next((text for name, text in message.user_property if name == ID_PROPERTY), "")
        due = broker.time() + request.seconds
        record = Record(
            target, message.payload, message.qos, message.retain, message.properties,
            client_id, id, due,
        )  # fmt: skip
        key = timer_key(client_id, user, id) if id else f"auto/{broker.runtime.token(16)}"
        if broker.state.keys >= self.config.max_messages:
            return self._refuse(ReasonCode.QUOTA_EXCEEDED, "too many delayed messages")
        try:
            # Not awaited: the acknowledgement waits for the commit in any case.
            broker.set_timer(key, due, record.encode())
        except PluginError as error:
            return self._refuse(ReasonCode.QUOTA_EXCEEDED, f"no room: {error}")
        self.counts["accepted"] += 1
        return Handled()

    def _refuse(self, code: ReasonCode, reason: str) -> Deny:
        self.counts["refused"] += 1
        return Deny(code, reason)

    @hookimpl
    async def on_timer(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        """Publish a message that is due."""
        try:
            record = Record.decode(data)
        except ValueError as error:
            broker.log("error", "delayed.unreadable", key=key, error=str(error))
            return
        try:
            await broker.publish_and_wait(
                record.topic, record.payload, record.qos, record.retain, record.properties or EMPTY
            )
        except PluginError as error:
            # Refused by a plugin: another attempt would be refused, too.
            self.counts["refused"] += 1
            broker.log(
                "warning", "delayed.refused",
                topic=record.topic, client_id=record.client_id, error=str(error),
            )  # fmt: skip
            return
        self.counts["published"] += 1

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metric that counts messages by result."""
        registry.counter(
            "delayed_messages_total",
            "Delayed messages, by what happened to them.",
            lambda: [({"result": result}, count) for result, count in self.counts.items()],
        )
