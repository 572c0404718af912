"""Show the configuration in force as YAML, with the origin of each value. Secrets are never shown."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from hookmq.config.binding import bound_fields, is_secret_path, unwrap
from hookmq.config.diagnostics import KeyPath
from hookmq.config.model import Config
from hookmq.config.units import Rate, format_duration, format_size
from hookmq.config.yaml_document import YamlNode
from hookmq.server.settings import ListenerSettings, takes

MASK: Final = "***"
_PASSWORD_IN_URL: Final = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")


def show(config: Config, *, origins: bool = True) -> str:
    """Return `config` as YAML. With `origins`, a comment after each value names its origin: ``default``, ``FILE:LINE``,
    a variable or an option. Except for masked secrets, `loads` can read the text back."""
    nodes = config.origin.nodes if config.origin else {}
    lines = list(_lines(config, (), nodes, 0))
    width = min(60, max((len(text) for text, _ in lines), default=0)) + 2
    return "".join(
        f"{text:<{width}}# {origin}\n" if origins and origin else f"{text}\n"
        for text, origin in lines
    )


def masked(value: str) -> str:
    """Return `value` with any passwords in URLs masked."""
    return _PASSWORD_IN_URL.sub(rf"\1:{MASK}@", value)


def format_value(value: Any, unit: str = "") -> str:
    """Format one value as YAML. `unit` is ``duration``, ``size`` or empty."""
    return _inline(value, unit)


def _lines(
    value: Any, path: KeyPath, nodes: Mapping[KeyPath, YamlNode], depth: int, lead: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield each line of a mapping with its origin. `lead` replaces the indentation of the first line."""
    for key, child, unit in _entries(value):
        indent = lead or "  " * depth
        lead = ""
        here = (*path, key)
        name = _scalar(key)
        node = nodes.get(here)
        origin = _origin(node)
        secret = (node is not None and node.secret) or is_secret_path(here)
        if secret and child not in (None, ""):
            yield f"{indent}{name}: '{MASK}'", origin
        elif _is_mapping(child) and list(_entries(child)):
            yield f"{indent}{name}:", ""
            yield from _lines(child, here, nodes, depth + 1)
        elif isinstance(child, list | tuple) and any(_is_mapping(item) for item in child):
            yield f"{indent}{name}:", ""
            for index, item in enumerate(child):
                if _is_mapping(item):
                    yield from _lines(item, (*here, index), nodes, depth + 2, "  " * depth + "  - ")
                else:
                    at = nodes.get((*here, index))
                    text = f"'{MASK}'" if at is not None and at.secret else _inline(item, "")
                    yield f"{'  ' * depth}  - {text}", _origin(at)
        else:
            yield f"{indent}{name}: {_inline(child, unit, here, nodes)}", origin


def _entries(value: Any) -> Iterator[tuple[str, Any, str]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield str(key), child, ""
        return
    for field, hint in bound_fields(type(value)):
        if isinstance(value, ListenerSettings) and not takes(value.type, field.name):
            continue  # the configuration would not accept this key
        unit = unwrap(hint)[1] or next(
            (unwrap(arm)[1] for arm in getattr(hint, "__args__", ()) if unwrap(arm)[1]), ""
        )
        yield field.name, getattr(value, field.name), unit


def _is_mapping(value: Any) -> bool:
    if isinstance(value, Rate):
        return False
    return isinstance(value, Mapping) or dataclasses.is_dataclass(value)


def _origin(node: YamlNode | None) -> str:
    if node is None:
        return "default"
    origin = f", {node.origin}" if node.origin else ""
    return f"{node.place.brief}{origin}"


def _inline(
    value: Any, unit: str, path: KeyPath = (), nodes: Mapping[KeyPath, YamlNode] = {}
) -> str:
    if isinstance(value, list | tuple | frozenset | set):
        parts = []
        for index, item in enumerate(value):
            node = nodes.get((*path, index))
            parts.append(f"'{MASK}'" if node is not None and node.secret else _inline(item, unit))
        return f"[{', '.join(parts)}]"
    if _is_mapping(value):
        return "{}"
    if unit == "duration" and isinstance(value, int | float):
        return format_duration(value)
    if unit == "size" and isinstance(value, int):
        return format_size(value)
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = masked(str(value))
    # PyYAML quotes text that YAML 1.1 or 1.2 could read as another type
    dumped = yaml.safe_dump(text, width=10**6, allow_unicode=True).removesuffix("...\n").strip()
    if "\n" in dumped:
        dumped = yaml.safe_dump(text, default_style='"', width=10**6).strip()
    return dumped
