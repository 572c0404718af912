"""Log when exports start to fail, and when they work again."""

import logging
from collections.abc import Callable
from typing import Final

Log = Callable[..., None]
SDK_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http"
"""The SDK logs each failed export here. `ExportHealth` logs them once instead."""


def silence_sdk() -> None:
    """Stop the SDK from logging failed exports."""
    logging.getLogger(SDK_LOGGER).setLevel(logging.CRITICAL)


class ExportHealth:
    """The state of the exports of one signal: traces or metrics. `log` must be callable from any thread."""

    def __init__(self, log: Log, signal: str, endpoint: str) -> None:
        self._log = log
        self._fields = {"signal": signal, "endpoint": endpoint}
        self._failing = False

    def note(self, succeeded: bool) -> None:
        """Log if exports have started to fail or to work again. The SDK's thread calls this after each export."""
        if succeeded and self._failing:
            self._log("info", "otel.exporting_again", **self._fields)
        elif not succeeded and not self._failing:
            self._log("warning", "otel.export_failed", **self._fields)
        self._failing = not succeeded
