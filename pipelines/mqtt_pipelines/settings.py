"""How a setting is written. The classes that hold them stand beside what they set; ``conf.py`` binds YAML to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

Seconds = Annotated[float, "duration"]
"""A time span; the configuration takes ``5s``, ``250ms``, ``2m``, ``1h30m``, ``7d`` or a plain number of seconds."""
Size = Annotated[int, "size"]
"""A number of bytes; the configuration takes ``64KiB``, ``10MB`` or a plain number."""


class PipelineError(Exception):
    """A pipeline cannot run as it is configured. The message is one line, names the key and what helps."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def setting(default: Any, help: str, *, minimum: float = 0, maximum: float | None = None) -> Any:
    """A field with its default, its bounds and its line in the manual."""
    return field(default=default, metadata={"help": help, "minimum": minimum, "maximum": maximum})


def required(help: str, *, minimum: float = 0, maximum: float | None = None) -> Any:
    """A field that the configuration must give."""
    return field(metadata={"help": help, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``tables.NAME:`` where a table is, and what writes it."""

    path: str = required("its folder or URL; a name such as `mqtt.bronze` for iceberg")
    format: Literal["files", "delta", "iceberg"] = setting(
        "files", "Parquet by Spark's own file sink, a Delta table, or an Iceberg table"
    )
    partition_by: tuple[str, ...] = setting((), "columns whose values become folders")
    new_columns: Literal["fail", "add"] = setting(
        "fail",
        "what to do with columns that the table lacks: end with an error, or add them to it (not for files)",
    )
    options: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"help": "storage options of delta, properties of iceberg's catalog"},
    )

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path: expected a folder, a URL or a name, found nothing")
