"""A service that records what plugins do with traced messages.

A plugin offers a `SpanRecorder` in `Plugin.offered_services` under the name `SERVICE`.
"""

from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

SERVICE: Final = "spans"
"""The name of the service in `Plugin.offered_services`."""


@runtime_checkable
class SpanRecorder(Protocol):
    """Records spans of other plugins, for example in OpenTelemetry. Call the method only on the event loop."""

    def record(
        self,
        name: str,
        traceparent: str,
        began: float,
        ended: float,
        attributes: Mapping[str, str | int | float | bool],
        error: str = "",
    ) -> None:
        """Record a span that has ended, for example a request to a service. Returns at once.

        `traceparent` is the user property of that name on the message that the span belongs to. If the message is not
        traced, nothing is recorded. `began` and `ended` are epoch seconds. `error` says why the operation failed.
        `attributes` and `error` must not contain payloads or secrets. Raises ValueError or TypeError for values that
        cannot be recorded.
        """
