"""Functions and types for declaring settings. Each settings class is in the module that uses it, and ``conf.py`` fills
it from YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

Seconds = Annotated[float, "duration"]
"""A duration in seconds. The configuration accepts ``5s``, ``250ms``, ``2m``, ``1h30m``, ``7d`` or a plain number of
seconds."""
Size = Annotated[int, "size"]
"""A number of bytes. The configuration accepts ``64KiB``, ``10MB`` or a plain number."""


class PipelineError(Exception):
    """A pipeline cannot run with its configuration. The message is one line that contains the key and advice."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def setting(default: Any, help: str, *, minimum: float = 0, maximum: float | None = None) -> Any:
    """Return a field with a default, bounds, and a description for the manual."""
    return field(default=default, metadata={"help": help, "minimum": minimum, "maximum": maximum})


def required(help: str, *, minimum: float = 0, maximum: float | None = None) -> Any:
    """Return a field for a setting that the configuration must provide."""
    return field(metadata={"help": help, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``tables.NAME:`` the location of a table, and its format."""

    path: str = required("folder or URL of the table; for iceberg a name such as `mqtt.bronze`")
    format: Literal["files", "delta", "iceberg"] = setting(
        "files", "Parquet by Spark's own file sink, a Delta table, or an Iceberg table"
    )
    partition_by: tuple[str, ...] = setting((), "columns whose values become folders")
    new_columns: Literal["fail", "add"] = setting(
        "fail",
        "what to do with columns that the table lacks: fail, or add them (not for files)",
    )
    options: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"help": "Delta's storage options, or the properties of Iceberg's catalog"},
    )

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path: expected a folder, a URL or a name, found nothing")
