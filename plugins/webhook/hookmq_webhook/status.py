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
        queue, dispatcher = self._plugin.queue, self._plugin.dispatcher
        if queue is None:
            return []
        name = "outbox" if isinstance(queue, Outbox) else "queue"
        age = dispatcher.oldest_age if queue.waiting and dispatcher is not None else None
        return [StreamStatus(name, "queue", queue.waiting, queue.size, age)]
