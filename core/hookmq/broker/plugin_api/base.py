"""The common base of all parts of a plugin's handle: the broker's state, the plugin's id and the rules for threads."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from hookmq.broker.state import BrokerState
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.topics import validate_topic


class HandleBase:
    """The broker and one plugin's id. In other threads, calls without a result are passed to the event loop, and calls
    that need the broker's state raise PluginError."""

    __slots__ = ("_plugin", "_state")

    def __init__(self, state: BrokerState, instance: PluginInstance) -> None:
        self._state = state
        self._plugin = instance.id

    def _only_on_loop(self, name: str) -> None:
        """Raise PluginError if this is not the event loop's thread."""
        if not self._state.runtime.on_loop():
            raise PluginError(
                self._plugin,
                f"broker.{name} is for the event loop, and this is a thread: make the hook `async def`",
            )

    def _on_loop(self, call: Callable[[], None]) -> None:
        """Run `call` now, or pass it to the event loop from another thread. Keep the caller's recursion depth."""
        runtime = self._state.runtime
        if runtime.on_loop():
            call()
            return
        handed = partial(self._state.guarded, partial(at_depth, DEPTH.get(), call))
        try:
            runtime.call_threadsafe(handed)
        except RuntimeError as error:
            raise PluginError(self._plugin, "the broker has ended") from error

    def _check_topic(self, topic: str, what: str) -> None:
        try:
            validate_topic(topic, self._state.settings.broker.max_topic_levels)
        except ProtocolError as error:
            raise PluginError(self._plugin, f"cannot {what}: {error.detail}") from error

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log an event with the plugin's id."""
        self._state.runtime.log(level, event, plugin=self._plugin, **fields)

    def emit(self, event: str, client: ClientInfo | None = None, /, **fields: object) -> None:
        """Notify the observers of `on_event`. Raises PluginError if the name has no dot."""
        if "." not in event.strip("."):
            raise PluginError(self._plugin, f"invalid event name {event!r}: it must contain a dot")
        if "on_event" in self._state.observed:
            self._on_loop(partial(self._emit, event, client, MappingProxyType(fields)))

    def _emit(self, event: str, client: ClientInfo | None, fields: Mapping[str, object]) -> None:
        state = self._state
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            # This limit ends loops of observers that respond to each other's events.
            state.runtime.log("warning", "event.too_deep", plugin=self._plugin, event=event)
            return
        at_depth(depth, state.observe, "on_event", client, event, fields, self._plugin)
