"""Calls that plugins use to keep state, set timers and wait for a commit."""

import builtins
from collections.abc import Awaitable
from functools import partial
from math import inf
from typing import Any

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.broker.plugin_state import PluginSpace
from hookmq.hooks.plugin_state import PluginState
from hookmq.model.cursors import check_limit
from hookmq.model.errors import PluginError, shown
from hookmq.model.histogram import TRACE_ID, Exemplar
from hookmq.model.message import Message
from hookmq.model.runtime import Promise
from hookmq.model.snapshots import Page
from hookmq.storage.protocols import Journal
from hookmq.storage.records import MAX_STATE_KEY


class Keeping(HandleBase):
    """The methods of a plugin's handle that keep the plugin's state."""

    __slots__ = ()

    @property
    def state(self) -> PluginState:
        """Return the plugin's keys and values."""
        self._only_on_loop("state")
        return KeptState(self)

    def set_timer(self, key: str, at: float, data: bytes = b"") -> Awaitable[None]:
        """Set a timer, which survives a restart. See `hookmq.hooks.broker_handle.BrokerHandle.set_timer`."""
        space = self._space("set_timer()")
        key = self._key(key, "set_timer()")
        data = self._bytes(data, "set_timer()", "data")
        due = self._time(at)
        if "on_timer" not in self._instance.kept.hooks:
            raise PluginError(self._plugin, "set_timer(): the plugin does not implement on_timer")
        state = self._state
        state.plugin_states.set_timer(space, key, due, data, state.settings.broker)
        self._warn(space)
        state.plugin_timers.wake()
        return self._committed(None)

    def _time(self, at: float) -> float:
        """Return `at` as a float. Raises PluginError unless it is a valid time for a timer."""
        if isinstance(at, int | float) and not isinstance(at, bool):
            try:
                due = float(at)
            except OverflowError:
                due = inf
            if 0.0 <= due < inf:
                return due
        raise PluginError(
            self._plugin,
            f"set_timer(): `at` must be a time in epoch seconds, finite and at least 0, not {shown(at)}",
        )

    def cancel_timer(self, key: str) -> Awaitable[bool]:
        """Delete a timer. After the commit, the awaitable returns whether the timer existed."""
        space = self._space("cancel_timer()")
        key = self._key(key, "cancel_timer()")
        existed = self._state.plugin_states.drop_timer(space, key)
        self._state.plugin_timers.wake()
        return self._committed(existed)

    def when_committed(self, trace_id: str = "") -> Awaitable[bool]:
        """Return an awaitable that completes once this turn's records are committed. Its result says whether anything was
        recorded after this call. If so, `trace_id` becomes an exemplar of the commit's duration.
        """
        self._only_on_loop("when_committed()")
        self._check_types("wait for a commit", ("trace_id", trace_id, str))
        if trace_id and not TRACE_ID.fullmatch(trace_id):
            raise self._refusal("wait for a commit", f"{trace_id!r} is not a trace id")
        state = self._state
        committer = state.committer
        result = self._promise()
        added, started = committer.added, committer.started
        recorded: bool | None = None

        def turn_ended() -> None:
            nonlocal recorded
            if recorded is None:
                recorded = committer.added != added

        def committed() -> None:
            turn_ended()  # an in-memory store may finish first
            # The count is unchanged if all records were removed from the batch, so that nothing was written.
            needed = recorded is True and committer.started != started
            if needed and trace_id and committer.seconds:
                exemplar = Exemplar(committer.seconds, trace_id, state.runtime.time())
                committer.durations.exemplify(exemplar)
            self._give(result, needed)

        # Do not split the batch here: the records of this turn belong to the same commit.
        committer.after_commit(committed, may_split=False)
        state.runtime.call_soon(turn_ended)
        state.writes.schedule()
        return result

    def append(self, journal: Journal, message: Message) -> None:
        """Add a message to a journal, as part of this turn's batch. See
        `hookmq.hooks.broker_handle.BrokerHandle.append`."""
        self._only_on_loop("append()")
        self._check_types("append", ("message", message, Message))
        state = self._state
        if not self._has(journal):
            raise self._refusal("append", "the broker does not have this journal")
        state.committer.journal(journal, message)
        state.writes.schedule()

    def add_journal(self, journal: Journal) -> Awaitable[None]:
        """Add an empty journal. See `hookmq.hooks.broker_handle.BrokerHandle.add_journal`."""
        self._only_on_loop("add_journal()")
        state = self._state
        known = "the broker has it already"
        if any(one is journal for one in state.committer.journals):  # perhaps it is being removed
            raise self._refusal("add a journal", known)
        result = self._promise()
        last = state.committer.finished

        def recovered(_: object, error: BaseException | None) -> None:
            if result.done():
                return  # the broker has failed or ended
            if error is not None:
                self._fail(result, self._refusal("add a journal", str(error)))
            elif self._has(journal):
                self._fail(result, self._refusal("add a journal", known))
            else:
                state.committer.add_journal(journal)
                state.set_journals((*state.journals, journal))
                self._give(result, None)

        state.runtime.run_blocking(partial(journal.recover, last), recovered)
        return result

    def remove_journal(self, journal: Journal) -> Awaitable[None]:
        """Remove a journal. See `hookmq.hooks.broker_handle.BrokerHandle.remove_journal`."""
        self._only_on_loop("remove_journal()")
        state = self._state
        if not self._has(journal):
            raise self._refusal("remove a journal", "the broker does not have this journal")
        state.set_journals(tuple(one for one in state.journals if one is not journal))
        state.committer.close_journal(journal)
        result = self._promise()

        def committed() -> None:
            state.committer.remove_journal(journal)
            self._give(result, None)

        state.committer.after_commit(committed)
        state.writes.schedule()
        return result

    def _has(self, journal: Journal) -> bool:
        return any(one is journal for one in self._state.journals)

    def _space(self, call: str) -> PluginSpace:
        """Return the plugin's space. Raises PluginError in a thread, or before the state has been loaded."""
        self._only_on_loop(call)
        states = self._state.plugin_states
        if not states.loaded:
            raise PluginError(
                self._plugin,
                f"broker.{call}: the state is not loaded yet: use it from on_startup on",
            )
        return states.space(self._plugin)

    def _key(self, key: str, call: str, what: str = "the key") -> str:
        if not isinstance(key, str):
            raise PluginError(self._plugin, f"{call}: {what} must be str, not {type(key).__name__}")
        try:
            size = len(key.encode())
        except UnicodeEncodeError as error:
            raise PluginError(
                self._plugin, f"{call}: {what} is not valid Unicode: {error.reason}"
            ) from None
        if size > MAX_STATE_KEY:
            raise PluginError(
                self._plugin,
                f"{call}: {what} has {size} bytes: at most {MAX_STATE_KEY} are allowed",
            )
        return str.__str__(key)  # a store may not accept subclasses

    def _bytes(self, value: bytes, call: str, what: str) -> bytes:
        if not isinstance(value, bytes):
            raise PluginError(
                self._plugin, f"{call}: {what} must be bytes, not {type(value).__name__}"
            )
        return bytes(value)

    def _committed(self, value: Any) -> Promise:
        """Return a promise whose result is set to `value` once this turn is committed."""
        state = self._state
        result = self._promise()
        # Do not split the batch here: the message that a hook is called for belongs to the same commit.
        state.committer.after_commit(partial(self._give, result, value), may_split=False)
        state.writes.schedule()
        return result

    def _warn(self, space: PluginSpace) -> None:
        """Log, once for each plugin, that its state will be lost when the process ends."""
        if not self._state.store.durable and not space.warned:
            space.warned = True
            self.log("warning", "plugin.state_not_durable")


class KeptState:
    """One plugin's keys and values; see `hookmq.hooks.plugin_state.PluginState`."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Keeping) -> None:
        self._handle = handle

    @property
    def keys(self) -> int:
        """Return the number of keys and timers."""
        return self._handle._space("state.keys").keys

    def get(self, key: str) -> builtins.bytes | None:
        """Return the value of a key, or None."""
        handle = self._handle
        return handle._space("state.get()").values.get(handle._key(key, "state.get()"))

    def put(self, key: str, value: builtins.bytes) -> Awaitable[None]:
        """Set the value of a key. The awaitable completes after the commit."""
        handle = self._handle
        space = handle._space("state.put()")
        key = handle._key(key, "state.put()")
        value = handle._bytes(value, "state.put()", "the value")
        state = handle._state
        state.plugin_states.put(space, key, value, state.settings.broker)
        handle._warn(space)
        return handle._committed(None)

    def delete(self, key: str) -> Awaitable[bool]:
        """Delete a key. After the commit, the awaitable returns whether the key existed."""
        handle = self._handle
        space = handle._space("state.delete()")
        key = handle._key(key, "state.delete()")
        return handle._committed(handle._state.plugin_states.delete(space, key))

    def items(
        self, prefix: str = "", cursor: str = "", limit: int = 100
    ) -> Page[tuple[str, builtins.bytes]]:
        """Return a page of keys and values, sorted by key."""
        handle = self._handle
        space = handle._space("state.items()")
        prefix = handle._key(prefix, "state.items()", "the prefix")
        plugin, cursors = handle._plugin, handle._state.cursors
        check_limit(plugin, "state.items", limit)
        query = (plugin, prefix)
        after = cursors.read(plugin, "items", query, cursor) if cursor != "" else None
        keys, more = space.page(prefix, after, limit)
        found = tuple((key, space.values[key]) for key in keys)
        return Page(found, cursors.make("items", query, keys[-1]) if more else "")

    @property
    def bytes(self) -> int:
        """Return the total size of all keys, values and timers in bytes."""
        return self._handle._space("state.bytes").size
