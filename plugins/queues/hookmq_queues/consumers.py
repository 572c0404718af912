"""The consumers of a group, and the choice among them."""

from dataclasses import dataclass


@dataclass(slots=True)
class Consumer:
    """A subscription of an online client. `filter` is written as the client sent it.

    `held` counts the messages that it has and has not settled. While it is `blocked`, the broker cannot send to it.
    """

    client_id: str
    filter: str
    topic_filter: str
    with_properties: bool
    held: int = 0
    blocked: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The name of this consumer in leases."""
        return self.client_id, self.filter


class Consumers:
    """The consumers of one group, in the order in which they were last served."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str], Consumer] = {}

    def __len__(self) -> int:
        return len(self.by_key)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. If it is there already, it keeps its messages."""
        known = self.by_key.setdefault(consumer.key, consumer)
        known.topic_filter = consumer.topic_filter
        known.with_properties = consumer.with_properties

    def remove(self, key: tuple[str, str]) -> Consumer | None:
        """Remove a consumer and return it."""
        return self.by_key.pop(key, None)

    def choose(self, prefetch: int) -> Consumer | None:
        """Return the consumer with the fewest unacknowledged messages that can take one more; None if there is none.
        Among equals, it is the one that was served least recently.
        """
        best: Consumer | None = None
        for one in self.by_key.values():
            if one.blocked or one.held >= prefetch:
                continue
            if best is None or one.held < best.held:
                best = one
                if not best.held:
                    break
        return best

    def served(self, consumer: Consumer) -> None:
        """Move a consumer to the end of the order."""
        if len(self.by_key) > 1:
            self.by_key[consumer.key] = self.by_key.pop(consumer.key)
