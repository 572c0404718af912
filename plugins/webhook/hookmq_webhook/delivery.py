"""The broker's side of sending an instance's events: it opens the engine, wakes it, and keeps its reports."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hookmq.plugin import BrokerHandle

from hookmq_webhook.burial import Burial
from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.counts import Totals
from hookmq_webhook.engine import Opening
from hookmq_webhook.links import Link, LocalLink, RemoteLink
from hookmq_webhook.outbox import Outbox
from hookmq_webhook.parcels import Buried
from hookmq_webhook.queues import MemoryQueue, Numbered
from hookmq_webhook.sender import Sender
from hookmq_webhook.spans import Traced, recorders, report


class Keeper(Protocol):
    """Stores whether an instance is stopped; implemented by `hookmq_webhook.control.Control`."""

    @property
    def stopped(self) -> bool: ...
    @property
    def failing_since(self) -> float | None: ...
    def disable(self, reason: str) -> None: ...
    def note_failing(self, since: float | None) -> None: ...


class Delivery:
    """Implements `hookmq_webhook.engine.Host`. With `make`, the engine runs on the broker's event loop."""

    def __init__(
        self,
        config: WebhookConfig,
        plugin_id: str,
        broker: BrokerHandle,
        queue: Outbox | MemoryQueue,
        burial: Burial,
        keeper: Keeper,
        make: Callable[[WebhookConfig], Sender] | None,
    ) -> None:
        self.totals = Totals()
        self.opened = False
        self.begun = False
        self.running = 0
        """Number of requests in progress."""
        self.circuit = "closed"
        self.reason = ""
        """Why the last request failed, while the service is failing; otherwise empty."""
        self.failing = False
        self._config = config
        self._id = plugin_id
        self._broker = broker
        self._queue = queue
        self._burial = burial
        self._keeper = keeper
        self._oldest: float | None = None
        self._reported_at = broker.time()
        self._unreadable_at: float | None = None
        memory = queue if isinstance(queue, MemoryQueue) else None
        runtime = broker.runtime
        self.link: Link
        if make is not None:
            self.link = LocalLink(config, plugin_id, make, runtime, self, memory)
        else:
            self.link = RemoteLink(config, plugin_id, runtime, self, memory, self._ended)

    def open(self, ready: bool) -> None:
        """Let the engine begin. The sending process begins only when the broker is `ready`, because it needs to know
        whether another plugin records spans.
        """
        queue = self._queue
        if self.opened or (isinstance(queue, Outbox) and not queue.opened):
            return
        if ready or isinstance(self.link, LocalLink):
            self.opened = True
            self.link.open(self._opening, self._place)

    def _opening(self) -> Opening:
        queue = self._queue
        keeper = self._keeper
        folder, log_id = None, ""
        if isinstance(queue, Outbox):
            folder, log_id = str(queue.folder.absolute()), queue.log.id
        spans = isinstance(self.link, LocalLink) or bool(recorders(self._broker))
        return Opening(folder, log_id, keeper.stopped, keeper.failing_since, spans)

    def _place(self) -> tuple[Any, ...]:
        queue = self._queue
        return queue.place if isinstance(queue, Outbox) else (queue.waiting, queue.end)

    def use(self, config: WebhookConfig) -> None:
        """Use another configuration."""
        self._config = config
        self.link.use(config)

    def _ended(self) -> None:
        self.totals.end()
        self.running = 0

    # state -----------------------------------------------------------------------------------------------------------

    @property
    def unreadable(self) -> bool:
        """Whether the outbox cannot be read."""
        return self._unreadable_at is not None

    @property
    def oldest_age(self) -> float:
        """Age of the oldest waiting event in seconds, or 0 if none is waiting.

        While the queue is unreadable, the age is at least the time since it became unreadable.
        """
        queue = self._queue
        oldest = None
        if queue.waiting:
            # Events that the engine has not read yet are newer than its last report.
            oldest = self._oldest or self._reported_at
            if isinstance(queue, MemoryQueue):
                oldest = queue.oldest
        known = [time for time in (oldest, self._unreadable_at) if time is not None]
        return max(0.0, self._broker.time() - min(known)) if known else 0.0

    # Host ------------------------------------------------------------------------------------------------------------

    def log(self, level: str, event: str, /, **fields: object) -> None:
        self._broker.log(level, event, **fields)

    def disable(self, reason: str) -> None:
        self._keeper.disable(reason)

    def note_failing(self, since: float | None) -> None:
        self._keeper.note_failing(since)

    def bury(self, one: Numbered, reason: str, attempts: int, buried: Buried) -> None:
        self._burial.bury(one, reason, attempts, buried)

    def lost(self, first: int, end: int) -> None:
        queue = self._queue
        self._burial.lost(first, end, queue.log.id if isinstance(queue, Outbox) else "")

    def add_spans(
        self, traced: Sequence[Traced], events: int, began: float, ended: float, error: str
    ) -> None:
        report(self._broker, self._id, self._config, traced, events, began, ended, error)

    def take_report(self, told: dict[str, Any]) -> None:
        self.totals.take(told["counts"], told["durations"])
        self.begun, self.running = told["begun"], told["running"]
        self.circuit, self.reason = told["circuit"], told["reason"]
        self.failing = told["failing_since"] is not None
        self._unreadable_at = told["unreadable_at"]
        position, queue = told["position"], self._queue
        if position is not None and isinstance(queue, Outbox):
            self._oldest = position["oldest"]
            self._reported_at = self._broker.time()
            queue.take_position(position)


__all__ = ["Delivery", "Keeper"]
