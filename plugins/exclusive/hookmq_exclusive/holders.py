"""Keep track of which client holds each exclusive topic."""

from dataclasses import dataclass
from typing import Final

UNCONFIRMED: Final = 10.0
"""Seconds for which a subscription that was allowed but not yet created holds its topic."""


@dataclass(slots=True)
class Holder:
    """The client that holds a topic. `since` is in monotonic seconds; `confirmed` is False until it has subscribed."""

    client_id: str
    since: float
    confirmed: bool = False


class Holders:
    """Which client holds each topic. This is only a cache of the broker's subscriptions."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Holder] = {}
        self._by_client: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._by_topic)

    def holder(self, topic: str) -> Holder | None:
        """Return the holder of `topic`, or None."""
        return self._by_topic.get(topic)

    def take(self, topic: str, client_id: str, now: float, confirmed: bool = False) -> None:
        """Make a client the holder of `topic`, replacing any other client."""
        before = self._by_topic.get(topic)
        if before is not None:
            self.release(topic, before.client_id)
        self._by_topic[topic] = Holder(client_id, now, confirmed)
        self._by_client.setdefault(client_id, set()).add(topic)

    def confirm(self, topic: str, client_id: str) -> None:
        """Record that the client has subscribed."""
        holder = self._by_topic.get(topic)
        if holder is not None and holder.client_id == client_id:
            holder.confirmed = True

    def release(self, topic: str, client_id: str) -> None:
        """Free `topic` if this client holds it."""
        holder = self._by_topic.get(topic)
        if holder is None or holder.client_id != client_id:
            return
        del self._by_topic[topic]
        topics = self._by_client[client_id]
        topics.discard(topic)
        if not topics:
            del self._by_client[client_id]

    def topics(self, client_id: str) -> tuple[str, ...]:
        """Return the topics that a client holds."""
        return tuple(self._by_client.get(client_id, ()))

    def expire(self, now: float) -> None:
        """Free the topics whose subscriptions were allowed but never created."""
        late = [
            (topic, one.client_id)
            for topic, one in self._by_topic.items()
            if not one.confirmed and now - one.since >= UNCONFIRMED
        ]
        for topic, client_id in late:
            self.release(topic, client_id)
