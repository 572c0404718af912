"""What the exporter shows of the store."""

from collections.abc import Callable
from typing import Any

from hookmq_storage.store import SQLiteStore, Stats


def register(registry: Any, durability: str, store: Callable[[], SQLiteStore | None]) -> None:
    """Add the metrics of `store`, which is there from the broker's start on, to a
    `hookmq.metric_registry.MetricRegistry`."""

    def stats() -> Stats:
        found = store()
        return found.stats if found is not None else Stats()

    registry.gauge(
        "storage_durability",
        "What an acknowledgement promises: memory, os or group; always 1.",
        lambda: [({"durability": durability}, 1)],
    )
    registry.counter(
        "storage_records_total", "Records given to the store.", lambda: stats().records
    )
    registry.counter("storage_pages_total", "Pages of queues read.", lambda: stats().pages)
    registry.summary(
        "storage_commit_seconds",
        "From a batch's end to the word that it is safe.",
        lambda: [({}, stats().commits, stats().seconds)],
    )
    registry.summary(
        "storage_disk_seconds",
        "What of that SQLite and the disk took.",
        lambda: [({}, stats().commits, stats().disk_seconds)],
    )
    registry.gauge(
        "storage_last_commit_seconds", "The newest commit's time.", lambda: stats().last_seconds
    )
    registry.gauge("storage_database_bytes", "The database.", lambda: stats().database_bytes)
    registry.gauge("storage_log_bytes", "Its log.", lambda: stats().log_bytes)
