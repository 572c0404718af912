"""Print tables for operators, and format values as text."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def print_table(rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Print rows as a table with the given columns. A column named ``a.b`` shows the field `b` of the object `a`."""
    lines = [[column.rpartition(".")[2] for column in columns]]
    lines += [[shown(_value(row, column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def print_fields(fields: Row) -> None:
    """Print names and values, one per line. A nested mapping gets a line for each of its values."""
    lines: list[tuple[str, str]] = []
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            lines += [(f"{name}.{shown(key)}", shown(one)) for key, one in value.items()]
        else:
            lines.append((name, "-" if value in ({}, []) else shown(value, name)))
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        sys.stdout.write(f"{name.ljust(width)}  {text}\n")


def shown(value: Any, name: str = "") -> str:
    """Return a value as one line of text. Control characters are removed, because clients choose their own ids."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if name.endswith("_at") or name == "time":
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return " ".join(f"{shown(key)}={shown(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(shown(one) for one in value)
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in str(value))


def say_ready() -> None:
    """Say on stderr that events are now being followed."""
    print("# ready", file=sys.stderr, flush=True)


def _value(row: Row, column: str) -> Any:
    found: Any = row
    for name in column.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
