"""What happens in the broker, hook by hook, as events."""

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

from hookmq_webhook import catalog
from hookmq_webhook.events import Event


def published(message: Message, client: ClientInfo | None) -> tuple[Event, ...]:
    """The events that an accepted message is."""
    event = catalog.published(message, client)
    if message.origin != "will":
        return (event,)
    return (event, catalog.will_published(message.received_at, message))


class Observing(Plugin):
    """Observers: on the loop, one after another."""

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Something happened that nobody waits for."""

    @hookimpl
    async def on_session(
        self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle
    ) -> None:
        """client.connected and session.*"""
        for one in catalog.session(broker.time(), client, event):
            self.tell(one)

    @hookimpl
    async def on_disconnect(
        self, client: ClientInfo, reason: DisconnectReason, broker: BrokerHandle
    ) -> None:
        """client.disconnected"""
        self.tell(catalog.disconnected(broker.time(), client, reason))

    @hookimpl
    async def on_auth_failed(
        self, client: ClientInfo, code: ReasonCode, reason: str, broker: BrokerHandle
    ) -> None:
        """client.auth_failed"""
        self.tell(catalog.auth_failed(broker.time(), client, code, reason))

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
        """client.denied"""
        if client is not None:
            self.tell(catalog.denied(broker.time(), client, action, topic, code, rule))

    @hookimpl
    async def on_subscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """subscription.created"""
        self.tell(catalog.subscribed(broker.time(), client, subscription))

    @hookimpl
    async def on_unsubscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """subscription.removed"""
        self.tell(catalog.unsubscribed(broker.time(), client, subscription))

    @hookimpl
    async def on_published(self, client: ClientInfo | None, message: Message) -> None:
        """message.published and will.published, unless the journal tells them."""
        for one in published(message, client):
            self.tell(one)

    @hookimpl
    async def on_delivered(
        self, client: ClientInfo, message: Message, qos: int, broker: BrokerHandle
    ) -> None:
        """message.delivered and message.acked"""
        for one in catalog.delivered(broker.time(), client, message, qos):
            self.tell(one)

    @hookimpl
    async def on_dropped(
        self, client: ClientInfo | None, message: Message, why: Dropped, broker: BrokerHandle
    ) -> None:
        """message.dropped"""
        self.tell(catalog.dropped(broker.time(), client, message, why))

    @hookimpl
    async def on_retained(self, topic: str, message: Message | None, broker: BrokerHandle) -> None:
        """message.retained and message.cleared"""
        self.tell(catalog.retained(broker.time(), topic, message))

    @hookimpl
    async def on_event(
        self,
        client: ClientInfo | None,
        event: str,
        fields: Mapping[str, object],
        plugin: str,
        broker: BrokerHandle,
    ) -> None:
        """What other plugins tell."""
        self.tell(catalog.told(broker.time(), client, event, fields, plugin))
