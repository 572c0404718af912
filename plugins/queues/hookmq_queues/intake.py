"""Process a message before its queue stores it. Check its properties, drop duplicates, and set delayed messages aside
until they are due.
"""

from collections.abc import Callable
from typing import Final, Literal

from hookmq.mqtt_api import EMPTY
from hookmq.plugin import Deny, Message, ReasonCode

from hookmq_queues.config import QueueConfig
from hookmq_queues.delays import Delays
from hookmq_queues.duplicates import Duplicates
from hookmq_queues.properties import checked, due_of, identity_of, names_of
from hookmq_queues.topics import PREFIX

Fate = Literal["stored", "duplicate", "delayed", "dropped_newest"]


class Intake:
    """One queue's intake. `plugin` is the plugin id. The plugin's own messages are stored unchanged."""

    def __init__(self, config: QueueConfig, plugin: str, time: Callable[[], float]) -> None:
        self.duplicates: Final = (
            Duplicates(config.dedupe_window, config.dedupe_ids) if config.dedupe_window else None
        )
        self.delays: Delays | None = None
        """The store for delayed messages. It is set before the first message arrives."""
        self.is_releasing = False
        """Whether the next message was delayed and is due."""
        self._config = config
        self._names = names_of(config)
        self._own = f"plugin:{plugin}"
        self._time = time

    def configure(self, config: QueueConfig) -> None:
        """Apply new settings, except those for duplicates, which stay the same."""
        self._config = config
        if self.delays is not None:
            self.delays.configure(config)

    def check(self, message: Message) -> Message | Deny:
        """Return a message to ``$queue/NAME`` in the form in which it is stored, or a Deny with the reason."""
        found = checked(message, self._names, self._config, self._time())
        if isinstance(found, str):
            return Deny(ReasonCode.PAYLOAD_FORMAT_INVALID, found)
        if found is not message and due_of(found) is not None:
            delays = self.delays
            if delays is None or delays.is_full:
                why = f"the queue {self._config.name} has no room for another delayed message"
                return Deny(ReasonCode.QUOTA_EXCEEDED, why)
        return found

    def take(self, message: Message, offset: int, full: bool) -> Fate:
        """Decide what happens to a message that would be stored at `offset`. `full` says whether the queue is full. A
        delayed message is stored here.
        """
        if self._is_plain(message):
            return "dropped_newest" if full else "stored"
        now = self._time()
        key = None
        if self.duplicates is not None:
            key = identity_of(message, self._config.dedupe_scope)
            if key is not None and self.duplicates.has(key, now):
                return "duplicate"
        due = due_of(message)
        fate: Fate = "dropped_newest" if full else "stored"
        if due is not None and due > now and self.delays is not None:
            self.delays.add(message, due)
            fate = "delayed"
        if key is not None and self.duplicates is not None and fate != "dropped_newest":
            self.duplicates.add(key, message.received_at, offset)
        return fate

    def _is_plain(self, message: Message) -> bool:
        """Return whether the queue ignores a message's user properties."""
        return (
            message.properties is EMPTY
            or not message.properties.user_property
            or self.is_releasing
            or message.origin == self._own
            or not message.topic.startswith(PREFIX)
        )

    def remember(self, message: Message, offset: int) -> None:
        """Remember the `message-id` of a message that was stored before the restart."""
        if self.duplicates is None or self._is_plain(message):
            return
        key = identity_of(message, self._config.dedupe_scope)
        if key is not None and not self.duplicates.has(key, self._time()):
            self.duplicates.add(key, message.received_at, offset)

    def kept_from(self) -> int | None:
        """Return the first offset that must be kept on disk to recover the `message-id`s after a restart, or None."""
        return None if self.duplicates is None else self.duplicates.floor(self._time())
