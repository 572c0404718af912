"""Decide when a group's messages expire, and when they have been delivered too many times."""

from math import inf

from hookmq.plugin import Message

from hookmq_queues.config import QueueConfig
from hookmq_queues.group import Group


class Limits:
    """The limits for one group's messages. `config` is replaced when the queue's settings change."""

    def __init__(self, config: QueueConfig, group: Group) -> None:
        self.config = config
        self._group = group

    def is_dead(self, offset: int) -> bool:
        """Return whether a message has reached the delivery limit."""
        return 0 < self.config.delivery_limit <= self._group.attempts(offset)

    def expires_at(self, message: Message) -> float:
        """Return when a message expires, in epoch seconds."""
        ttl = self.config.message_ttl
        end = message.received_at + ttl if ttl > 0 else inf
        return end if message.expires_at is None else min(end, message.expires_at)
