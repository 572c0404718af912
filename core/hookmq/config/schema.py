"""Generate the configuration's JSON Schema for editors and CI, including the settings of all installed plugins."""

import dataclasses
import enum
import pathlib
import typing
from collections.abc import Mapping
from typing import Any, Final, Literal

from hookmq.config.binding import bound_fields, default_of, is_model, is_union, unwrap
from hookmq.config.model import Config
from hookmq.config.units import DURATION
from hookmq.hooks.specs import SPECS
from hookmq.plugin import Plugin

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DURATION: Final = rf"^\s*(\d+(\.\d+)?\s*({'|'.join(DURATION)})\s*)+$"
_SIZE: Final = r"^\s*\d+(\.\d+)?\s*([kKmMgG]?[iI]?[bB])?\s*$"
_UNITS: Final[dict[str, dict[str, Any]]] = {
    "duration": {
        "anyOf": [
            {"type": "number", "description": "seconds"},
            {"type": "string", "pattern": _DURATION},
        ]
    },
    "size": {
        "anyOf": [{"type": "integer", "description": "bytes"}, {"type": "string", "pattern": _SIZE}]
    },
    "rate": {"type": "string", "pattern": r"^.+/.+$", "examples": ["100/s", "5000/min"]},
}
_SCALARS: Final[dict[Any, dict[str, Any]]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    pathlib.Path: {"type": "string"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
}
_INDIRECT: Final[dict[str, Any]] = {
    "description": "a value from the environment or from a file",
    "anyOf": [
        {
            "type": "object",
            "properties": {kind: {"type": "string", "minLength": 1}, "default": {}},
            "required": [kind],
            "additionalProperties": False,
        }
        for kind in ("$env", "$file")
    ],
}


def schema(plugins: Mapping[str, type[Plugin]] | None = None) -> dict[str, Any]:
    """Return the schema of the whole configuration, including the ``config:`` of each class in `plugins`, by name."""
    definitions = _definitions()
    root = _dataclass(Config, definitions)
    entry = definitions["PluginEntry"]
    entry["properties"]["hooks"]["propertyNames"] = {"enum": list(SPECS)}
    entry["required"] = ["use"]
    rules = []
    for name, kind in sorted((plugins or {}).items()):
        key = f"plugin_{name}"
        definitions[key] = of_plugin(name, kind)
        condition = {"properties": {"use": {"const": name}}, "required": ["use"]}
        then = {"properties": {"config": {"$ref": f"#/$defs/{key}"}}}
        rules.append({"if": condition, "then": then})
    if rules:
        entry["allOf"] = rules
        entry["properties"]["use"]["examples"] = sorted(plugins or {})
    return {
        "$schema": DIALECT,
        "title": "HookMQ",
        "description": "The configuration of a HookMQ broker",
        **root,
        "$defs": definitions,
    }


def _definitions() -> dict[str, Any]:
    return {"indirect": _INDIRECT, **{name: dict(unit) for name, unit in _UNITS.items()}}


def of_plugin(name: str, kind: type[Plugin]) -> dict[str, Any]:
    """Return the schema of a plugin's ``config:``. Because of its ``$id``, references resolve within this schema."""
    base: dict[str, Any] = {"$id": f"hookmq:plugin:{name}"}
    if kind.Config is None:
        return {**base, "type": "object", "maxProperties": 0}
    if is_model(kind.Config):
        return {**base, **kind.Config.model_json_schema()}
    definitions = _definitions()
    return {**base, **_dataclass(kind.Config, definitions), "$defs": definitions}


def _dataclass(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    for field, hint in bound_fields(kind):
        entry = _property(hint, field.metadata, definitions)
        if "help" in field.metadata:
            entry["description"] = field.metadata["help"]
        default = default_of(field)
        if default is dataclasses.MISSING:
            required.append(field.name)
        elif not dataclasses.is_dataclass(default):
            entry["default"] = _plain(default)
        properties[field.name] = entry
    result = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**result, "required": required} if required else result


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(child) for child in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _property(hint: Any, bounds: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema: a value of its type, or an indirection."""
    plain = _type(hint, bounds, definitions)
    whole = plain.get("type") in ("object", "array") or "$ref" in plain
    unit = plain.get("$ref", "").removeprefix("#/$defs/") in _UNITS
    if not plain or (whole and not unit):
        return plain
    return {"anyOf": [plain, {"$ref": "#/$defs/indirect"}]}


def _type(hint: Any, bounds: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    kind, unit = unwrap(hint)
    if unit:
        return {"$ref": f"#/$defs/{unit}"}
    if is_union(kind):
        arms = [_type(arm, bounds, definitions) for arm in typing.get_args(kind)]
        return {"anyOf": arms}
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    base = origin or kind
    if base in (tuple, list, set, frozenset):
        items = [argument for argument in arguments if argument is not Ellipsis]
        if len(items) > 1:
            parts = [_type(item, bounds, definitions) for item in items]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "items": False}
        inner = _property(items[0], bounds, definitions) if items else {}
        least = {"minItems": 1} if bounds.get("nonempty") else {}
        return {"type": "array", "items": inner, **least}
    if base in (Mapping, dict):
        inner = _property(arguments[1], bounds, definitions) if arguments else {}
        return {"type": "object", "additionalProperties": inner}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if is_model(kind):
        found: dict[str, Any] = kind.model_json_schema()
        return found
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # a placeholder, for a class that contains itself
            definitions[kind.__name__] = _dataclass(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    result = dict(_SCALARS.get(kind, {}))
    if result.get("type") in ("integer", "number"):
        for key in ("minimum", "maximum"):
            if bounds.get(key) is not None:
                result[key] = bounds[key]
    return result


def installed_plugins() -> tuple[dict[str, type[Plugin]], list[str]]:
    """Return the classes of all installed plugins by name, and the errors of those that cannot be imported."""
    from hookmq.hooks.discovery import installed, load
    from hookmq.model.errors import PluginError

    found: dict[str, type[Plugin]] = {}
    failed: list[str] = []
    for one in installed():
        try:
            found[one.name] = load(one)
        except PluginError as error:
            failed.append(str(error))
    return found, failed
