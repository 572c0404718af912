"""A receiver for OTLP over HTTP that parses requests with the message classes of the protocol."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """The spans and metrics that were received."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    services: set[str] = field(default_factory=set)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    """Status of each response."""
    requests: "SimpleQueue[str]" = field(default_factory=SimpleQueue)
    """The path of each request."""
    answers: Event = field(default_factory=Event)
    """An event: requests are answered only while it is set, as it is at first."""
    lock: Lock = field(default_factory=Lock)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        with self.lock:
            self.headers.append(headers)
            if path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    self._resource(resource)
                    for scope in resource.scope_spans:
                        self.spans.extend(scope.spans)
            elif path == "/v1/metrics":
                for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    self._resource(measured)
                    for group in measured.scope_metrics:
                        for metric in group.metrics:
                            data = metric.sum if metric.HasField("sum") else metric.gauge
                            self.metrics[metric.name] = list(data.data_points)

    def _resource(self, resource: Any) -> None:
        self.services.add(values(resource.resource.attributes)["service.name"])

    def named(self, name: str) -> list[Any]:
        """Return the spans with this name."""
        return [span for span in self.spans if span.name == name]


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port until the block ends."""
    collector = Collector()
    collector.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests.put(self.path)
            collector.answers.wait(60)
            if collector.status == 200:
                collector.take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            with suppress(OSError):  # the client may have left
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.answers.set()
            server.shutdown()
            thread.join(60)
