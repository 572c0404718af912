"""Generate the reference for all settings as Markdown, from the dataclasses that represent the configuration."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from hookmq.config.binding import bound_fields, default_of, is_union, unwrap
from hookmq.config.model import Config
from hookmq.config.show import format_value

INTRODUCTION = """\
# Configuration

This page lists every setting with its type, default and limits. `hookmq config reference` generates it, and a test
keeps it up to date.

The configuration is one YAML document. Only `version` and `listeners` are required. An unknown key, a wrong type and a
value outside its limits are errors. All errors are reported at once, with line and column. `hookmq check -c FILE`
reports them without starting anything.

- **Durations** are `250ms`, `5s`, `2m`, `1h30m`, `7d`, or a number of seconds. **Sizes** are `512`, `64KiB`, `1MiB`,
  `10kB`. **Rates** are `100/s`, `5000/min`, `10/5s`.
- `{$env: NAME}` takes a value from the environment, `{$file: PATH}` from a file. One trailing line break is removed.
  Either may have a `default`. There are no other references. Their values are never shown.
- All paths in the file are relative to its folder. Paths on the command line and in the environment are relative to the
  working directory.
- `HOOKMQ__BROKER__MAX_QOS=1` in the environment overrides `broker.max_qos`. Two underscores mean a dot, and list
  positions are numbers (`HOOKMQ__LISTENERS__0__BIND`). `-o broker.max_qos=1` on the command line overrides both.
- Plain words follow YAML 1.2: `true` and `false` are booleans; `yes`, `on` and `1:30` are text. Anchors and
  aliases are supported; tags are refused.
"""
_NAMES: dict[Any, str] = {
    bool: "true or false", int: "number", float: "number", Any: "anything",
}  # fmt: skip


def reference() -> str:
    """Return the reference page as Markdown."""
    return INTRODUCTION + keys(Config)


def keys(kind: Any) -> str:
    """Describe a dataclass that the binder accepts, as Markdown: one section with a table for each mapping."""
    parts = []
    listed: set[Any] = set()
    for name, inner, help in [("Top level", kind, "The keys of the document."), *_sections(kind)]:
        if inner not in listed:
            listed.add(inner)
            parts.append(f"\n## {name}\n\n{help}\n{_table(inner)}")
    return "".join(parts)


def _sections(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield the name, dataclass and description of each mapping that has its own keys."""
    for field, hint in bound_fields(kind):
        inner, suffix = _nested(hint)
        if inner is not None:
            name = f"{prefix}{field.name}{suffix}"
            yield f"`{name}`", inner, _sentence(inner, field)
            yield from _sections(inner, f"{name}.")


def _nested(hint: Any) -> tuple[Any, str]:
    """Return the dataclass inside a type, or None, and the suffix for its key."""
    hint, unit = unwrap(hint)
    arguments = typing.get_args(hint)
    if is_union(hint):
        return next((found for found in map(_nested, arguments) if found[0]), (None, ""))
    origin = typing.get_origin(hint)
    if origin in (tuple, list) and arguments:
        return _nested(arguments[0])[0], "[]"
    if origin in (Mapping, dict) and arguments:
        return _nested(arguments[1])[0], ".NAME"
    return (hint, "") if dataclasses.is_dataclass(hint) and not unit else (None, "")


def _sentence(kind: Any, field: "dataclasses.Field[Any]") -> str:
    text = " ".join((kind.__doc__ or "").split()).replace("``", "`")
    if text.startswith("`") and "` " in text:
        text = text.partition("` ")[2]
    text = (text or field.metadata.get("help", "")).strip().removesuffix(".")
    return f"{text[:1].upper()}{text[1:]}."


def _table(kind: Any) -> str:
    lines = ["\n| key | type | default | meaning |\n|---|---|---|---|\n"]
    for field, hint in bound_fields(kind):
        help = str(field.metadata.get("help", ""))
        if not help:
            inner = _nested(hint)[0]
            help = _sentence(inner, field)[:-1] if inner is not None else ""
            help = help[:1].lower() + help[1:]
        cells = (f"`{field.name}`", _type(hint, field.metadata), _default(field, hint), help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(lines)


def _type(hint: Any, bounds: Mapping[str, Any]) -> str:
    kind, unit = unwrap(hint)
    arguments = typing.get_args(kind)
    if is_union(kind):
        return " or ".join(_type(arm, bounds) for arm in arguments if arm is not type(None))
    origin = typing.get_origin(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" if value != "" else '`""`' for value in arguments)
    if origin in (tuple, list, frozenset):
        return f"list of {_type(arguments[0], {})}"
    if origin in (Mapping, dict):
        return f"mapping of names to {_type(arguments[1], {})}"
    if dataclasses.is_dataclass(kind) and not unit:
        return "mapping, see below"
    name = unit or _NAMES.get(kind, "text")
    return name + _bounds(bounds, unit) if unit or kind in (int, float) else name


def _bounds(bounds: Mapping[str, Any], unit: str) -> str:
    minimum, maximum = bounds.get("minimum"), bounds.get("maximum")
    if maximum is not None:
        return f", {_value(minimum or 0, unit)} to {_value(maximum, unit)}"
    return f", at least {_value(minimum, unit)}" if minimum else ""


def _value(value: float, unit: str) -> str:
    return format_value(int(value) if value == int(value) else value, unit)


def _default(field: "dataclasses.Field[Any]", hint: Any) -> str:
    default = default_of(field)
    if default is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(default):
        return ""
    return "none" if default is None else f"`{format_value(default, unwrap(hint)[1])}`"
