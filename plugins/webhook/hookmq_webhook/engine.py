"""Send the events of one plugin instance: read its queue, keep the order by key, send requests, and retry.

An engine runs in the sending process or, with ``process: false``, on the broker's event loop. It knows the broker only as
a `Host`.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from hookmq.plugin import Runtime, Timer
from hookmq_toolkit.breaker import Breaker
from hookmq_toolkit.sinks import SinkDelivery

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.deliveries import Deliveries
from hookmq_webhook.dispatch import Dispatcher
from hookmq_webhook.filters import keep_fields
from hookmq_webhook.log_queue import LogQueue
from hookmq_webhook.parcels import Answer, Buried, policy_of
from hookmq_webhook.queues import Numbered, Queue
from hookmq_webhook.requests import request_maker
from hookmq_webhook.sender import Sender
from hookmq_webhook.spans import Traced

REPORT_EVERY: Final = 0.5
"""Seconds between two reports to the broker, if anything changes."""
HURRY: Final = 0.01
"""The same while the outbox is nearly full."""
RETIRE: Final = 2.0
"""Seconds beyond the time limit of requests after which the connections of an old configuration are closed."""


class Opening(NamedTuple):
    """How an engine starts. `folder` is that of the outbox, or None if events wait in the broker's memory."""

    folder: str | None
    log_id: str
    stopped: bool
    failing_since: float | None
    spans: bool


class Host(Protocol):
    """The broker, as an engine uses it."""

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log an event about the instance."""

    def disable(self, reason: str) -> None:
        """Stop the instance until an operator resumes it."""

    def note_failing(self, since: float | None) -> None:
        """Store the time at which the service began to fail, or None if it works."""

    def bury(self, one: Numbered, reason: str, attempts: int, buried: Buried) -> None:
        """Store a dead letter; see `hookmq_webhook.parcels.Bury`."""

    def lost(self, first: int, end: int) -> None:
        """Store a dead letter for events that a damaged disk has lost."""

    def add_spans(
        self, traced: Sequence[Traced], events: int, began: float, ended: float, error: str
    ) -> None:
        """Report a request that contains events with a trace."""

    def take_report(self, report: dict[str, Any]) -> None:
        """Take the engine's position and counters."""


class Engine:
    """Sends the events in `queue` until `close`. Call `begin` first."""

    def __init__(
        self,
        config: WebhookConfig,
        plugin_id: str,
        opening: Opening,
        queue: Queue,
        sender: Sender,
        runtime: Runtime,
        host: Host,
    ) -> None:
        self.sender = sender
        self.queue = queue
        self._config = config
        self._id = plugin_id
        self._spans = opening.spans
        self.runtime = runtime
        self._host = host
        self._deliveries = Deliveries()
        self._stopped = opening.stopped
        self._hurry = False
        self._timer: Timer | None = None
        self._closed = False
        self.breaker = self._new_breaker()
        self.dispatcher = self._new_dispatcher(opening.failing_since)

    def _new_breaker(self) -> Breaker:
        retry = self._config.retry
        return Breaker(retry.breaker_failures, retry.breaker_pause, self.runtime.now)

    def _new_dispatcher(self, failing_since: float | None) -> Dispatcher:
        host = self._host
        made = Dispatcher(
            self.runtime, self.queue, self._send, host.bury, key_of(self._config.key), policy_of(self._config),
            self.breaker, host.log,
            disable=self._disable, health_changed=self._note_failing, deliveries=self._deliveries,
            failing_since=failing_since,
        )  # fmt: skip
        made.pause(self._stopped)
        return made

    def begin(self) -> None:
        """Start with the first event in the queue."""
        self.dispatcher.begin()
        self.changed()

    # from the broker -------------------------------------------------------------------------------------------------

    def wake(self, *place: Any) -> None:
        """Check the queue for new events. `place` describes the queue: see `LogQueue.advance`."""
        queue = self.queue
        if isinstance(queue, LogQueue):
            self._hurry = place[3]
            queue.advance(*place)
        elif place:
            queue.advance(*place)  # type: ignore[attr-defined]
        self.dispatcher.wake()

    def pause(self, stopped: bool, forget: bool) -> None:
        """Stop or resume sending. With `forget`, past failures of the service no longer count."""
        self._stopped = stopped
        if forget:
            self.dispatcher.health.forget()
        if self.dispatcher.paused != stopped:
            self.dispatcher.pause(stopped)
        self.changed()

    def use(self, config: WebhookConfig, sender: Sender) -> None:
        """Continue with another configuration. Requests in progress finish with the old one."""
        old, self._config = self.sender, config
        sender.sent, sender.bytes, sender.statuses = old.sent, old.bytes, old.statuses
        self.sender = sender
        self.runtime.call_later(
            config.timeout + RETIRE,
            lambda: _ignore(self.runtime.spawn(old.close(), lambda _, error: None)),
        )
        self.breaker = self._new_breaker()
        self.dispatcher.use(policy_of(config), self.breaker)

    async def seek(self, number: int) -> None:
        """Cancel the requests in progress, and continue with event `number`. Raises OSError."""
        before = self.dispatcher
        before.stop()
        queue = self.queue
        if isinstance(queue, LogQueue):
            stored = self.runtime.promise()
            self.runtime.run_blocking(queue.seek(number), lambda _, error: stored.set_result(error))
            error = await stored
        else:
            queue.clear()  # type: ignore[attr-defined]
            error = None
        self.dispatcher = made = self._new_dispatcher(before.health.failing_since)
        made.counts = before.counts
        made.begin()
        self.report()
        if error is not None:
            raise error

    async def drain(self) -> None:
        """Send incomplete batches at once, and return when no events are waiting."""
        drained = self.runtime.promise()
        self.dispatcher.drain(lambda: drained.set_result(None))
        await drained

    async def send(self, events: Sequence[Numbered]) -> Answer:
        """Send one request with `events` that are not in the queue, such as dead letters."""
        return await self.sender.send(events)

    async def deliveries(self, event: str, limit: int) -> list[SinkDelivery]:
        """Return the latest attempts, newest first."""
        return list(islice(self._deliveries.latest(event), limit))

    async def close(self) -> None:
        """Stop sending, store the position and close all connections."""
        self.dispatcher.stop()
        queue = self.queue
        if isinstance(queue, LogQueue):
            closed = self.runtime.promise()
            queue.close(lambda: closed.set_result(None))
            await closed
        self.report()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.sender.close()

    # to the broker ---------------------------------------------------------------------------------------------------

    async def _send(self, events: Sequence[Numbered]) -> Answer:
        traced: tuple[Traced, ...] = ()
        if self._spans:
            traced = tuple(
                Traced(one.id, one.event.type, one.event.topic, one.event.trace)
                for one in events
                if one.event.trace is not None
            )
        began = self.runtime.time() if traced else 0.0
        try:
            answer = await self.sender.send(events)
        finally:
            self.changed()
        if traced:
            self._host.add_spans(traced, len(events), began, self.runtime.time(), answer.error)
        return answer

    def _disable(self, reason: str) -> None:
        self._stopped = True
        self.dispatcher.pause(True)
        self._host.disable(reason)

    def _note_failing(self) -> None:
        self._host.note_failing(self.dispatcher.health.failing_since)

    def changed(self) -> None:
        """Report to the broker soon."""
        if self._timer is None and not self._closed:
            delay = HURRY if self._hurry else REPORT_EVERY
            self._timer = self.runtime.call_later(delay, self.report)

    def report(self) -> None:
        """Report to the broker now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        dispatcher, sender, queue = self.dispatcher, self.sender, self.queue
        counts = dispatcher.counts.plain
        counts |= {f"status_{status}": count for status, count in sender.statuses.items()}
        counts["bytes"] = sender.bytes
        if isinstance(queue, LogQueue):
            counts["unreadable"], counts["damaged"] = queue.unreadable, queue.damaged
            counts["dropped"] = queue.dropped
        self._host.take_report(
            {
                "counts": counts,
                "durations": dispatcher.counts.plain_durations,
                "position": queue.position() if isinstance(queue, LogQueue) else None,
                "begun": dispatcher.begun,
                "running": dispatcher.running,
                "unreadable_at": dispatcher.unreadable_at,
                "circuit": self.breaker.state,
                "failing_since": dispatcher.health.failing_since,
                "reason": dispatcher.health.reason,
            }
        )


def _ignore(value: object) -> None:
    """Ignore a result."""


def key_of(key: str) -> Callable[[Numbered], str]:
    """Return the function that determines the key of an event."""
    if key == "client":
        return lambda one: one.event.client or ""
    if key == "topic":
        return lambda one: one.event.topic or ""
    if key == "none":
        return lambda one: one.id
    return lambda one: ""


def new_sender(config: WebhookConfig, plugin_id: str, runtime: Runtime) -> Sender:
    """Return a sender for a configuration. Reads the TLS files, so it blocks and may raise OSError."""
    requests = request_maker(config, plugin_id, keep_fields(config.filters.fields))
    return Sender(config, requests, runtime.now, runtime.time)


def new_log_queue(
    opening: Opening, runtime: Runtime, read: Any, host: Host, changed: Callable[[], None]
) -> LogQueue:
    """Return the queue of an outbox. It is not loaded yet."""
    assert opening.folder is not None
    return LogQueue(
        Path(opening.folder), opening.log_id, runtime, read, host.log, host.lost, changed
    )


__all__ = ["Engine", "Host", "Opening", "key_of", "new_log_queue", "new_sender"]
