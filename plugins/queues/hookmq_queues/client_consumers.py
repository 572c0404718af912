"""Manage each client's consumers."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from hookmq.plugin import BrokerHandle, ClientInfo, Subscription, SubscriptionSnapshot
from hookmq_toolkit.listing import visit_all

from hookmq_queues.consumers import Consumer, weight_in
from hookmq_queues.dispatch import Dispatcher
from hookmq_queues.queue import Queue
from hookmq_queues.topics import PREFIX, queue_of


class ClientConsumers:
    """Keeps each group's consumers in step with the clients' subscriptions. Each client's state stores the weights of
    its consumers under `plugin`, the plugin id.
    """

    def __init__(self, queues: Callable[[], Mapping[str, Queue]], plugin: str) -> None:
        self._queues = queues
        self._plugin = plugin
        self._dispatchers: dict[str, dict[tuple[str, str], Dispatcher]] = {}
        """For each client id, the dispatchers of its consumers."""
        self._changed: dict[str, None] = {}
        """The clients whose subscriptions have changed in this turn."""

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._dispatchers

    def dispatchers_of(self, client_id: str) -> Iterable[Dispatcher]:
        """Return the groups in which a client consumes."""
        return self._dispatchers.get(client_id, {}).values()

    def subscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """Add a consumer for a new subscription."""
        weights: dict[str, int] = client.state.setdefault(self._plugin, {})
        weights.pop(subscription.filter, None)
        weight = weight_in(subscription.user_property)
        if weight is not None:
            weights[subscription.filter] = weight
        self._refresh_soon(client.client_id, broker)

    def unsubscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """Remove the consumer of a subscription that ended."""
        client.state.get(self._plugin, {}).pop(subscription.filter, None)
        self._refresh_soon(client.client_id, broker)

    def find(self, broker: BrokerHandle, prefix: str = PREFIX) -> None:
        """Find all clients that have subscriptions whose filters begin with `prefix`."""
        found: dict[str, None] = {}

        def visit(one: SubscriptionSnapshot) -> None:
            if one.subscription.topic_filter.startswith(prefix):
                found[one.client_id] = None

        def refresh() -> None:
            for client_id in found:
                self.refresh(client_id, broker)

        fetch = partial(broker.subscriptions, limit=1000)
        visit_all(broker.runtime, fetch, visit, refresh)

    def close(self) -> None:
        """Stop adding consumers."""
        self._changed.clear()

    def _refresh_soon(self, client_id: str, broker: BrokerHandle) -> None:
        """Call `refresh` in the next turn. It checks all of the client's filters, so one call is enough for all filters
        in a packet.
        """
        if not self._changed:
            broker.runtime.call_soon(partial(self._refresh_changed, broker))
        self._changed[client_id] = None

    def _refresh_changed(self, broker: BrokerHandle) -> None:
        changed, self._changed = self._changed, {}
        for client_id in changed:
            self.refresh(client_id, broker)

    def refresh(self, client_id: str, broker: BrokerHandle) -> None:
        """Bring a client's consumers in line with its subscriptions. Events may be late or lost, but the subscriptions
        are exact.
        """
        found: dict[tuple[str, str], Dispatcher] = {}
        client = broker.client(client_id)
        cursor, more = "", client is not None
        while client is not None and more:
            page = broker.subscriptions(cursor, 1000, client_id=client_id)
            cursor, more = page.cursor, bool(page.cursor)
            for one in page.items:
                made = self._consumer(client, one.subscription)
                if one.client_id == client_id and made is not None:
                    consumer, dispatcher = made
                    found[consumer.key] = dispatcher
                    dispatcher.add(consumer)
        for key, dispatcher in self._dispatchers.pop(client_id, {}).items():
            if found.get(key) is not dispatcher:
                dispatcher.remove(key)
        if found:
            self._dispatchers[client_id] = found

    def remove(self, queue: Queue, broker: BrokerHandle) -> None:
        """Remove a deleted queue's consumers."""
        gone = set(queue.dispatchers.values())
        for client_id, found in list(self._dispatchers.items()):
            if not gone.isdisjoint(found.values()):
                self.refresh(client_id, broker)

    def _consumer(
        self, client: ClientInfo, subscription: Subscription
    ) -> tuple[Consumer, Dispatcher] | None:
        filter = subscription.topic_filter
        if not filter.startswith(PREFIX) or not subscription.qos:
            return None  # with QoS 0, it was made without this plugin, and cannot settle a message
        queue = self._queues().get(queue_of(filter))
        if queue is None:
            return None
        # A durable session may return to a group that was deleted meanwhile.
        dispatcher = queue.group_use.use(subscription.share or queue.config.first_group)
        if dispatcher is None:
            return None
        client_id = client.client_id
        weights: dict[str, int] = client.state.get(self._plugin, {})
        weight = weights.get(subscription.filter) or queue.config.weight_of(client_id)
        consumer = Consumer(
            client_id, subscription.filter, filter, client.version >= 5, weight, client
        )
        return consumer, dispatcher
