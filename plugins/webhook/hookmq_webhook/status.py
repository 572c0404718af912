"""Describe the event queue to other plugins; see `hookmq_toolkit.streams`."""

from hookmq_toolkit.streams import StreamStatus

from hookmq_webhook.metrics import Instance
from hookmq_webhook.outbox import Outbox


class QueueOwner:
    """Implements `hookmq_toolkit.streams.StreamOwner`."""

    def __init__(self, plugin: Instance) -> None:
        self._plugin = plugin

    async def list_streams(self) -> list[StreamStatus]:
        """Return the event queue, with the same values as the metrics."""
        queue, delivery = self._plugin.queue, self._plugin.delivery
        if queue is None:
            return []
        name = "outbox" if isinstance(queue, Outbox) else "queue"
        age = delivery.oldest_age if queue.waiting and delivery is not None else None
        return [StreamStatus(name, "queue", queue.waiting, queue.size, age)]
