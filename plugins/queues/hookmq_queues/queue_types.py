"""Create a queue of the right type."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from hookmq.plugin import BrokerHandle

from hookmq_queues.config import QueueConfig, QueueType
from hookmq_queues.ephemeral import EphemeralQueue
from hookmq_queues.queue import Queue
from hookmq_queues.stream import StreamQueue

TYPES: Final[dict[QueueType, type[Queue]]] = {
    "classic": Queue,
    "stream": StreamQueue,
    "ephemeral": EphemeralQueue,
}
"""The class of each type."""


def make_queue(
    config: QueueConfig,
    path: Path,
    broker: BrokerHandle,
    sync: bool,
    plugin: str,
    dead_letters: Callable[[str], Queue],
) -> Queue:
    """Return a queue of the configured type. `dead_letters` returns another queue by name."""
    return TYPES[config.type](config, path, broker, sync, plugin, dead_letters)
