"""Record a limited number of spans, and export them in the SDK's thread."""

from collections.abc import Mapping, Sequence
from threading import Lock

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from hookmq_otel.export_health import ExportHealth, Log
from hookmq_otel.settings import OtelConfig

Attributes = Mapping[str, str | int | float | bool]


class CountedExporter(SpanExporter):
    """Counts the spans that `exporter` exported and those that it failed to export."""

    def __init__(self, exporter: SpanExporter, health: ExportHealth) -> None:
        self._exporter = exporter
        self._health = health
        self._lock = Lock()
        self.exported = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch. The SDK calls this blocking method in its thread."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            with self._lock:
                if result is SpanExportResult.SUCCESS:
                    self.exported += len(spans)
                else:
                    self.failed += len(spans)
            self._health.note(result is SpanExportResult.SUCCESS)
        return result

    @property
    def done(self) -> int:
        """The number of spans that have left the queue, exported or not."""
        with self._lock:
            return self.exported + self.failed

    def shutdown(self) -> None:
        """Stop retrying, and export nothing more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing, because this exporter keeps no spans."""
        return True


class SpanExport:
    """Starts and ends spans. At most `max_queue` spans may be open or waiting for export. Any more are dropped and
    counted.

    No method except `close` blocks. Times are in epoch seconds.
    """

    def __init__(self, config: OtelConfig, resource: Resource, log: Log) -> None:
        self._most = config.max_queue
        url = config.url("traces")
        exporter = OTLPSpanExporter(
            url, config.ca or None, headers=dict(config.headers), timeout=config.timeout
        )
        self.counts = CountedExporter(exporter, ExportHealth(log, "traces", url))
        processor = BatchSpanProcessor(
            self.counts, max_queue_size=self._most, max_export_batch_size=min(512, self._most)
        )
        self._provider = TracerProvider(
            ALWAYS_ON,  # the plugin samples before it makes a span
            resource,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_attribute_length=256),
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("hookmq")
        self._started = 0
        self.dropped = 0
        """Spans that were not recorded because too many were waiting."""

    def start(
        self, name: str, context: Context, kind: SpanKind, time: float, attributes: Attributes
    ) -> Span | None:
        """Start a span, or return None if too many are waiting. The caller must pass the span to `end`."""
        if self._started - self.counts.done >= self._most:
            self.dropped += 1
            return None
        self._started += 1
        return self._tracer.start_span(
            name, context, kind, attributes, start_time=nanoseconds(time)
        )

    def end(self, span: Span, time: float, error: str = "") -> None:
        """End a span and queue it for export. If the operation failed, `error` says why."""
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(nanoseconds(time))

    def close(self) -> None:
        """Export the remaining spans and end the thread. This call blocks."""
        self._provider.shutdown()

    def interrupt(self) -> None:
        """Stop retrying, so that `close` returns sooner."""
        self.counts.shutdown()


def nanoseconds(time: float) -> int:
    """Convert seconds to nanoseconds."""
    return int(time * 1e9)
