"""Implement the `presence` plugin: one retained message per client shows whether that client is connected."""

import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from hookmq.plugin import (
    EMPTY,
    Action,
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Deny,
    DisconnectReason,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    Properties,
    ReasonCode,
    Seconds,
    SessionEvent,
    hookimpl,
    setting,
)

_CLIENT_ID: Final = "%c"


@dataclass(frozen=True)
class PresenceConfig:
    """Settings of `use: presence`."""

    topic: str = setting(
        "presence/%c", "topic of a client's status; %c is its client id", nonempty=True
    )
    durable: bool = setting(
        False, "whether the store keeps the status, so that it survives a restart of the broker"
    )
    offline_expiry: Seconds = setting(
        0.0, "how long an offline status is kept; 0 means forever", minimum=0, maximum=0xFFFFFFFF
    )
    details: bool = setting(False, "whether to publish user name, listener and address as well")

    def __post_init__(self) -> None:
        levels = self.topic.split("/")
        if levels.count(_CLIENT_ID) != 1 or self.topic.count("%") != 1:
            raise ConfigError(f"topic: expected one level %c, found {self.topic!r}")
        if any(sign in self.topic for sign in "+#\0") or self.topic.startswith(("$SYS", "$share")):
            raise ConfigError(f"topic: {self.topic!r} is not a topic that can be published to")


def encoded(client_id: str) -> str:
    """Return a client id as one topic level. Reserved characters are percent-encoded (RFC 3986, section 2.1)."""
    return quote(client_id, safe=" !$&'()*,:;=@[]|~")


class PresencePlugin(Plugin):
    """A plugin that publishes ``online`` and ``offline``, and prevents clients from publishing to these topics.

    The plugin publishes the status, not the client. It is therefore correct even after a lost connection, a takeover or
    a will.
    """

    Config = PresenceConfig
    config: PresenceConfig
    per_node = "each node knows only its own clients, and can report a client as offline that is on another node"
    _changes = 0
    _failures = 0

    @hookimpl
    async def on_ready(self, broker: BrokerHandle) -> None:
        """Correct the stored statuses. Clients that were connected before a restart are now offline."""
        if not self.config.durable:
            return
        cursor = ""
        while True:
            page = broker.retained(self._filter, cursor)
            for message in page.items:
                self._correct(message, broker)
            cursor = page.cursor
            if not cursor:
                return

    def _correct(self, message: Message, broker: BrokerHandle) -> None:
        try:
            status = json.loads(message.payload)
            client_id, online = status["client_id"], status["status"] == "online"
        except (ValueError, TypeError, KeyError):
            return  # published by somebody else, before this plugin was configured
        if online and isinstance(client_id, str) and broker.client(client_id) is None:
            self._publish(client_id, None, broker, {"status": "offline", "reason": "restart"})

    @property
    def _filter(self) -> str:
        return self.config.topic.replace(_CLIENT_ID, "+")

    @hookimpl
    async def on_session(
        self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle
    ) -> None:
        """Publish ``online`` when a client has connected."""
        if event in (SessionEvent.CREATED, SessionEvent.RESUMED):
            self._publish(client.client_id, client, broker, {"status": "online"})

    @hookimpl
    async def on_disconnect(
        self, client: ClientInfo, reason: DisconnectReason, broker: BrokerHandle
    ) -> None:
        """Publish ``offline``, unless the client has already reconnected."""
        if broker.client(client.client_id) is None:
            status: dict[str, object] = {
                "status": "offline",
                "reason": reason.by.value,
                "code": int(reason.code),
            }
            self._publish(client.client_id, client, broker, status)

    def _publish(
        self,
        client_id: str,
        client: ClientInfo | None,
        broker: BrokerHandle,
        status: dict[str, object],
    ) -> None:
        status |= {"client_id": client_id, "at": round(broker.time(), 3)}
        if self.config.details and client is not None:
            status |= {
                "username": client.username,
                "listener": client.listener,
                "address": client.peer.host,
            }
        topic = self.config.topic.replace(_CLIENT_ID, encoded(client_id))
        payload = json.dumps(status, ensure_ascii=False).encode()
        expiry = int(self.config.offline_expiry) if status["status"] == "offline" else 0
        properties = Properties(message_expiry_interval=expiry) if expiry else EMPTY
        try:
            broker.publish(topic, payload, 1, True, properties, volatile=not self.config.durable)
        except PluginError:
            # The topic of a very long client id is too long. Such clients must not stop the status of others.
            self._failures += 1
            return
        self._changes += 1

    @hookimpl
    def authorize(self, action: Action, topic: str) -> Deny | None:
        """Deny clients' messages and wills on this plugin's topics. Other plugins decide on other topics."""
        if action is not Action.SUBSCRIBE and self.matches(self._filter, topic):
            return Deny(ReasonCode.NOT_AUTHORIZED, "only the broker publishes this status")
        return None

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metric that counts published status changes."""
        registry.counter(
            "presence_changes_total",
            "Published changes of a client's status.",
            lambda: self._changes,
        )
        registry.counter(
            "presence_failures_total",
            "Changes not published because the client id is too long for a topic.",
            lambda: self._failures,
        )
