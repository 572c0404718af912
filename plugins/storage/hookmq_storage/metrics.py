"""The storage metrics."""

from collections.abc import Callable

from hookmq.plugin import MetricRegistry

from hookmq_storage.store import SQLiteStore, Stats


def register(
    registry: MetricRegistry, durability: str, store: Callable[[], SQLiteStore | None]
) -> None:
    """Add the storage metrics to a `MetricRegistry`.

    `store` returns None until the broker has started.
    """

    def stats() -> Stats:
        found = store()
        return found.stats if found is not None else Stats()

    registry.gauge(
        "storage_durability",
        "Always 1; the label says what an acknowledgement survives: memory, os or group.",
        lambda: [({"durability": durability}, 1)],
    )
    registry.counter("storage_records_total", "Records committed.", lambda: stats().records)
    registry.counter("storage_pages_total", "Pages of queues read.", lambda: stats().pages)
    registry.summary(
        "storage_commit_seconds",
        "Time from the end of a batch until it is safe.",
        lambda: [({}, stats().commits, stats().seconds)],
    )
    registry.summary(
        "storage_disk_seconds",
        "Part of the commit time spent in SQLite and on the disk.",
        lambda: [({}, stats().commits, stats().disk_seconds)],
    )
    registry.gauge(
        "storage_last_commit_seconds",
        "Duration of the newest commit.",
        lambda: stats().last_seconds,
    )
    registry.gauge(
        "storage_database_bytes",
        "Size of the database without its log.",
        lambda: stats().database_bytes,
    )
    registry.gauge("storage_log_bytes", "Size of the database's log.", lambda: stats().log_bytes)
