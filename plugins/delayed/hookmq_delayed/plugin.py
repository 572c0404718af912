"""Implement the `delayed` plugin: ``$delayed/SECONDS/TOPIC`` publishes to TOPIC after a delay."""

from collections import Counter
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
    Drop,
    Handled,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    PublishRefused,
    ReasonCode,
    hookimpl,
    setting,
)

from hookmq_delayed.record import Record, id_key, owner_key
from hookmq_delayed.request import PREFIX, Cancel, InvalidRequest, parse

ID_PROPERTY = "delayed-id"
"""The user property that gives a message an id, so that its client can cancel or replace it."""
MAX_DELAY = 4_294_967
"""The default maximum delay in seconds: 49 days, as in EMQX."""
RETRY = 10.0
"""Seconds until a message that was refused because there was no room is published again."""
Verdict = Handled | Deny | Drop


@dataclass(frozen=True)
class DelayedConfig:
    """Settings of `use: delayed`."""

    max_delay: int = setting(MAX_DELAY, "maximum delay in seconds", minimum=1)
    max_messages: int = setting(
        10_000, "maximum number of waiting messages; further ones are refused", minimum=1
    )
    max_messages_per_client: int = setting(
        1000, "maximum number of waiting messages of one client", minimum=1
    )

    def __post_init__(self) -> None:
        if min(self.max_delay, self.max_messages, self.max_messages_per_client) < 1:
            raise ConfigError(
                "max_delay, max_messages and max_messages_per_client: expected at least 1"
            )


class DelayedPlugin(Plugin):
    """A plugin that stores messages and publishes them when they are due.

    A message is acknowledged once it is committed. It is stored with one of the broker's timers, so it survives a
    restart and is published at least once. The plugin state also contains the timers' keys, which identify the owners
    of the waiting messages.

    Other plugins decide on a message when it arrives, so that the client learns of a refusal. They are not asked again
    when the message is published.
    """

    Config = DelayedConfig
    config: DelayedConfig
    per_node = "only the node that received a message can publish, cancel or replace it"

    def __init__(self, config: DelayedConfig, context: Context) -> None:
        super().__init__(config, context)
        self.counts = {"accepted": 0, "published": 0, "cancelled": 0, "refused": 0, "postponed": 0}
        self._waiting: Counter[str] = Counter()
        """Number of waiting messages by owner."""
        self._publishing: set[str] = set()
        """Keys of the messages that are being published, unless a later message has replaced them."""

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Count the stored messages."""
        cursor = ""
        while True:
            page = broker.state.items(cursor=cursor, limit=1000)
            self._waiting.update(key.partition("/")[0] for key, _ in page.items)
            cursor = page.cursor
            if not cursor:
                return

    @hookimpl
    def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Verdict | Awaitable[Verdict] | None:
        """Store a message published to ``$delayed/``, or cancel a stored one."""
        mount = client.scope.mount_point if client is not None else ""
        if not message.topic.startswith(mount + PREFIX):
            return None
        return self._keep(client, mount, Action.PUBLISH, message, broker)

    @hookimpl
    def on_will(
        self, client: ClientInfo, message: Message, broker: BrokerHandle
    ) -> Verdict | Awaitable[Verdict] | None:
        """Store a will whose topic is below ``$delayed/``."""
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
        owner = owner_key(client_id, user)
        if isinstance(request, Cancel):
            key = f"{owner}/{id_key(request.id)}"
            self._forget(key, broker)
            self.counts["cancelled"] += await broker.cancel_timer(key)
            return Handled()
        if request.seconds > self.config.max_delay:
            why = f"the delay exceeds {self.config.max_delay} seconds"
            return self._refuse(ReasonCode.QUOTA_EXCEEDED, why)
        wanted = message.replace(topic=mount + request.topic)
        try:
            decided = await broker.transform(client, wanted, action)
        except PluginError as error:
            return self._refuse(ReasonCode.TOPIC_NAME_INVALID, error.message)
        if not isinstance(decided, Message):
            self.counts["refused"] += 1
            return decided
        id = next((text for name, text in message.user_property if name == ID_PROPERTY), "")
        due = broker.time() + request.seconds
        record = Record(
            decided.topic, decided.payload, decided.qos, decided.retain, decided.properties,
            client_id, id, due,
        )  # fmt: skip
        key = f"{owner}/{id_key(id) if id else broker.runtime.token(16)}"
        return self._store(key, due, record, broker)

    def _store(self, key: str, due: float, record: Record, broker: BrokerHandle) -> Verdict:
        """Set a timer for a message. If another message has the same key, replace it."""
        owner = key.partition("/")[0]
        new = broker.state.get(key) is None
        if new and self._waiting[owner] >= self.config.max_messages_per_client:
            most = self.config.max_messages_per_client
            why = f"this client has {most} delayed messages already"
            return self._refuse(ReasonCode.QUOTA_EXCEEDED, why)
        if new and self._waiting.total() >= self.config.max_messages:
            return self._refuse(ReasonCode.QUOTA_EXCEEDED, "too many delayed messages")
        try:
            # Not awaited: the acknowledgement waits for the commit in any case.
            broker.state.put(key, b"")
            broker.set_timer(key, due, record.encode())
        except PluginError as error:
            if new:
                broker.state.delete(key)
            return self._refuse(ReasonCode.QUOTA_EXCEEDED, f"no room: {error}")
        self._waiting[owner] += new
        self._publishing.discard(key)
        self.counts["accepted"] += 1
        return Handled()

    def _forget(self, key: str, broker: BrokerHandle) -> None:
        """Remove a message from the plugin state and from the counts, if it is still waiting."""
        if broker.state.get(key) is None:
            return
        broker.state.delete(key)
        owner = key.partition("/")[0]
        self._waiting[owner] -= 1
        if self._waiting[owner] <= 0:
            del self._waiting[owner]

    def _refuse(self, code: ReasonCode, reason: str) -> Deny:
        self.counts["refused"] += 1
        return Deny(code, reason)

    @hookimpl
    async def on_timer(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        """Publish a message that is due."""
        self._publishing.add(key)
        try:
            await self._publish(key, data, broker)
        except BaseException:
            self._publishing.discard(key)
            raise
        if key in self._publishing:  # else a message with the same key was accepted meanwhile
            self._publishing.discard(key)
            self._forget(key, broker)  # in the turn in which the broker deletes the timer

    async def _publish(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        try:
            record = Record.decode(data)
        except ValueError as error:
            broker.log("error", "delayed.unreadable", key=key, error=str(error))
            return
        try:
            await broker.publish_and_wait(
                record.topic, record.payload, record.qos, record.retain, record.properties or EMPTY,
                transformed=True,
            )  # fmt: skip
        except PluginError as error:
            if isinstance(error, PublishRefused) and error.code == ReasonCode.QUOTA_EXCEEDED:
                self._try_later(key, data, record, broker)
                return
            # Another attempt would be refused, too.
            self.counts["refused"] += 1
            broker.log(
                "warning", "delayed.refused",
                topic=record.topic, client_id=record.client_id, error=str(error),
            )  # fmt: skip
            return
        self.counts["published"] += 1

    def _try_later(self, key: str, data: bytes, record: Record, broker: BrokerHandle) -> None:
        """Set a timer to try publishing a message again, because the broker or a queue has no room for it now."""
        self.counts["postponed"] += 1
        broker.log(
            "warning", "delayed.postponed",
            topic=record.topic, client_id=record.client_id, seconds=RETRY,
        )  # fmt: skip
        broker.set_timer(key, broker.time() + RETRY, data)
        self._publishing.discard(key)

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metric that counts messages by what happened to them."""
        registry.counter(
            "delayed_messages_total",
            "Delayed messages, by what happened to them.",
            lambda: [({"result": result}, count) for result, count in self.counts.items()],
        )
