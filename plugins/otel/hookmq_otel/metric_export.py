"""Export the broker's counters in the SDK's thread."""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from hookmq_otel.export_health import ExportHealth, Log
from hookmq_otel.settings import OtelConfig

_LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
Points = list[tuple[dict[str, str], float]]


def by_family(counters: Mapping[str, float]) -> dict[str, Points]:
    """Group counters like ``name{label="value"}`` by name, and attach the labels to each value. Histogram buckets are
    left out.
    """
    found: dict[str, Points] = {}
    for text, value in counters.items():
        name, _, labels = text.partition("{")
        if name.endswith("_bucket"):
            continue
        pairs = {label: _ESCAPED.sub(_plain, quoted) for label, quoted in _LABEL.findall(labels)}
        found.setdefault(name, []).append((pairs, value))
    return found


def _plain(match: "re.Match[str]") -> str:
    return {"n": "\n"}.get(match[1], match[1])


class ReportingExporter(OTLPMetricExporter):
    """An exporter that reports the result of each export to `health`."""

    health: ExportHealth

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export metrics. The SDK calls this blocking method in its thread."""
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self.health.note(result is MetricExportResult.SUCCESS)
        return result


class MetricExport:
    """Exports the counters last passed to `update`, once every `metrics_interval`.

    Call `update` on the event loop, because the broker can be read only there. The SDK's thread reads the copy.
    """

    def __init__(self, config: OtelConfig, resource: Resource, log: Log) -> None:
        url = config.url("metrics")
        exporter = ReportingExporter(
            url, config.ca or None, headers=dict(config.headers), timeout=config.timeout
        )
        exporter.health = ExportHealth(log, "metrics", url)
        reader = PeriodicExportingMetricReader(
            exporter, config.metrics_interval * 1000, config.timeout * 1000
        )
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("hookmq")
        self._families: dict[str, Points] = {}
        self._known: set[str] = set()

    def update(self, counters: Mapping[str, float]) -> None:
        """Replace the values to export. This call does not block."""
        self._families = by_family(counters)
        for family in self._families.keys() - self._known:
            self._known.add(family)
            read = [partial(self._read, family)]
            name = f"hookmq.{family.removesuffix('_total')}"
            if family.endswith(("_total", "_count", "_sum")):
                self._meter.create_observable_counter(name, read)
            else:
                self._meter.create_observable_gauge(name, read)

    def _read(self, family: str, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, labels) for labels, value in self._families.get(family, ())]

    def close(self) -> None:
        """Export the last values and end the thread. This call blocks."""
        self._provider.shutdown()
