"""Call observers after an event, without making the broker wait.

Each observing plugin has one queue with one consumer (`observer_queue`), so it sees events one at a time and in order.
Observers never raise exceptions into the broker. Without observers, this module does nothing.
"""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, NamedTuple

from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.observer_drain import drain
from hookmq.hooks.observer_lane import Lane, TopicMemo
from hookmq.hooks.observer_queue import ObserverQueue
from hookmq.model.client import ClientInfo
from hookmq.model.message import Message
from hookmq.model.runtime import Runtime
from hookmq.model.subscription import Subscription

Published = tuple[ClientInfo | None, Message, int]
"""An event of `on_published`."""


class ObservedHook(NamedTuple):
    """One plugin's implementation of one observer hook, and its lane's size limit."""

    instance: PluginInstance
    call: HookImplementation
    limit: int


_Route = tuple[ObserverQueue, Lane, TopicMemo | None]


class Observers:
    """All observers of one set of plugins."""

    def __init__(self) -> None:
        self.queues: dict[str, ObserverQueue] = {}
        self._watches: tuple[tuple[ObservedHook, ObserverQueue, Lane], ...] = ()
        self._routes: dict[str | None, dict[str, tuple[_Route, ...]]] = {}
        self._named: frozenset[str] = frozenset()
        self._runtime: Runtime | None = None

    def bind(self, runtime: Runtime, watches: Iterable[ObservedHook]) -> None:
        """Set the observers. Plugins that already have a queue keep it."""
        self._runtime = runtime
        self.queues = {}
        made = []
        for watch in watches:
            kept = watch.instance.kept
            if kept.queue is None:
                kept.queue = ObserverQueue(watch.instance.id)
            queue: ObserverQueue = kept.queue
            self.queues[watch.instance.id] = queue
            made.append((watch, queue, queue.lane(watch.call, watch.limit)))
        self._watches = tuple(made)
        self._routes = {}
        self._named = frozenset(
            name for watch in self._watches for name in watch[0].instance.entry.listeners or ()
        )
        for queue in self.queues.values():
            queue.bind(runtime)

    def notify(self, hook: str, listener: str, *args: Any) -> None:
        """Queue an event for observers of `hook` that serve `listener`. `args` are the hook's arguments without
        `broker`. Never blocks."""
        for queue, lane, wanted in self._routes_of(listener).get(hook, ()):
            if wanted is None or wanted[_about(hook, args)]:
                queue.put(lane, args)

    def notify_published(self, events: list[Published]) -> None:
        """Queue events for observers of `on_published`. Each event is (publisher, message, number of matching
        subscriptions). The list must not change afterwards.
        """
        if not self._named:
            self._notify_published("", events)
            return
        for listener, group in groupby(events, _listener):
            self._notify_published(listener, list(group))

    def _notify_published(self, listener: str, events: list[Published]) -> None:
        for queue, lane, wanted in self._routes_of(listener).get("on_published", ()):
            if wanted is None:
                queue.put_all(lane, events)
            else:
                queue.put_all(lane, [args for args in events if wanted[args[1].topic]])

    def wants(self, hook: str, listener: str, topic: str) -> bool:
        """Return whether any observer of `hook` serves `listener` and wants events about `topic`."""
        return any(
            wanted is None or wanted[topic]
            for _, _, wanted in self._routes_of(listener).get(hook, ())
        )

    def drain(self, done: Callable[[int], None], deadline: float) -> None:
        """Call `done` with 0 once no events are waiting. After `deadline` seconds, drop the remaining events and call
        `done` with their number.

        Does not wait for an open circuit.
        """
        drain(self.queues.values(), self._runtime, done, deadline)

    def _routes_of(self, listener: str) -> dict[str, tuple[_Route, ...]]:
        key = listener if listener in self._named else None
        routes = self._routes.get(key)
        if routes is None:
            routes = self._routes[key] = self._route(key)
        return routes

    def _route(self, listener: str | None) -> dict[str, tuple[_Route, ...]]:
        routes: dict[str, tuple[_Route, ...]] = {}
        for watch, queue, lane in self._watches:
            listeners = watch.instance.entry.listeners
            if listeners is None or listener in listeners:
                hook, topic = watch.call.hook, watch.call.topic
                wanted = TopicMemo(topic) if topic is not None else None
                routes[hook] = (*routes.get(hook, ()), (queue, lane, wanted))
        return routes


def _listener(event: Published) -> str:
    client = event[0]
    return client.listener if client is not None else ""


def _about(hook: str, args: tuple[Any, ...]) -> str:
    """Return an event's topic, or its filter if it is about a subscription."""
    if hook == "on_retained":
        return str(args[0])
    if hook == "on_denied":
        return str(args[2])
    value = args[1]
    if isinstance(value, Subscription):
        return value.topic_filter
    return str(getattr(value, "topic", ""))
