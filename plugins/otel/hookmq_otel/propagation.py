"""Read and write W3C Trace Context in user properties."""

from collections.abc import Iterable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Pairs = Iterable[tuple[str, str]]
NAMES: Final = ("traceparent", "tracestate")
LONGEST: Final = 512
"""The longest `tracestate` to read, in characters. The standard requires at least this length."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()
EMPTY: Final = Context()
"""A context without a span, so that a span started in it begins a new trace."""


def traceparent(pairs: Pairs) -> str:
    """Return the first `traceparent`, or ''. The value is not checked."""
    return next((value for name, value in pairs if name == "traceparent"), "")


def extract(pairs: Pairs) -> Context | None:
    """Return the context that a client sent, or None if it is missing or invalid."""
    carrier: dict[str, str] = {}
    for name, value in pairs:
        if name in NAMES and len(value) <= LONGEST:
            carrier.setdefault(name, value)
    if "traceparent" not in carrier:
        return None
    context = _PROPAGATOR.extract(carrier, EMPTY)
    return context if span_context(context).is_valid else None


def span_context(context: Context) -> SpanContext:
    """Return the ids of the span in `context`."""
    return get_current_span(context).get_span_context()


def inject(pairs: Pairs, span: Span) -> tuple[tuple[str, str], ...]:
    """Return `pairs`, with the client's context replaced by that of `span`."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span, EMPTY))
    return (*((n, v) for n, v in pairs if n not in NAMES), *carrier.items())
