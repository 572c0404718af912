"""Public: HookMQ's functions for reading values and reporting errors, for use by plugins that read their own files.

Everything in ``__all__`` stays compatible within a major version of `HOOK_API`, like `hookmq.plugin`.
"""

from hookmq.config.diagnostics import ConfigProblems, KeyPath, SourcePlace
from hookmq.config.plain_values import bind_values
from hookmq.config.units import (
    Rate,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)
from hookmq.config.yaml_document import scalar

__all__ = [
    "ConfigProblems",
    "KeyPath",
    "Rate",
    "SourcePlace",
    "bind_values",
    "format_duration",
    "format_size",
    "parse_duration",
    "parse_rate",
    "parse_size",
    "scalar",
]  # fmt: skip
