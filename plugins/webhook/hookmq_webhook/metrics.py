"""What the exporter shows of one instance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from hookmq.breaker import Breaker

from hookmq_webhook.deadletter import DeadLetters
from hookmq_webhook.dispatch import Counts, Dispatcher
from hookmq_webhook.outbox import Outbox
from hookmq_webhook.process import SenderProcess
from hookmq_webhook.queues import MemoryQueue
from hookmq_webhook.sender import Sender

_STATES: Final = {"closed": 0, "half-open": 1, "open": 2}


class Instance(Protocol):
    """The plugin, as far as it is of interest here."""

    told: dict[str, int]
    dropped: dict[str, int]
    queue: Outbox | MemoryQueue | None
    dispatcher: Dispatcher | None
    sender: Sender | SenderProcess | None
    breaker: Breaker | None
    dead: DeadLetters | None

    @property
    def folder(self) -> Path: ...


def register(registry: Any, plugin: Instance) -> None:
    """Add the metrics to a `hookmq.metric_registry.MetricRegistry`."""

    def counts() -> Counts:
        return plugin.dispatcher.counts if plugin.dispatcher is not None else Counts()

    def dropped() -> list[tuple[Mapping[str, str], int]]:
        queue, dead = plugin.queue, plugin.dead
        found = dict(plugin.dropped)
        if isinstance(queue, Outbox):
            found["outbox_full"] = queue.spilled
            found["unreadable"] = queue.unreadable
            found["damaged"] = queue.damaged
        if dead is not None:
            found["dead_letters_full"] = dead.overwritten
        return [({"why": why}, count) for why, count in found.items()]

    def age() -> float:
        return plugin.dispatcher.oldest_age if plugin.dispatcher is not None else 0.0

    registry.counter(
        "webhook_events_total",
        "Events, by type.",
        lambda: [({"type": type}, count) for type, count in plugin.told.items()],
    )
    registry.counter("webhook_delivered_total", "Events that arrived.", lambda: counts().delivered)
    registry.counter(
        "webhook_failed_total", "Requests that did not succeed.", lambda: counts().failed
    )
    registry.counter(
        "webhook_given_up_total", "Events that were given up.", lambda: counts().given_up
    )
    registry.counter("webhook_dropped_total", "Events that were not kept, by why.", dropped)
    registry.counter(
        "webhook_answers_total",
        "Answers, by status.",
        lambda: [
            ({"status": str(status)}, count)
            for status, count in (plugin.sender.statuses if plugin.sender else {}).items()
        ],
    )
    registry.counter(
        "webhook_sent_bytes_total",
        "Bytes of bodies that were sent.",
        lambda: plugin.sender.bytes if plugin.sender is not None else 0,
    )
    registry.counter(
        "webhook_sender_restarts_total",
        "Processes that took the place of one that died.",
        lambda: plugin.sender.restarts if isinstance(plugin.sender, SenderProcess) else 0,
    )
    registry.gauge(
        "webhook_queue_events",
        "Events that wait.",
        lambda: plugin.queue.waiting if plugin.queue is not None else 0,
    )
    registry.gauge(
        "webhook_queue_bytes",
        "Bytes that wait, about.",
        lambda: plugin.queue.size if plugin.queue is not None else 0,
    )
    registry.gauge(
        "webhook_outbox_fill",
        "How full the outbox is: from 1 on it takes nothing.",
        lambda: plugin.queue.fill if isinstance(plugin.queue, Outbox) else 0,
    )
    registry.gauge("webhook_oldest_seconds", "Age of the oldest event that waits.", age)
    registry.gauge(
        "webhook_dead_letters",
        "Dead letters in the file.",
        lambda: plugin.dead.waiting if plugin.dead is not None else 0,
    )
    registry.gauge(
        "webhook_requests",
        "Requests under way.",
        lambda: plugin.dispatcher.running if plugin.dispatcher is not None else 0,
    )
    registry.gauge(
        "webhook_circuit",
        "0 closed, 1 half-open, 2 open.",
        lambda: _STATES[plugin.breaker.state] if plugin.breaker is not None else 0,
    )
    registry.summary(
        "webhook_request_seconds",
        "Time of one request.",
        lambda: [({}, counts().attempts, counts().seconds)],
    )
