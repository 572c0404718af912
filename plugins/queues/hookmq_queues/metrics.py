"""The metrics of all queues."""

from collections.abc import Callable, Iterable

from hookmq.plugin import MetricRegistry

from hookmq_queues.queue import Queue


def register(registry: MetricRegistry, queues: Callable[[], Iterable[Queue]]) -> None:
    """Add the metrics."""
    registry.counter(
        "queues_messages_total",
        "Messages of queues, by result.",
        lambda: [
            ({"queue": one.config.name, "result": result}, number)
            for one in queues()
            for result, number in one.results.items()
        ],
    )
    registry.gauge(
        "queues_bytes",
        "Approximate size of the unsettled messages of a queue.",
        lambda: [({"queue": one.config.name}, one.log.bytes) for one in queues()],
    )
    registry.gauge(
        "queues_delayed",
        "Messages that wait for the delay that their publisher asked for.",
        lambda: [({"queue": one.config.name}, one.delayed) for one in queues()],
    )
    registry.gauge(
        "queues_unsettled",
        "Messages that a group has not settled.",
        lambda: [
            ({"queue": one.config.name, "group": name}, group.backlog)
            for one in queues()
            for name, group in one.dispatchers.items()
        ],
    )
    registry.gauge(
        "queues_unacknowledged",
        "Messages that consumers of a group have and have not settled.",
        lambda: [
            ({"queue": one.config.name, "group": name}, len(group.group.leases))
            for one in queues()
            for name, group in one.dispatchers.items()
        ],
    )
    registry.gauge(
        "queues_consumers",
        "Online consumers of a group.",
        lambda: [
            ({"queue": one.config.name, "group": name}, len(group.consumers))
            for one in queues()
            for name, group in one.dispatchers.items()
        ],
    )
    registry.gauge(
        "queues_stalled_consumers",
        "Consumers of a group that repeatedly do not settle their messages in time.",
        lambda: [
            ({"queue": one.config.name, "group": name}, group.stalled)
            for one in queues()
            for name, group in one.dispatchers.items()
        ],
    )
    registry.gauge(
        "queues_paused",
        "1 if the deliveries of a group are paused.",
        lambda: [
            ({"queue": one.config.name, "group": name}, int(group.paused))
            for one in queues()
            for name, group in one.dispatchers.items()
        ],
    )
    registry.gauge(
        "queues_oldest_seconds",
        "Age of the oldest message that a group has not settled.",
        lambda: [
            ({"queue": one.config.name, "group": name}, age)
            for one in queues()
            for name, group in one.dispatchers.items()
            if (age := one.ages.oldest(group)) is not None
        ],
    )
    registry.gauge(
        "queues_fill",
        "How full a queue is: the larger share of its limits that is used; 1 is full.",
        lambda: [({"queue": one.config.name}, one.fill) for one in queues()],
    )
