"""Store one group's state, and limit how far ahead its messages may be sent.

A message is sent only if its offset is below the stored `reserved`. After a crash, the broker therefore knows every
message that may have been sent. It sends those again with a delivery count above 1. The state is stored at most once
per commit: changes made during one commit go into the next.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from hookmq.plugin import BrokerHandle, PluginError
from hookmq_toolkit.threads import in_thread

from hookmq_queues.group import Group

RESERVE: Final = 1000
"""Maximum number of messages that may be sent before the state is stored again."""
PAUSE: Final = 1.0
"""Seconds until a failed disk read or write is retried."""


class GroupState:
    """Stores a group's state. Unless the group is `stored`, its state is lost when the process ends.

    `on_stored` is called when more messages may be sent.
    """

    def __init__(
        self,
        queue: str,
        name: str,
        group: Group,
        broker: BrokerHandle,
        stored: bool,
        on_stored: Callable[[], None],
    ) -> None:
        self.stored: Final = stored
        self.reserved = group.next
        """If the state is `stored`, messages from this offset on must not be sent before it is stored again."""
        self.dirty = False
        """Whether the state has changed, so that `save` must be called in this turn."""
        self.opened = not stored
        """Whether this process has stored the state. Until then, the stored state does not show that messages may have
        been sent since the last shutdown. Messages that were never delivered must therefore not be sent yet.
        """
        self._queue = queue
        self._name = name
        self._key = state_key(queue, name)
        self._group = group
        self._broker = broker
        self._on_stored = on_stored
        self._saving = False
        self._closed = False
        self._epoch = 0
        """Number of times that the group was moved. Offsets that were reserved before the last move do not count."""

    def save(self) -> None:
        """Store the state. If an earlier call has not been committed yet, store it after that commit."""
        self.dirty = True
        if self._saving or self._closed:
            return
        self.dirty = False
        if not self.stored:
            return
        self._saving = True
        reserved, epoch = self._group.next + RESERVE, self._epoch
        try:
            stored = self._broker.state.put(self._key, self._group.encode(reserved))
        except PluginError as error:
            self._not_saved(error)
            return

        def saved(result: Any, error: BaseException | None) -> None:
            if error is not None:
                self._not_saved(error)
                return
            self._saving = False
            self.opened = True
            if epoch == self._epoch:
                self.reserved = reserved
            self._on_stored()

        self._broker.runtime.spawn(stored, saved)

    def store(self) -> str:
        """Store the state in this turn's commit. Return an error, or ''. After an error, the state is stored later."""
        if not self.stored:
            return ""
        try:
            self._broker.state.put(self._key, self._group.encode(self._group.next + RESERVE))
        except PluginError as error:
            self._not_saved(error)
            return str(error)
        self.dirty = False
        return ""

    def committed(self) -> Awaitable[None]:
        """Store the state in this turn's commit. Return an awaitable that completes after the commit, and raises
        PluginError if the store fails.
        """
        if not self.stored:
            return in_thread(self._broker.runtime, lambda: None)
        return self._broker.state.put(self._key, self._group.encode(self._group.next + RESERVE))

    async def moved(self, offset: int) -> None:
        """Store the state of a group that was moved to `offset`. Raises PluginError if it cannot be stored."""
        self._epoch += 1
        epoch, reserved = self._epoch, offset + RESERVE
        self.reserved = offset
        if self.stored:
            await self._broker.state.put(self._key, self._group.encode(reserved))
        if epoch == self._epoch:
            self.reserved = max(self.reserved, reserved)

    def _not_saved(self, error: BaseException) -> None:
        if self._closed:
            return
        self._broker.log(
            "error", "queue.state_not_stored",
            queue=self._queue, group=self._name, error=str(error),
        )  # fmt: skip

        def again() -> None:
            self._saving = False
            self.save()

        self._broker.runtime.call_later(PAUSE, again)

    def close(self) -> bytes:
        """Stop storing. Return the state, which the caller must store under the key `state_key`."""
        self._closed = True
        return self._group.encode(self._group.next)


def state_key(queue: str, group: str) -> str:
    """Return the key under which a group's state is stored."""
    return f"group/{queue}/{group}"
