"""Observe hooks, and create events from their arguments."""

from abc import abstractmethod
from collections.abc import Mapping

from hookmq.plugin import (
    Action,
    BrokerHandle,
    ClientInfo,
    DisconnectReason,
    Dropped,
    Message,
    Plugin,
    ReasonCode,
    SessionEvent,
    Subscription,
    hookimpl,
)

from hookmq_webhook import hook_events
from hookmq_webhook.events import Event


def published(message: Message, client: ClientInfo | None) -> tuple[Event, ...]:
    """Return the events for an accepted message."""
    event = hook_events.published(message, client)
    if message.origin != "will":
        return (event,)
    return (event, hook_events.will_published(message.received_at, message))


class Observing(Plugin):
    """The plugin's observers. They run on the event loop, one after another."""

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Add an event to the queue, if the filters select it."""

    @hookimpl
    async def on_session(
        self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle
    ) -> None:
        """Send client.connected and the session.* event."""
        for one in hook_events.session(broker.time(), client, event):
            self.tell(one)

    @hookimpl
    async def on_disconnect(
        self, client: ClientInfo, reason: DisconnectReason, broker: BrokerHandle
    ) -> None:
        """Send client.disconnected."""
        self.tell(hook_events.disconnected(broker.time(), client, reason))

    @hookimpl
    async def on_auth_failed(
        self, client: ClientInfo, code: ReasonCode, reason: str, broker: BrokerHandle
    ) -> None:
        """Send client.auth_failed."""
        self.tell(hook_events.auth_failed(broker.time(), client, code, reason))

    @hookimpl
    async def on_denied(
        self,
        client: ClientInfo | None,
        action: Action,
        topic: str,
        code: ReasonCode,
        rule: str,
        broker: BrokerHandle,
    ) -> None:
        """Send client.denied."""
        if client is not None:
            self.tell(hook_events.denied(broker.time(), client, action, topic, code, rule))

    @hookimpl
    async def on_subscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """Send subscription.created."""
        self.tell(hook_events.subscribed(broker.time(), client, subscription))

    @hookimpl
    async def on_unsubscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """Send subscription.removed."""
        self.tell(hook_events.unsubscribed(broker.time(), client, subscription))

    @hookimpl
    async def on_published(self, client: ClientInfo | None, message: Message) -> None:
        """Send message.published and will.published, unless the journal provides them."""
        for one in published(message, client):
            self.tell(one)

    @hookimpl
    async def on_delivered(
        self, client: ClientInfo, message: Message, qos: int, broker: BrokerHandle
    ) -> None:
        """Send message.delivered and message.acked."""
        for one in hook_events.delivered(broker.time(), client, message, qos):
            self.tell(one)

    @hookimpl
    async def on_dropped(
        self, client: ClientInfo | None, message: Message, why: Dropped, broker: BrokerHandle
    ) -> None:
        """Send message.dropped."""
        self.tell(hook_events.dropped(broker.time(), client, message, why))

    @hookimpl
    async def on_retained(self, topic: str, message: Message | None, broker: BrokerHandle) -> None:
        """Send message.retained and message.cleared."""
        self.tell(hook_events.retained(broker.time(), topic, message))

    @hookimpl
    async def on_event(
        self,
        client: ClientInfo | None,
        event: str,
        fields: Mapping[str, object],
        plugin: str,
        broker: BrokerHandle,
    ) -> None:
        """Send another plugin's event."""
        self.tell(hook_events.told(broker.time(), client, event, fields, plugin))
