"""The `queues` plugin."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TypeVar

from hookmq.mqtt_api import EMPTY
from hookmq.plugin import (
    BrokerHandle,
    ClientInfo,
    Context,
    DeliveryEnd,
    Deny,
    DirectDeliveries,
    Handled,
    Journal,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    ReasonCode,
    SessionEvent,
    StoreError,
    Subscription,
    hookimpl,
)
from hookmq_toolkit import queue_streams
from hookmq_toolkit.queues import SERVICE, QueueError

from hookmq_queues.choice import QUIET
from hookmq_queues.client_consumers import ClientConsumers
from hookmq_queues.config import FirstUse, QueueConfig, QueuesConfig
from hookmq_queues.control import QueueControl
from hookmq_queues.delays import DelayLog, Delays, forget, restore
from hookmq_queues.followers import Followers
from hookmq_queues.group_state import state_key
from hookmq_queues.making import QueueMaker
from hookmq_queues.metrics import register
from hookmq_queues.outcomes import Outcomes, Token
from hookmq_queues.queue import Queue
from hookmq_queues.queue_types import make_queue
from hookmq_queues.registry import Registry
from hookmq_queues.settlement import VERBS
from hookmq_queues.settler import Settler
from hookmq_queues.storage import MessageLog
from hookmq_queues.subscribing import SubscriptionCheck
from hookmq_queues.topics import PREFIX, queue_of, rest_of

T = TypeVar("T")
Published = Message | Deny | Handled | None
"""The result of `on_publish`."""


class QueuesPlugin(Plugin):
    """A plugin that stores messages in queues. Each group delivers a message to one consumer at a time, until it is
    acknowledged.

    The queues are journals, so a publisher is acknowledged once the queue has committed the message.
    """

    Config = QueuesConfig
    config: QueuesConfig
    per_node = (
        "each node has its own queues, and its consumers get only what clients of that node publish"
    )

    def __init__(self, config: QueuesConfig, context: Context) -> None:
        super().__init__(config, context)
        self._maker = QueueMaker(
            config, Registry(config.path), self._make, self._opened, self._deleted
        )
        self.queues: Mapping[str, Queue] = self._maker.queues
        self._control: QueueControl | None = None
        self._broker: BrokerHandle
        self._deliveries: DirectDeliveries
        self._delayed: DelayLog | None = None
        self._subscriptions: SubscriptionCheck
        self._consumers = ClientConsumers(lambda: self.queues, self.id)
        self._quiet_until = -inf
        """The time from which failures to create a queue are logged again."""
        self._followers = Followers(lambda: self.queues)
        self._settler = Settler(lambda: self.queues, self._consumers.dispatchers_of)

    @property
    def notes(self) -> Sequence[str]:
        """Return a sentence for each queue that captures messages on ordinary topics. Also return one for each queue
        file that the configuration overrides.
        """
        captured = [
            f"queue {one.name} stores the messages of all clients on {', '.join(one.bindings)}"
            for one in self.config.queues
            if one.bindings
        ]
        known = {one.name.lower() for one in self.config.queues}
        registry = self._maker.registry
        try:
            stored = [one for one in registry.names() if one.lower() in known]
        except StoreError:
            stored = []  # the start reports it
        return captured + [
            f"queue {one} is configured, so its settings in {registry.folder}, with which it was made while the broker "
            "ran, are ignored"
            for one in stored
        ]

    # life cycle ------------------------------------------------------------------------------------------------------

    @hookimpl
    def provide_journal(self, broker: BrokerHandle) -> tuple[Journal, ...]:
        """Return one journal for each queue. Raises StoreError if a folder contains a queue that is not configured."""
        self._broker = broker
        self._subscriptions = SubscriptionCheck(broker)
        self._delayed = DelayLog(self.config.path, broker.runtime, self.config.sync, self.id)
        self._maker.load(broker)
        self._check_folders()
        self._control = QueueControl(self._maker, broker, self.id)
        self.offered_services = {SERVICE: self._control, queue_streams.SERVICE: self._followers}
        return self.journals

    @property
    def journals(self) -> tuple[MessageLog, ...]:
        """The logs of all queues, and the log that holds delayed messages."""
        logs = tuple(one.log for one in self.queues.values())
        return logs if self._delayed is None else (*logs, self._delayed)

    def _make(self, config: QueueConfig) -> Queue:
        made = make_queue(
            config,
            self.config.path,
            self._broker,
            self.config.sync,
            self.id,
            lambda name: self.queues[name],
        )
        assert self._delayed is not None
        if made.stored:
            made.intake.delays = Delays(config, self._delayed, self._broker, made)
        return made

    def _check_folders(self) -> None:
        path = self.config.path
        for folder in sorted(path.iterdir()) if path.is_dir() else ():
            queue = self.queues.get(folder.name)
            known = queue is not None and queue.stored
            if not known and any(folder.glob("*.segment")):
                raise StoreError(
                    f"{folder} contains a queue that is not configured: if it was renamed, restore its name; if it is no "
                    "longer needed, move the folder away"
                )

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Load the groups, and delete the state of groups that are no longer configured."""
        if self._control is None:
            raise PluginError(self.id, "a reload cannot add the plugin: restart the broker")
        self._deliveries = broker.deliveries(self._ended)
        for one in self.queues.values():
            one.open(self._deliveries)
        self._open_delayed(broker)
        self._control.restore()
        known = {
            state_key(one.config.name, group)
            for one in self.queues.values()
            if one.stored
            for group in one.dispatchers
        }
        cursor, more = "", True
        while more:
            page = broker.state.items("group/", cursor, 1000)
            cursor, more = page.cursor, bool(page.cursor)
            for key, _ in page.items:
                if key not in known:
                    broker.state.delete(key)
                    broker.log("warning", "queue.group_removed", key=key)

    def _open_delayed(self, broker: BrokerHandle) -> None:
        """Load the delayed messages."""
        assert self._delayed is not None
        found = {
            name: one.intake.delays
            for name, one in self.queues.items()
            if one.intake.delays is not None
        }
        for delays in found.values():
            delays.load()
        lost = restore(self._delayed, found.get)
        for message, _ in lost:
            broker.log("warning", "queue.delayed_dropped", topic=message.topic)
        for name in {queue_of(message.topic) for message, _ in lost}:
            forget(self._delayed, name, broker)
        for delays in found.values():
            delays.start()

        def committed() -> None:
            for one in self.queues.values():
                if one.intake.delays is not None:
                    one.intake.delays.wake()

        self._delayed.on_committed = committed
        self._delayed.owners = lambda: [
            one.intake.delays for one in self.queues.values() if one.intake.delays is not None
        ]

    @hookimpl
    async def on_shutdown(self, broker: BrokerHandle) -> None:
        """Store the groups' states, and close the queues."""
        self._consumers.close()
        if self._control is not None:
            self._control.close()
        for one in self.queues.values():
            one.close()
            if one.intake.delays is not None:
                one.intake.delays.close()
            for dispatcher in one.dispatchers.values():
                state = dispatcher.close()
                if not one.stored:
                    continue
                try:
                    await broker.state.put(state_key(one.config.name, dispatcher.name), state)
                except PluginError as error:
                    broker.log(
                        "error", "queue.state_not_stored",
                        queue=one.config.name, group=dispatcher.name, error=str(error),
                    )  # fmt: skip
        # Plugins that end later may still publish, which must not reach a closed file.
        broker.invalidate_routes()
        for log in self.journals:
            log.close()

    # publishing ------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Published | Awaitable[Published]:
        """Handle settlements. Refuse messages to unknown queues, unless the configuration lets clients create these.
        Messages to queues are never retained.
        """
        topic = message.topic
        if not topic.startswith(PREFIX):
            return None
        if (
            message.properties is EMPTY
            and topic[len(PREFIX) :] in self.queues
            and not message.retain
        ):
            return None  # most messages
        name = queue_of(topic)
        if name not in self.queues:
            first_use = self._maker.first_use(name)
            if first_use is not None and "/$" not in topic[len(PREFIX) :]:
                checked = partial(self._checked_message, client, message, broker)
                return self._made(name, first_use, ReasonCode.QUOTA_EXCEEDED, checked)
        return self._checked_message(client, message, broker)

    def _checked_message(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Published | Awaitable[Published]:
        topic = message.topic
        name = queue_of(topic)
        if name not in self.queues:
            return Deny(ReasonCode.TOPIC_NAME_INVALID, f"there is no queue {name!r}")
        if "/$" in topic:
            rest = rest_of(topic)
            if rest in VERBS:
                return self._settler.settle(client, name, rest, message, broker)
            why = "the levels of a queue's topic must not start with $"
            return Deny(ReasonCode.TOPIC_NAME_INVALID, why)
        if message.properties is not EMPTY and message.user_property:
            found = self.queues[name].intake.check(message)
            if isinstance(found, Deny):
                return found
            if found is not message:
                return found.replace(retain=False)
        return message.replace(retain=False) if message.retain else None

    async def _made(
        self,
        name: str,
        first_use: FirstUse,
        code: ReasonCode,
        then: Callable[[], T | Awaitable[T]],
    ) -> T | Deny:
        """Create a queue that a client uses for the first time. Return the result of `then`."""
        try:
            await self._maker.use(name, first_use)
        except QueueError as error:
            # Clients can repeat this as often as they like.
            now = self._broker.now()
            if now >= self._quiet_until:
                self._quiet_until = now + QUIET
                self._broker.log("warning", "queue.not_created", queue=name, error=str(error))
            return Deny(code, f"the queue {name} cannot be created: {error}")
        found = then()
        return await found if isinstance(found, Awaitable) else found

    # consuming -------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_subscribe(
        self, client: ClientInfo, subscription: Subscription
    ) -> Subscription | Deny | None | Awaitable[Subscription | Deny | None]:
        """Check a subscription to a queue. Create the queue if the configuration allows it."""
        filter = subscription.topic_filter
        if not (filter + "/").startswith(PREFIX):
            return None
        name = queue_of(filter)
        if name not in self.queues:
            first_use = self._maker.first_use(name)
            if first_use is not None:
                checked = partial(self._checked_subscription, client, subscription)
                return self._made(name, first_use, ReasonCode.QUOTA_EXCEEDED, checked)
        return self._checked_subscription(client, subscription)

    def _checked_subscription(
        self, client: ClientInfo, subscription: Subscription
    ) -> Subscription | Deny | None | Awaitable[Subscription | Deny | None]:
        filter = subscription.topic_filter
        name = queue_of(filter)
        queue = self.queues.get(name)
        if queue is None:
            why = f"there is no queue {name!r}"
            if name in ("", "+", "#"):
                why = "a subscription names one queue"
            return Deny(ReasonCode.TOPIC_FILTER_INVALID, why)
        return self._subscriptions.check(client, subscription, queue)

    @hookimpl
    async def on_ready(self, broker: BrokerHandle) -> None:
        """Find the clients that subscribed before this plugin was loaded."""
        self._consumers.find(broker)

    def _opened(self, queue: Queue) -> None:
        """Open a queue that was created while the broker is running."""
        queue.open(self._deliveries)
        delays = queue.intake.delays
        if delays is not None:
            delays.load()  # a queue that had this name may have left delayed messages in the log
            delays.start()
        self._consumers.find(self._broker, PREFIX + queue.config.name)
        self._followers.opened(queue)

    def _deleted(self, queue: Queue) -> None:
        """Forget a deleted queue's consumers and delayed messages."""
        if queue.intake.delays is not None:
            queue.intake.delays.clear()
            queue.intake.delays.close()
        self._consumers.remove(queue, self._broker)
        self._followers.deleted(queue)

    @hookimpl
    async def on_subscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """Add a consumer."""
        if subscription.topic_filter.startswith(PREFIX):
            self._consumers.subscribed(client, subscription, broker)

    @hookimpl
    async def on_unsubscribed(
        self, client: ClientInfo, subscription: Subscription, broker: BrokerHandle
    ) -> None:
        """Remove a consumer."""
        if subscription.topic_filter.startswith(PREFIX):
            self._consumers.unsubscribed(client, subscription, broker)

    @hookimpl
    async def on_session(
        self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle
    ) -> None:
        """Add the consumers of a client that has returned."""
        if event in (SessionEvent.RESUMED, SessionEvent.TAKEN_OVER):
            self._consumers.refresh(client.client_id, broker)

    @hookimpl
    async def on_disconnect(self, client: ClientInfo, broker: BrokerHandle) -> None:
        """Remove the consumers of a client that has disconnected."""
        if client.client_id in self._consumers:
            self._consumers.refresh(client.client_id, broker)

    def _ended(self, ended: list[tuple[object, DeliveryEnd]]) -> None:
        touched: dict[Outcomes, list[Token]] = {}
        for token, end in ended:
            assert isinstance(token, tuple)
            outcomes, consumer, offset, number = token
            acknowledged = touched.get(outcomes)
            if acknowledged is None:
                acknowledged = touched[outcomes] = []
            if end is DeliveryEnd.ACKNOWLEDGED:
                acknowledged.append(token)
            else:
                outcomes.ended(consumer, offset, number, end)
        for outcomes, tokens in touched.items():
            outcomes.acknowledged(tokens)
        for outcomes in touched:
            outcomes.store_buried()
            outcomes.schedule()
        for queue in {outcomes.queue: None for outcomes in touched}:
            if queue in self.queues:  # it may have been deleted
                self.queues[queue].ended()

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics defined in `hookmq_queues.metrics`."""
        register(registry, lambda: self.queues.values())
