"""The configuration in force, as YAML, with where each value came from; secrets are never shown."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from hookmq.config.binder import bound_fields, is_secret_key, unwrap
from hookmq.config.document import Node
from hookmq.config.model import Config
from hookmq.config.problems import Path
from hookmq.config.units import Rate, format_duration, format_size
from hookmq.server.settings import ListenerSettings, takes

MASK: Final = "***"
_PASSWORD_IN_URL: Final = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")


def show(config: Config, *, origins: bool = True) -> str:
    """`config` as YAML. Each value has its origin behind it when `origins`: ``default``, ``FILE:LINE``, the variable or
    the option. Without them the text can be read back, but for what is masked."""
    nodes = config.origin.nodes if config.origin else {}
    lines = list(_lines(config, (), nodes, 0))
    width = min(60, max((len(text) for text, _ in lines), default=0)) + 2
    return "".join(
        f"{text:<{width}}# {origin}\n" if origins and origin else f"{text}\n"
        for text, origin in lines
    )


def masked(value: str) -> str:
    """`value` without the password of a URL in it."""
    return _PASSWORD_IN_URL.sub(rf"\1:{MASK}@", value)


def format_value(value: Any, unit: str = "") -> str:
    """One value as YAML; `unit` is ``duration``, ``size`` or nothing."""
    return _inline(value, unit)


def _lines(
    value: Any, path: Path, nodes: Mapping[Path, Node], depth: int, lead: str = ""
) -> Iterator[tuple[str, str]]:
    """The lines of a mapping; `lead` stands before the first, instead of its indentation."""
    for key, child, unit in _entries(value):
        indent = lead or "  " * depth
        lead = ""
        here = (*path, key)
        name = _scalar(key)
        node = nodes.get(here)
        origin = _origin(node)
        secret = (node is not None and node.secret) or is_secret_key(key)
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
            continue  # it has none, and the key would be refused
        unit = unwrap(hint)[1] or next(
            (unwrap(arm)[1] for arm in getattr(hint, "__args__", ()) if unwrap(arm)[1]), ""
        )
        yield field.name, getattr(value, field.name), unit


def _is_mapping(value: Any) -> bool:
    if isinstance(value, Rate):
        return False
    return isinstance(value, Mapping) or dataclasses.is_dataclass(value)


def _origin(node: Node | None) -> str:
    if node is None:
        return "default"
    origin = f", {node.origin}" if node.origin else ""
    return f"{node.place.brief}{origin}"


def _inline(value: Any, unit: str, path: Path = (), nodes: Mapping[Path, Node] = {}) -> str:
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
    # PyYAML quotes wherever YAML, of either version, could read anything but this text
    dumped = yaml.safe_dump(text, width=10**6, allow_unicode=True).removesuffix("...\n").strip()
    if "\n" in dumped:
        dumped = yaml.safe_dump(text, default_style='"', width=10**6).strip()
    return dumped
