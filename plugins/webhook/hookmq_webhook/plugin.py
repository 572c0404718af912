"""Implement the `webhook` plugin, which sends the broker's events to an HTTP service."""

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Final

from hookmq.plugin import (
    OBSERVERS,
    BrokerHandle,
    ConfigError,
    Context,
    HttpRouter,
    Journal,
    Message,
    MetricRegistry,
    PluginError,
    Runtime,
    Settings,
    StoreError,
    hookimpl,
)
from hookmq_toolkit.service_url import clear_text_host
from hookmq_toolkit.sinks import SERVICE as SINKS
from hookmq_toolkit.streams import SERVICE as STREAMS
from hookmq_toolkit.tls_client import check_tls, client_context

from hookmq_webhook import catalog, hook_events
from hookmq_webhook.burial import Burial
from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.control import Control
from hookmq_webhook.counts import Totals
from hookmq_webhook.deadletter import DeadLetters
from hookmq_webhook.delivery import Delivery
from hookmq_webhook.events import Event
from hookmq_webhook.filters import Filters, keep_fields, select
from hookmq_webhook.folder import DEAD, default_folder
from hookmq_webhook.observing import Observing, published
from hookmq_webhook.outbox import Bounds, Outbox
from hookmq_webhook.queues import MemoryQueue
from hookmq_webhook.requests import request_maker
from hookmq_webhook.sender import Sender as HttpSender
from hookmq_webhook.status import QueueOwner

JOURNALED: Final = frozenset({"message.published", "will.published"})
"""Event types that come from the journal instead of a hook in the `at_least_once` mode."""
FIXED: Final = ("mode", "key", "outbox.path", "outbox.sync", "dead_letter", "process")
"""Settings that a reload cannot change."""
SLACK: Final = 2.0
"""Seconds of the shutdown deadline reserved for saving which events arrived."""


class WebhookPlugin(Observing):
    """A plugin that sends signed events to an HTTP service, in order, and retries until they arrive."""

    Config = WebhookConfig
    config: WebhookConfig
    Sender: ClassVar[type[HttpSender]] = HttpSender

    def __init__(self, config: WebhookConfig, context: Context) -> None:
        super().__init__(config, context)
        self.filters = Filters(config.filters, select(config.events))
        self.durable = config.mode == "at_least_once"
        self.requests = request_maker(config, context.id, keep_fields(config.filters.fields))
        self.idle_hooks = self._idle_hooks(self.filters)
        self.timeouts = {"on_shutdown": config.drain + SLACK + 3}
        self.told: dict[str, int] = {}
        """Number of events by type."""
        self.dropped: dict[str, int] = {}
        """Number of dropped events by reason."""
        self.queue: Outbox | MemoryQueue | None = None
        self.delivery: Delivery | None = None
        self.dead: DeadLetters | None = None
        self._broker: BrokerHandle | None = None
        self._runtime: Runtime | None = None
        self._stopping = False
        self._burial: Burial | None = None
        self.control = Control(self)
        self.offered_services = {STREAMS: QueueOwner(self), SINKS: self.control}

    def _idle_hooks(self, filters: Filters) -> frozenset[str]:
        types = filters.types
        used = set(catalog.hooks_of(types - JOURNALED if self.durable else types))
        idle = set(OBSERVERS) - used
        if not self.durable:
            idle.add("provide_journal")
        return frozenset(idle)

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the configuration, for `hookmq check`."""
        host = clear_text_host(self.config.url)
        if not host:
            return ()
        if self.config.sign is None:
            return (f"events to {host} are neither encrypted nor signed: use https and sign",)
        return (f"events to {host} are not encrypted: use https",)

    @property
    def folder(self) -> Path:
        """The folder of the outbox."""
        return self.config.outbox.path or default_folder(self.id)

    @property
    def dead_folder(self) -> Path | None:
        """The folder of the dead-letter file, or None if there is no such file."""
        config = self.config.dead_letter
        if config.topic is not None:
            return None
        return config.path or (self.folder / DEAD if self.durable else None)

    # reload ---------------------------------------------------------------------------------------------------------

    def reconfigure(self, config: WebhookConfig) -> Callable[[], None]:
        """Check `config`, and return a function that applies it.

        Raises ConfigError if `config` is invalid or changes a setting in `FIXED`.
        """
        old = self.config
        changed = [name for name in FIXED if _value(old, name) != _value(config, name)]
        if changed:
            raise ConfigError(f"{', '.join(changed)}: a change needs a restart")
        filters = Filters(config.filters, select(config.events))
        requests = request_maker(config, self.id, keep_fields(config.filters.fields))
        check_tls(config.tls)
        idle = self._idle_hooks(filters)
        self.idle_hooks &= idle  # an extra hook costs little, but a missing hook loses events
        self.timeouts = {"on_shutdown": max(old.drain, config.drain) + SLACK + 3}

        def apply() -> None:
            self.config, self.filters, self.requests = config, filters, requests
            self.idle_hooks = idle
            self.timeouts = {"on_shutdown": config.drain + SLACK + 3}
            self._use(config)

        return apply

    def _use(self, config: WebhookConfig) -> None:
        queue = self.queue
        if isinstance(queue, Outbox):
            queue.bounds = self._bounds()
        elif queue is not None:
            queue.bound(config.queue.max_events, config.queue.max_bytes, config.queue.drop)
        if self.delivery is not None:
            self.delivery.use(config)

    # start and stop -------------------------------------------------------------------------------------------------

    @hookimpl
    def provide_journal(self, broker: BrokerHandle) -> Journal:
        """Return the outbox, which is not open yet."""
        self._burial = burial = self._buries(broker)
        self.queue = outbox = Outbox(
            self.id,
            self.folder,
            broker.runtime,
            self._wants_topic,
            self._messages,
            self._ready,
            self._bounds(),
            burial.spill,
            sync=self.config.outbox.sync,
        )
        self._broker, self._runtime = broker, broker.runtime
        return outbox

    def _buries(self, broker: BrokerHandle) -> Burial:
        return Burial(broker, lambda: self.requests, self.config.dead_letter.topic)

    def _bounds(self) -> Bounds:
        outbox = self.config.outbox
        return Bounds(outbox.max_bytes, outbox.max_events, outbox.on_full, outbox.max_unwritten)

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Read the TLS files and open the dead-letter file. Opens no connection yet."""
        config = self.config
        runtime = self._runtime = broker.runtime
        self._broker = broker
        self._stopping = False
        epoch = runtime.token(8)
        if not self.durable:
            bounds = config.queue
            self.queue = MemoryQueue(
                epoch, bounds.max_events, bounds.max_bytes, bounds.drop, self._drop
            )
        if self.queue is None:
            raise PluginError(self.id, "the broker has not asked for its journal")
        folder = self.dead_folder
        if folder is not None:
            self.dead = DeadLetters(folder, runtime.run_blocking, config.dead_letter.max_bytes)
            self.dead.open()
        burial = self._burial if self.durable and self._burial else self._buries(broker)
        burial.dead, self._burial = self.dead, burial
        try:
            self.control.load()
        except StoreError as error:
            raise PluginError(self.id, str(error)) from error
        try:
            self.delivery = Delivery(
                config,
                self.id,
                broker,
                self.queue,
                burial,
                self.control,
                self._maker(broker.runtime),
            )
        except OSError as error:
            raise PluginError(self.id, f"tls: {error}") from error
        self.delivery.open(ready=False)

    def _maker(self, runtime: Runtime) -> Callable[[WebhookConfig], HttpSender] | None:
        """Return how to make a sender in this process, or None to use the sending process. Raises OSError."""
        if self.config.process and self.Sender is HttpSender:
            if self.config.tls is not None:
                client_context(self.config.tls)
            return None
        return lambda config: self.Sender(config, self.requests, runtime.now, runtime.time)

    @property
    def runtime(self) -> Runtime | None:
        """The broker's runtime, or None before startup and after shutdown."""
        return None if self._stopping else self._runtime

    @property
    def dropped_events(self) -> int:
        """Number of events that were dropped, for any reason."""
        return sum(self.drops.values())

    @property
    def drops(self) -> dict[str, int]:
        """Number of dropped events by reason."""
        queue, delivery = self.queue, self.delivery
        found = dict(self.dropped)
        if isinstance(queue, Outbox):
            totals = delivery.totals if delivery is not None else Totals()
            found["outbox_full"] = queue.spilled + totals["dropped"]
            found["unreadable"], found["damaged"] = totals["unreadable"], totals["damaged"]
        return found

    @hookimpl
    def on_ready(self, broker: BrokerHandle) -> None:
        """Send broker.started, and start sending."""
        if self._burial is not None:
            self._burial.open()
        if self.delivery is not None:
            self.delivery.open(ready=True)
        self.tell(hook_events.started(broker.time(), _version()))

    @hookimpl
    def on_reload(self, old: Settings, new: Settings) -> None:
        """Send broker.reloaded."""
        if self._broker is not None:
            self.tell(hook_events.reloaded(self._broker.time(), old, new))

    @hookimpl
    async def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """Wait for queued events to arrive, and record which ones did.

        Waits at most `drain` seconds, and leaves `SLACK` of the `deadline` seconds for recording this.
        """
        runtime, delivery, queue = self._runtime, self.delivery, self.queue
        if runtime is None:
            return
        self.tell(hook_events.stopping(broker.time(), _version(), deadline))
        if delivery is not None and queue is not None:
            if isinstance(queue, Outbox):
                written = runtime.promise()
                queue.log.flush(written.set_result)
                await written
            delivery.link.wake()
            seconds = min(self.config.drain, max(0.0, deadline - SLACK))
            if seconds > 0 and queue.waiting and not self.control.stopped:
                await self._drain(runtime, delivery, seconds)
            self._stopping = True
            await delivery.link.close()
            left = queue.waiting
            if left:
                kept = "kept" if self.durable else "lost"
                broker.log(
                    "info" if self.durable else "warning", "webhook.stopped", left=left, of=kept
                )
        self._stopping = True
        if isinstance(queue, Outbox):
            closed = runtime.promise()
            queue.close(lambda: closed.set_result(None))
            await closed
        if self.dead is not None:
            self.dead.close()

    async def _drain(self, runtime: Runtime, delivery: Delivery, seconds: float) -> None:
        """Wait until all events have arrived, but at most `seconds`."""
        over = runtime.promise()

        def end(*_: object) -> None:
            if not over.done():
                over.set_result(None)

        timer = runtime.call_later(seconds, end)
        cancel = runtime.spawn(delivery.link.drain(), end)
        await over
        timer.cancel()
        cancel()

    # events ---------------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Add an event to the queue, if the filters select it."""
        queue = self.queue
        if queue is None or self._stopping or not self.filters.event(event):
            return
        if event.topic is not None and event.topic == self.config.dead_letter.topic:
            return  # otherwise each dead letter would cause another event
        self._count(event)
        queue.put(event)
        if self.delivery is not None and isinstance(queue, MemoryQueue):
            self.delivery.link.wake()

    def _count(self, event: Event) -> None:
        self.told[event.type] = self.told.get(event.type, 0) + 1

    def _drop(self, event: Event) -> None:
        self.dropped["queue_full"] = self.dropped.get("queue_full", 0) + 1

    def _wants_topic(self, topic: str) -> bool:
        """Return whether the journal stores messages on `topic`."""
        if not self.filters.types & JOURNALED or topic == self.config.dead_letter.topic:
            return False
        return self.filters.topic(topic)

    def _messages(self, message: Message) -> Iterable[Event]:
        """Return the selected events for an accepted message, and count them."""
        broker = self._broker
        client = None
        if broker is not None and message.sender is not None:
            client = broker.client(message.sender)
        found = []
        for event in published(message, client):
            if self.filters.event(event):
                self._count(event)
                found.append(event)
        return found

    def _ready(self) -> None:
        delivery = self.delivery
        if delivery is not None and not self._stopping:
            delivery.open(ready=False)
            if delivery.opened:
                delivery.link.wake()

    # metrics, routes and commands -----------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of `hookmq_webhook.metrics`."""
        from hookmq_webhook.metrics import register

        register(registry, self)

    @hookimpl
    def register_http(self, router: HttpRouter) -> None:
        """Add the routes below ``/plugins/ID/deadletter``."""
        from hookmq_webhook.routes import register

        register(router, self)


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def _version() -> str:
    try:
        return version("hookmq")
    except PackageNotFoundError:
        return "0"


__all__ = ["ConfigError", "WebhookPlugin"]
