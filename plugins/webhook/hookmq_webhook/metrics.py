"""Register a plugin instance's metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, get_args

from hookmq.plugin import MetricRegistry
from hookmq_toolkit.breaker import Breaker
from hookmq_toolkit.http_client import CIRCUIT
from hookmq_toolkit.sinks import SinkState

from hookmq_webhook.control import Control
from hookmq_webhook.deadletter import DeadLetters
from hookmq_webhook.dispatch import Counts, Dispatcher
from hookmq_webhook.outbox import Outbox
from hookmq_webhook.process import SenderProcess
from hookmq_webhook.queues import MemoryQueue
from hookmq_webhook.sender import Sender

STATES: Final = get_args(SinkState)


class Instance(Protocol):
    """The parts of the plugin that the metrics read."""

    told: dict[str, int]
    dropped: dict[str, int]
    queue: Outbox | MemoryQueue | None
    dispatcher: Dispatcher | None
    sender: Sender | SenderProcess | None
    breaker: Breaker | None
    dead: DeadLetters | None

    @property
    def control(self) -> Control: ...
    @property
    def folder(self) -> Path: ...


def register(registry: MetricRegistry, plugin: Instance) -> None:
    """Add the metrics to `registry`."""
    _events(registry, plugin)
    _requests(registry, plugin)
    _queue(registry, plugin)


def _counts(plugin: Instance) -> Counts:
    return plugin.dispatcher.counts if plugin.dispatcher is not None else Counts()


def _events(registry: MetricRegistry, plugin: Instance) -> None:
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

    registry.counter(
        "webhook_events_total",
        "Events, by type.",
        lambda: [({"type": type}, count) for type, count in plugin.told.items()],
    )
    registry.counter(
        "webhook_delivered_total", "Events that arrived.", lambda: _counts(plugin).delivered
    )
    registry.counter(
        "webhook_given_up_total",
        "Events that were given up.",
        lambda: _counts(plugin).given_up,
    )
    registry.counter("webhook_dropped_total", "Events that were dropped, by reason.", dropped)


def _requests(registry: MetricRegistry, plugin: Instance) -> None:
    registry.counter(
        "webhook_failed_total",
        "Failed requests, by reason.",
        lambda: [({"reason": word}, count) for word, count in _counts(plugin).failures.items()],
    )
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
        "Sending processes that were started in place of one that died.",
        lambda: plugin.sender.restarts if isinstance(plugin.sender, SenderProcess) else 0,
    )
    registry.gauge(
        "webhook_requests",
        "Requests in progress.",
        lambda: plugin.dispatcher.running if plugin.dispatcher is not None else 0,
    )
    registry.gauge(
        "webhook_circuit",
        "State of the circuit: 0 closed, 1 half-open, 2 open.",
        lambda: CIRCUIT[plugin.breaker.state] if plugin.breaker is not None else 0,
    )
    registry.histogram(
        "webhook_request_seconds",
        "Duration of one request.",
        lambda: [({}, _counts(plugin).durations)],
    )


def _queue(registry: MetricRegistry, plugin: Instance) -> None:
    registry.gauge(
        "webhook_queue_events",
        "Events that wait.",
        lambda: plugin.queue.waiting if plugin.queue is not None else 0,
    )
    registry.gauge(
        "webhook_queue_bytes",
        "Approximate bytes of the events that wait.",
        lambda: plugin.queue.size if plugin.queue is not None else 0,
    )
    registry.gauge(
        "webhook_outbox_fill",
        "Fill level of the outbox; at 1 it is full.",
        lambda: plugin.queue.fill if isinstance(plugin.queue, Outbox) else 0,
    )
    registry.gauge(
        "webhook_oldest_seconds",
        "Age of the oldest event that waits.",
        lambda: plugin.dispatcher.oldest_age if plugin.dispatcher is not None else 0.0,
    )
    registry.gauge(
        "webhook_state",
        "1 for the present state of the instance, 0 for the others.",
        lambda: [({"state": word}, float(word == plugin.control.present[0])) for word in STATES],
    )
    registry.gauge(
        "webhook_dead_letters",
        "Dead letters in the file.",
        lambda: plugin.dead.waiting if plugin.dead is not None else 0,
    )
