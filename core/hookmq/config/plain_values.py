"""Bind values that do not come from the configuration, such as those in a request, to settings dataclasses."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from hookmq.config.binding import ConfigBinder
from hookmq.config.diagnostics import NOWHERE, ConfigProblems
from hookmq.config.secrets import is_indirect
from hookmq.config.yaml_document import YamlNode
from hookmq.model.errors import ConfigError

T = TypeVar("T")
_MAX_DEPTH: Final = 16


def bind_values(kind: type[T], values: Mapping[str, Any]) -> T:
    """Bind `values` to the dataclass `kind`, which may be part of a plugin's `Config`, and return the resulting object.

    The values are parsed JSON or YAML, and are checked as in a configuration file: ``"64KiB"`` becomes a number, and a
    nested mapping becomes a dataclass. ``$env`` and ``$file`` are refused, so the values may come from a client.

    Raises one ConfigError that lists every mistake with its key.
    """
    problems = ConfigProblems()
    bound = ConfigBinder(problems, environ={}).bind(_node(values, _MAX_DEPTH), kind)
    problems.check()
    result: T = bound
    return result


def _node(value: Any, depth: int) -> YamlNode:
    if not depth:
        raise ConfigError(f"the values are nested more than {_MAX_DEPTH} levels deep")
    node = YamlNode(value, NOWHERE)
    if isinstance(value, Mapping):
        node = YamlNode({str(key): _node(one, depth - 1) for key, one in value.items()}, NOWHERE)
    elif isinstance(value, list | tuple):
        node = YamlNode([_node(one, depth - 1) for one in value], NOWHERE)
    if is_indirect(node):
        raise ConfigError("$env and $file are only allowed in the configuration")
    return node
