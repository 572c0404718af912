"""The base class of all parts of a plugin's handle. It holds the broker's state and the plugin's id, and checks that
calls come from the right thread.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from hookmq.broker.plugin_mailbox import PluginMailbox
from hookmq.broker.state import BrokerState
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError
from hookmq.model.runtime import Promise
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.topics import parse_share, validate_filter, validate_topic
from hookmq.session.session import Session

OWN: Final = "broker."
"""Prefix of the events that report a plugin's calls."""


class HandleBase:
    """The broker and one plugin's id.

    In other threads, calls without a result are passed to the event loop. Calls that need the broker's state raise
    PluginError.
    """

    __slots__ = ("_instance", "_plugin", "_state")

    def __init__(self, state: BrokerState, instance: PluginInstance) -> None:
        self._state = state
        self._instance = instance
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

    def _in_turn(self, call: Callable[[], None]) -> None:
        """Run `call` in a later turn, one level deeper, so that nothing changes while a hook runs. Calls run in order.
        Raises PluginError if plugins call each other in a loop.
        """
        state = self._state
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            raise PluginError(self._plugin, "plugins call the broker in a loop")

        def begin() -> None:
            at_depth(depth, call)
            state.writes.schedule()

        state.runtime.call_soon(partial(state.guarded, begin))

    def _result_of(self, call: Callable[[Promise], None]) -> Promise:
        """Run `call` in a later turn, and return the promise whose result it sets. If `call` raises an error, awaiting
        the promise raises the same error.
        """
        result = self._promise()
        self._in_turn(partial(self._settling, result, partial(call, result)))
        return result

    def _promise(self) -> Promise:
        """Return a promise for the plugin. It fails if the store fails or the broker ends."""
        return self._state.promises.make(self._plugin)

    def _settling(self, result: Promise, call: Callable[[], None]) -> None:
        """Run `call`, which sets `result` now or later. If `call` raises an error, awaiting
        `result` raises it too.
        """
        try:
            call()
        except PluginError as error:
            self._fail(result, error)
        except Exception as error:
            self._broke(result, error)
            raise

    def _broke(self, result: Promise, error: Exception) -> None:
        """Make awaiting `result` raise an internal error, unless the caller has stopped waiting."""
        self._fail(result, PluginError(self._plugin, f"internal error: {error!r}"))

    @staticmethod
    def _fail(result: Promise, error: PluginError) -> None:
        """Make awaiting `result` raise `error`, unless the caller has stopped waiting."""
        if not result.done():
            result.set_exception(error)

    @staticmethod
    def _give(result: Promise, value: object) -> None:
        """Set the result of a promise, unless the caller has stopped waiting."""
        if not result.done():
            result.set_result(value)

    def _after_commit(self, result: Promise, value: object) -> None:
        """Set the result of a promise once everything recorded before this call is committed."""
        self._state.committer.after_commit(partial(self._give, result, value))
        self._state.writes.schedule()

    def _refusal(self, what: str, why: str) -> PluginError:
        return PluginError(self._plugin, f"cannot {what}: {why}")

    def _check_types(self, what: str, *given: tuple[str, object, Any]) -> None:
        """Raise PluginError unless the value in each (name, value, type) has that type. Without this check, compiled
        code would raise an error in a later turn, where the plugin would not see it.
        """
        for name, value, kind in given:
            if not isinstance(value, kind):
                wanted = getattr(kind, "__name__", str(kind))
                raise self._refusal(what, f"{name} is {type(value).__name__}, not {wanted}")

    def _parse_filter(self, filter: str, what: str) -> tuple[str | None, str]:
        """Return the share name and the topic filter of a valid filter. Raises PluginError for an invalid one."""
        try:
            validate_filter(filter, self._state.settings.broker.max_topic_levels)
            return parse_share(filter)
        except ProtocolError as error:
            raise self._refusal(what, error.detail) from error

    def _owns(self, session: Session) -> bool:
        """Return whether the session belongs to one of this plugin's own clients. Actions on these clients are logged
        only at debug level.
        """
        connection = session.connection
        return isinstance(connection, PluginMailbox) and connection.owner is self._instance.kept

    def _tell(self, level: str, event: str, client: ClientInfo | None, **fields: object) -> None:
        """Log a change that this plugin made, and notify the observers of `on_event`."""
        client_id = None if client is None else client.client_id
        self.log(level, event, client_id=client_id, **fields)
        if "on_event" in self._state.observed:
            self._emit(event, client, MappingProxyType(fields))

    def _check_topic(self, topic: str, what: str, levels: int | None = None) -> None:
        """Raise PluginError for an invalid topic, or one with more than `levels` slashes. The default is the limit for
        clients.
        """
        try:
            validate_topic(topic, levels or self._state.settings.broker.max_topic_levels)
        except ProtocolError as error:
            raise PluginError(self._plugin, f"cannot {what}: {error.detail}") from error

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log an event with the plugin's id."""
        self._state.runtime.log(level, event, plugin=self._plugin, **fields)

    def emit(self, event: str, client: ClientInfo | None = None, /, **fields: object) -> None:
        """Notify the observers of `on_event`. Raises PluginError if the name has no dot."""
        self._check_types("emit", ("event", event, str), ("client", client, ClientInfo | None))
        if "." not in event.strip("."):
            raise PluginError(self._plugin, f"invalid event name {event!r}: it must contain a dot")
        if event.startswith(OWN):
            raise PluginError(
                self._plugin,
                f"invalid event name {event!r}: {OWN!r} is for the broker's own events",
            )
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
