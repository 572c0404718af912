"""Register a plugin instance's metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, get_args

from hookmq.plugin import MetricRegistry
from hookmq_toolkit.http_client import CIRCUIT
from hookmq_toolkit.sinks import SinkState

from hookmq_webhook.control import Control
from hookmq_webhook.counts import Totals
from hookmq_webhook.deadletter import DeadLetters
from hookmq_webhook.delivery import Delivery
from hookmq_webhook.outbox import Outbox
from hookmq_webhook.queues import MemoryQueue

STATES: Final = get_args(SinkState)


class Instance(Protocol):
    """The parts of the plugin that the metrics read."""

    told: dict[str, int]
    queue: Outbox | MemoryQueue | None
    delivery: Delivery | None
    dead: DeadLetters | None

    @property
    def drops(self) -> dict[str, int]: ...
    @property
    def control(self) -> Control: ...
    @property
    def folder(self) -> Path: ...


def register(registry: MetricRegistry, plugin: Instance) -> None:
    """Add the metrics to `registry`."""
    _events(registry, plugin)
    _requests(registry, plugin)
    _queue(registry, plugin)


def _totals(plugin: Instance) -> Totals:
    delivery = plugin.delivery
    if delivery is None:
        return Totals()
    delivery.link.refresh()
    return delivery.totals


def _events(registry: MetricRegistry, plugin: Instance) -> None:
    def dropped() -> list[tuple[Mapping[str, str], int]]:
        found = plugin.drops
        if plugin.dead is not None:
            found["dead_letters_full"] = plugin.dead.overwritten
        return [({"why": why}, count) for why, count in found.items()]

    registry.counter(
        "webhook_events_total",
        "Events, by type.",
        lambda: [({"type": type}, count) for type, count in plugin.told.items()],
    )
    registry.counter(
        "webhook_delivered_total", "Events that arrived.", lambda: _totals(plugin)["delivered"]
    )
    registry.counter(
        "webhook_given_up_total",
        "Events that were given up.",
        lambda: _totals(plugin)["given_up"],
    )
    registry.counter("webhook_dropped_total", "Events that were dropped, by reason.", dropped)


def _requests(registry: MetricRegistry, plugin: Instance) -> None:
    registry.counter(
        "webhook_failed_total",
        "Failed requests, by reason.",
        lambda: [({"reason": word}, count) for word, count in _totals(plugin).failures.items()],
    )
    registry.counter(
        "webhook_answers_total",
        "Answers, by status.",
        lambda: [({"status": status}, count) for status, count in _totals(plugin).statuses.items()],
    )
    registry.counter(
        "webhook_sent_bytes_total",
        "Bytes of bodies that were sent.",
        lambda: _totals(plugin)["bytes"],
    )
    registry.counter(
        "webhook_sender_restarts_total",
        "Sending processes that were started in place of one that died.",
        lambda: plugin.delivery.link.restarts if plugin.delivery is not None else 0,
    )
    registry.gauge(
        "webhook_requests",
        "Requests in progress.",
        lambda: plugin.delivery.running if plugin.delivery is not None else 0,
    )
    registry.gauge(
        "webhook_circuit",
        "State of the circuit: 0 closed, 1 half-open, 2 open.",
        lambda: CIRCUIT[plugin.delivery.circuit] if plugin.delivery is not None else 0,
    )
    registry.histogram(
        "webhook_request_seconds",
        "Duration of one request.",
        lambda: [({}, _totals(plugin).durations)],
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
        lambda: plugin.delivery.oldest_age if plugin.delivery is not None else 0.0,
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
