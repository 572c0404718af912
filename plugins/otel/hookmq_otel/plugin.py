"""Implement the `otel` plugin: traces and metrics over OTLP."""

from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final

from hookmq.plugin import (
    Admission,
    BrokerHandle,
    ClientInfo,
    Connect,
    Context,
    Direction,
    Dropped,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    ReasonCode,
    SessionEvent,
    Timer,
    hookimpl,
)
from hookmq_toolkit.spans import SERVICE
from hookmq_toolkit.threads import in_thread
from opentelemetry.context import Context as TraceContext
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import Span, SpanKind, set_span_in_context

from hookmq_otel.export_health import silence_sdk
from hookmq_otel.metric_export import MetricExport
from hookmq_otel.propagation import EMPTY, Pairs, extract, inject, span_context, traceparent
from hookmq_otel.reported import check_time, checked_attributes, checked_text
from hookmq_otel.settings import OtelConfig
from hookmq_otel.span_export import SpanExport

PATIENCE: Final = 30.0
"""Seconds after which a span is ended even if no hook has reported its end."""
DELIVERIES: Final = 10
"""Ratio of the limit on spans of deliveries and other plugins to the limit on new traces."""
HOOKS: Final = {
    "connect": ("on_connect", "on_session", "on_auth_failed"),
    "publish": ("on_publish", "on_published", "on_dropped"),
    "deliver": ("on_delivered",),
}
"""The hooks that each kind of span needs. Other kinds are only traced as part of their publish."""


@dataclass(slots=True)
class _Open:
    """The span of a connecting client or of a message that is being published. `began` is a monotonic time."""

    span: Span
    began: float
    message: Message | None = None
    """The message as the client sent it. `on_dropped` gets the same object if a plugin refuses it."""


class Budget:
    """Allows `rate` events per second, in bursts of up to `rate`. Times are monotonic."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left = rate
        self._filled = 0.0

    def take(self, now: float) -> bool:
        """Return whether one more event is allowed now."""
        self._left = min(self._rate, self._left + (now - self._filled) * self._rate)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class OtelPlugin(Plugin):
    """Traces a sample of connections and messages, and exports the broker's metrics.

    The SDK's threads export spans and metrics. If the collector is slow or down, spans are lost, but the event loop is
    never delayed.
    """

    Config = OtelConfig
    config: OtelConfig

    def __init__(self, config: OtelConfig, context: Context) -> None:
        super().__init__(config, context)
        traced = config.traced
        needed = {hook for kind in traced for hook in HOOKS.get(kind, ())}
        if "publish" not in traced:
            needed.discard("on_delivered")
        self.idle_hooks = frozenset(hook for hooks in HOOKS.values() for hook in hooks) - needed
        if {"publish", "plugins"} <= traced:
            self.offered_services = {SERVICE: self}
        self._spans: SpanExport | None = None
        self._metrics: MetricExport | None = None
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._originals: dict[int, str] = {}
        """The keys in `_open`, by the identity of the message that the client sent."""
        self._recent: OrderedDict[str, None] = OrderedDict()
        """The `traceparent` of published messages whose deliveries and webhooks are traced."""
        self._budget = Budget(config.max_rate)
        # A message may have many receivers, and any client may send the context of a traced message again.
        self._deliveries = Budget(config.max_rate * DELIVERIES)
        self._timers: dict[str, Timer] = {}
        self._broker: BrokerHandle | None = None

    @property
    def admission(self) -> Admission:
        """Report that the plugin neither accepts nor refuses clients."""
        return Admission()

    # lifecycle ----------------------------------------------------------------------------------------------------

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Start the SDK's threads."""
        self._broker = broker
        silence_sdk()
        resource = Resource.create({"service.name": self.config.service})
        if self.config.traced:
            self._spans = SpanExport(self.config, resource, broker.log)
            self._expire()
        if self.config.metrics_interval:
            self._metrics = MetricExport(self.config, resource, broker.log)
            self._measure()

    @hookimpl
    async def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """Export the remaining spans and metrics. If the collector does not respond, wait at most `timeout`."""
        for timer in self._timers.values():
            timer.cancel()
        spans, metrics = self._spans, self._metrics
        self._spans = self._metrics = None
        if spans is not None:
            for one in self._open.values():
                spans.end(one.span, broker.time(), "the broker stopped")
            self._open.clear()
            limit = broker.runtime.call_later(min(self.config.timeout, deadline), spans.interrupt)
            await in_thread(broker.runtime, spans.close)
            limit.cancel()
        if metrics is not None:
            metrics.update(broker.counters())
            await in_thread(broker.runtime, metrics.close)

    def _measure(self) -> None:
        if self._metrics is not None and self._broker is not None:
            self._metrics.update(self._broker.counters())
            interval = self.config.metrics_interval
            self._timers["measure"] = self._broker.runtime.call_later(interval, self._measure)

    def _expire(self) -> None:
        """End spans that will never be completed, because a client gave up, a plugin took over a message, or an event
        was lost.
        """
        broker, spans = self._broker, self._spans
        if broker is None or spans is None:
            return
        now = broker.now()
        while self._open:
            key, first = next(iter(self._open.items()))
            if now - first.began < PATIENCE:
                break
            self._take(key)
            first.span.set_attribute("hookmq.result", "unknown")
            spans.end(first.span, broker.time())
        self._timers["expire"] = broker.runtime.call_later(PATIENCE, self._expire)

    # sampling -----------------------------------------------------------------------------------------------------

    def _sample(self, pairs: Pairs, broker: BrokerHandle) -> TraceContext | None:
        """Return the context for a new span, or None if no span should be started."""
        context: TraceContext | None = None
        if pairs and self.config.parent:
            context = extract(pairs)
        if context is not None:
            wanted = span_context(context).trace_flags.sampled
        else:
            wanted = broker.runtime.random() < self.config.sampling
        if not wanted:
            return None
        if not self._budget.take(broker.now()):
            return None
        return EMPTY if context is None else context

    # connect ------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_connect(self, client: ClientInfo, connect: Connect, broker: BrokerHandle) -> None:
        """Start the span of a sampled CONNECT."""
        spans = self._spans
        if spans is None:
            return
        context = self._sample(connect.properties.user_property or (), broker)
        if context is None:
            return
        attributes: dict[str, str | int | float | bool] = {
            "messaging.system": "mqtt",
            "messaging.client.id": client.client_id,
            "network.transport": client.peer.transport,
            "client.address": client.peer.host,
            "mqtt.version": client.version,
            "hookmq.listener": client.listener,
        }
        span = spans.start("connect", context, SpanKind.SERVER, broker.time(), attributes)
        if span is not None:
            key = f"{span.get_span_context().span_id:016x}"
            client.state[self.id] = key
            self._open[key] = _Open(span, broker.now())

    @hookimpl
    async def on_session(
        self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle
    ) -> None:
        """End the span of a client that was accepted."""
        if event in (SessionEvent.CREATED, SessionEvent.RESUMED):
            self._connected(client, broker, event.value, "")

    @hookimpl
    async def on_auth_failed(
        self, client: ClientInfo, code: ReasonCode, reason: str, broker: BrokerHandle
    ) -> None:
        """End the span of a client that was refused."""
        self._connected(client, broker, "refused", f"0x{code:02X} {reason}".strip())

    def _connected(self, client: ClientInfo, broker: BrokerHandle, result: str, error: str) -> None:
        found = self._open.pop(client.state.pop(self.id, ""), None)
        if found is not None and self._spans is not None:
            found.span.set_attribute("hookmq.result", result)
            self._spans.end(found.span, broker.time(), error)

    # publish ------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Message | None:
        """Start the span of a sampled message and add its context to the user properties."""
        spans = self._spans
        if client is None or spans is None:
            return None
        pairs = message.properties.user_property or ()
        context = self._sample(pairs, broker)
        if context is None:
            return None
        attributes = _attributes(client, message, "publish")
        span = spans.start("publish", context, SpanKind.SERVER, broker.time(), attributes)
        if span is None:
            return None
        pairs = inject(pairs, span)
        key = traceparent(pairs)
        self._open[key] = _Open(span, broker.now(), message)
        self._originals[id(message)] = key
        if "commit" in self.config.traced:
            committed = broker.when_committed(f"{span.get_span_context().trace_id:032x}")
            waits = self._commit(broker, committed, span, message)
            broker.runtime.spawn(waits, lambda _, error: None)
        return message.replace(properties=message.properties.replace(user_property=pairs))

    async def _commit(
        self, broker: BrokerHandle, committed: Awaitable[bool], publish: Span, message: Message
    ) -> None:
        """Record how long a message's commit took, if it needs one. The span begins once the message has been
        routed.
        """
        began, error = broker.time(), ""
        try:
            if not await committed:
                return
        except PluginError as failed:
            error = failed.message
        spans = self._spans
        if spans is None:
            return
        context = set_span_in_context(publish, EMPTY)
        attributes = _attributes(None, message, "commit")
        span = spans.start("commit", context, SpanKind.INTERNAL, began, attributes)
        if span is not None:
            spans.end(span, broker.time(), error)

    @hookimpl
    async def on_published(self, message: Message, matched: int, broker: BrokerHandle) -> None:
        """End the span of a message that was routed."""
        self._published(message, broker, "matched", matched)

    @hookimpl
    async def on_dropped(self, message: Message, why: Dropped, broker: BrokerHandle) -> None:
        """End the span of a message that was refused, or record a delivery that failed."""
        if why.direction is Direction.IN:
            self._published(
                message, broker, "reason", why.reason.value, why.detail or why.reason.value
            )
        elif "deliver" in self.config.traced:
            self._deliver(message, broker, why.client_id or "", why.reason.value)

    def _published(
        self, message: Message, broker: BrokerHandle, name: str, value: str | int, error: str = ""
    ) -> None:
        key = self._originals.get(id(message)) or traceparent(
            message.properties.user_property or ()
        )
        found = self._take(key)
        if found is None or self._spans is None:
            return
        found.span.set_attribute(f"hookmq.{name}", value)
        self._spans.end(found.span, broker.time(), error)
        self._recent[key] = None
        if len(self._recent) > self.config.max_queue:
            self._recent.popitem(last=False)

    def _take(self, key: str) -> _Open | None:
        """Remove an open span and return it, or return None if there is none."""
        found = self._open.pop(key, None) if key else None
        if found is not None and found.message is not None:
            self._originals.pop(id(found.message), None)
        return found

    @hookimpl
    async def on_delivered(
        self, client: ClientInfo, message: Message, broker: BrokerHandle
    ) -> None:
        """Record the delivery of a traced message."""
        self._deliver(message, broker, client.client_id)

    def _deliver(
        self, message: Message, broker: BrokerHandle, client_id: str, error: str = ""
    ) -> None:
        pairs = message.properties.user_property or ()
        context = self._published_context(pairs, broker)
        if context is None or self._spans is None:
            return
        attributes = _attributes(None, message, "deliver") | {"messaging.client.id": client_id}
        began = message.received_at
        span = self._spans.start("deliver", context, SpanKind.PRODUCER, began, attributes)
        if span is not None:
            self._spans.end(span, broker.time(), error)

    def _published_context(self, pairs: Pairs, broker: BrokerHandle) -> TraceContext | None:
        """Return the context for another span that follows a traced message's `publish` span. Return None if no span
        should be started.
        """
        key = traceparent(pairs) if pairs else ""
        if self._spans is None or not (key in self._recent or key in self._open):
            return None
        context = extract(pairs)
        return context if context is not None and self._deliveries.take(broker.now()) else None

    # spans of other plugins ---------------------------------------------------------------------------------------

    def record(
        self,
        name: str,
        traceparent: str,
        began: float,
        ended: float,
        attributes: Mapping[str, str | int | float | bool],
        error: str = "",
    ) -> None:
        """Record a span for another plugin; see `hookmq_toolkit.spans`."""
        broker, spans = self._broker, self._spans
        if broker is None or spans is None:
            return
        # Check everything first: a span that has started takes a place until it ends.
        check_time(began)
        check_time(ended)
        name = checked_text(name, "the name")
        if not name:
            raise ValueError("the name of the span is empty")
        error = checked_text(error, "the error")
        found = checked_attributes(attributes)
        context = self._published_context((("traceparent", traceparent),), broker)
        if context is None:
            return
        span = spans.start(name, context, SpanKind.CLIENT, began, found)
        if span is not None:
            spans.end(span, max(began, ended), error)  # the clock may have been set back

    # metrics ------------------------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metric that counts spans."""
        registry.counter("otel_spans_total", "Spans by result.", self._results)

    def _results(self) -> list[tuple[dict[str, str], float]]:
        spans = self._spans
        counts = (0, 0, 0)
        if spans is not None:
            counts = (spans.counts.exported, spans.counts.failed, spans.dropped)
        names = ("exported", "failed", "dropped")
        return [({"result": name}, count) for name, count in zip(names, counts, strict=True)]


def _attributes(
    client: ClientInfo | None, message: Message, operation: str
) -> dict[str, str | int | float | bool]:
    found: dict[str, str | int | float | bool] = {
        "messaging.system": "mqtt",
        "messaging.operation.name": operation,
        "messaging.destination.name": message.topic,
        "messaging.message.body.size": len(message.payload),
        "mqtt.qos": message.qos,
        "mqtt.retain": message.retain,
    }
    if client is not None:
        found["messaging.client.id"] = client.client_id
        found["hookmq.listener"] = client.listener
    return found
