"""The settings that the broker checks for each queued message."""

from hookmq.model.settings import Settings


class QueueLimits:
    """A copy of the settings that limit queues. Compiled code can read these fields faster than those of `Settings`,
    which plugins use too.
    """

    __slots__ = (
        "back_pressure", "max_queue_bytes", "queue_bytes", "queue_drop", "queue_memory", "queue_page",
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        session, broker = settings.session, settings.broker
        self.back_pressure: bool = session.inflight_overflow == "backpressure"
        """Whether an acknowledgement waits until the deliveries of its message have started."""
        self.queue_bytes: int = session.queue_bytes
        self.queue_drop: str = session.queue_drop
        self.queue_page: int = session.queue_page
        self.max_queue_bytes: int = broker.max_queue_bytes
        self.queue_memory: int = broker.queue_memory
