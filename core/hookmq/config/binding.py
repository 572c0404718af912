"""Bind parsed YAML to types. The binder is strict: it never guesses a value or ignores a key. It records the location
of every mistake.

Types: bool, int, float, str, Any, None, `Literal`, enums of text, `pathlib.Path`, `tuple[X, ...]`, `list[X]`,
`frozenset[X]`, `Mapping[str, X]`, unions, dataclasses, `Rate`, and `Annotated` with ``"duration"`` or ``"size"``
(seconds, bytes). A class with `model_validate` and `model_json_schema` (pydantic) validates itself.

A dataclass field's metadata may contain: `minimum` and `maximum`, which bound numbers; `nonempty`, which refuses an empty
list; `path`, which treats text as a path; ``bind: False``, which excludes the field from the configuration; and
`chosen_by`, which lets an earlier field choose the dataclass for this one. `chosen_by` is a pair of the earlier field's
name and a function that takes its value and returns the dataclass, or raises ConfigError. Give such a field the type Any.
If its key is missing, the dataclass is bound to an empty mapping.
"""

import dataclasses
import enum
import math
import os
import pathlib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from hookmq.config.diagnostics import ConfigProblems, KeyPath, nearest
from hookmq.config.secrets import is_indirect, resolve
from hookmq.config.units import (
    Rate,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)
from hookmq.config.yaml_document import YamlNode, scalar
from hookmq.model.errors import ConfigError

FAILED: Final = object()
"""The result of `ConfigBinder.bind` after it has recorded a problem."""

_SECRET_KEYS: Final = (
    "password", "passwd", "secret", "token", "passphrase", "api_key", "apikey", "auth_key", "private_key",
    "authorization", "cookie",
)  # fmt: skip
_SEQUENCES: Final[dict[Any, Any]] = {
    tuple: tuple, list: list, frozenset: frozenset, set: set, Sequence: tuple,
}  # fmt: skip
_WORDS_FOR_BOOL: Final = {
    "yes": "true", "on": "true", "y": "true", "1": "true", "no": "false", "off": "false", "n": "false", "0": "false",
}  # fmt: skip
_HIDDEN: Final = "the reason is not shown, because it may contain a value of $env or $file"
_SEEN: Final = 16
"""An error message is hidden if it contains at least this many of the first characters of a secret."""
_UNITS: Final = {
    "duration": "a duration such as 5s or 250ms",
    "size": "a size such as 64KiB or a number of bytes",
    "rate": "a rate such as 100/s or 5000/min",
}
_SCALARS: Final[dict[Any, str]] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", pathlib.Path: "a path",
    type(None): "null",
}  # fmt: skip


def is_secret_key(key: object) -> bool:
    """Return whether a key's name indicates that its value is a secret, which must never be shown."""
    name = str(key).lower().replace("-", "_")
    return any(name == word or name.endswith("_" + word) for word in _SECRET_KEYS)


def is_secret_path(path: KeyPath) -> bool:
    """Return whether the value at `path` must never be shown. That is the case if its key names a secret, or if it is a
    request header, since any header may contain an API key.
    """
    if not path:
        return False
    return is_secret_key(path[-1]) or (len(path) > 1 and path[-2] == "headers")


def is_model(kind: Any) -> bool:
    """Return whether a class validates itself, like a pydantic model."""
    return (
        isinstance(kind, type)
        and callable(getattr(kind, "model_validate", None))
        and callable(getattr(kind, "model_json_schema", None))
    )


def bound_fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the dataclass fields that the configuration may set, each with its type."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        (field, hints[field.name])
        for field in dataclasses.fields(kind)
        if field.init and not field.name.startswith("_") and field.metadata.get("bind", True)
    ]


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """Return a field's default, or `dataclasses.MISSING`."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def unwrap(kind: Any) -> tuple[Any, str]:
    """Strip `Annotated` from a type. Return the type and its unit: ``duration``, ``size``, ``rate`` or empty."""
    if typing.get_origin(kind) is typing.Annotated:
        inner, *extras = typing.get_args(kind)
        base, unit = unwrap(inner)
        found = next((extra for extra in extras if extra in ("duration", "size")), unit)
        return base, found
    return kind, "rate" if kind is Rate else ""


def is_union(kind: Any) -> bool:
    """Return whether a type is a union, written with ``|`` or as `Union`."""
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def describe(kind: Any) -> str:
    """Describe the type `kind` in words that can follow "expected" in a message."""
    kind, unit = unwrap(kind)
    if unit:
        return _UNITS[unit]
    if is_union(kind):
        return " or ".join(dict.fromkeys(describe(arm) for arm in typing.get_args(kind)))
    origin = typing.get_origin(kind)
    if origin is Literal:
        values = [_word(value) for value in typing.get_args(kind)]
        return values[0] if len(values) == 1 else "one of " + ", ".join(values)
    if origin in _SEQUENCES or kind in _SEQUENCES:
        return "a list"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return _SCALARS.get(kind, "a mapping")


def found(node: YamlNode) -> str:
    """Describe the value of `node` in words that can follow "found" in a message. The description never contains a
    secret.
    """
    value = node.value
    if node.secret:
        return f"the value of {node.origin}" if node.origin else "a secret"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value if len(value) <= 40 else value[:39] + '…'!r}"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return f"an object of type {type(value).__name__}"  # passed in by a program


class ConfigBinder:
    """Binds one configuration. `nodes` maps the path of each bound value to its node, which records the location.

    ``$env`` reads from `environ`, by default the process's environment. ``$file`` is relative to `folder`.
    """

    def __init__(
        self,
        problems: ConfigProblems,
        environ: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] = ".",
    ) -> None:
        self.problems = problems
        self.nodes: dict[KeyPath, YamlNode] = {}
        self._environ: Mapping[str, str] = os.environ if environ is None else environ
        self._folder = pathlib.Path(folder)

    def bind(
        self, node: YamlNode, kind: Any, path: KeyPath = (), bounds: Mapping[str, Any] = {}
    ) -> Any:
        """Convert `node` to a value of type `kind`, or return FAILED if there is a problem.

        Reads files that ``$file`` names.

        Raises TypeError if `kind` is not a type that a configuration can contain.
        """
        resolved = self._resolve(node, path)
        if resolved is None:
            return FAILED
        return self._bind(resolved, kind, path, bounds)

    def plain(self, node: YamlNode, path: KeyPath = (), *, as_text: bool = False) -> Any:
        """Convert `node` to plain dicts, lists and scalars; return FAILED after a problem. With `as_text`, scalars from
        outside YAML remain text."""
        resolved = self._resolve(node, path)
        if resolved is None:
            return FAILED
        value = resolved.value
        if isinstance(value, list):
            items = [self.plain(item, (*path, i), as_text=as_text) for i, item in enumerate(value)]
            return FAILED if FAILED in items else items
        if isinstance(value, dict):
            entries = {k: self.plain(v, (*path, k), as_text=as_text) for k, v in value.items()}
            return FAILED if FAILED in entries.values() else entries
        if resolved.text is not None and (as_text or resolved.secret):
            return resolved.text
        return value

    def _resolve(self, node: YamlNode, path: KeyPath) -> YamlNode | None:
        if is_indirect(node):
            resolved = resolve(node, path, self.problems, self._environ, self._folder)
            if resolved is None:
                return None
            node = resolved
        elif is_secret_path(path):
            node = dataclasses.replace(node, secret=True)
        self.nodes[path] = node
        return node

    def _wrong(self, node: YamlNode, kind: Any, path: KeyPath, hint: str = "") -> Any:
        message = f"expected {describe(kind)}, found {found(node)}"
        self.problems.add(node.place, path, message, hint)
        return FAILED

    def _bind(self, node: YamlNode, kind: Any, path: KeyPath, bounds: Mapping[str, Any]) -> Any:
        inner, unit = unwrap(kind)
        if unit:
            return self._quantity(node, unit, kind, path, bounds)
        if inner is Any or inner is object:
            return self.plain(node, path)
        if is_union(inner):
            return self._union(node, inner, path, bounds)
        origin = typing.get_origin(inner)
        if origin is Literal:
            return self._choice(node, inner, typing.get_args(inner), path)
        if origin in _SEQUENCES or inner in _SEQUENCES:
            return self._sequence(node, inner, path, bounds)
        if (origin or inner) in (Mapping, dict):
            return self._mapping(node, inner, path, bounds)
        if is_model(inner):
            return self._model(node, inner, path)
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            return self._dataclass(node, inner, path)
        if isinstance(inner, type) and issubclass(inner, enum.Enum):
            chosen = self._choice(node, inner, [member.value for member in inner], path)
            return chosen if chosen is FAILED else inner(chosen)
        return self._scalar(node, inner, path, bounds)

    def _scalar(self, node: YamlNode, kind: Any, path: KeyPath, bounds: Mapping[str, Any]) -> Any:
        value = node.value
        if kind is type(None):
            return None if value is None else self._wrong(node, kind, path)
        if kind is bool:
            if isinstance(value, bool):
                return value
            word = _WORDS_FOR_BOOL.get(str(value).lower(), "")
            return self._wrong(node, kind, path, f"write {word}" if word else "")
        if kind is str or kind is pathlib.Path:
            text = node.text if node.text is not None else value
            if isinstance(text, str):
                if kind is str:
                    return str(self._path(node, text)) if text and bounds.get("path") else text
                return self._path(node, text)
            quotable = not node.secret and isinstance(text, int | float)
            hint = f'quote it to make it text: "{_word(text)}"' if quotable else ""
            return self._wrong(node, kind, path, hint)
        if kind is int or kind is float:
            good = isinstance(value, int if kind is int else int | float)
            if isinstance(value, bool) or not good or not math.isfinite(value):
                unquoted = isinstance(value, str) and not node.secret and _is_number(value)
                hint = "remove the quotes to make it a number" if unquoted else ""
                return self._wrong(node, kind, path, hint)
            return self._bounded(node, kind(value), str, path, bounds)
        raise TypeError(f"a configuration cannot hold {kind!r} ({path})")

    def _path(self, node: YamlNode, text: str) -> pathlib.Path:
        """Return a path, relative to the configuration file's folder or, if set elsewhere, to the working folder."""
        path = pathlib.Path(text).expanduser() if text.startswith("~") else pathlib.Path(text)
        if not node.place.line or node.origin.startswith("$env"):
            return path
        return self._folder / path

    def _quantity(
        self, node: YamlNode, unit: str, kind: Any, path: KeyPath, bounds: Mapping[str, Any]
    ) -> Any:
        value = node.value
        number = (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
        try:
            if unit == "rate":
                return parse_rate(value)
            if unit == "duration":
                result: float = float(value) if number else parse_duration(value)
                return self._bounded(node, result, format_duration, path, bounds)
            size = value if number and isinstance(value, int) else parse_size(value)
            return self._bounded(node, size, format_size, path, bounds)
        except (ValueError, TypeError, AttributeError):
            return self._wrong(node, kind, path)

    def _bounded(
        self, node: YamlNode, value: Any, show: Any, path: KeyPath, bounds: Mapping[str, Any]
    ) -> Any:
        minimum, maximum = bounds.get("minimum"), bounds.get("maximum")
        if minimum is not None and value < minimum:
            expected = f"at least {show(minimum)}"
        elif maximum is not None and value > maximum:
            expected = f"at most {show(maximum)}"
        else:
            return value
        what = found(node) if node.secret else show(value)
        self.problems.add(node.place, path, f"expected {expected}, found {what}")
        return FAILED

    def _choice(self, node: YamlNode, kind: Any, values: Sequence[Any], path: KeyPath) -> Any:
        for value in values:
            if value == node.value and type(value) is type(node.value):
                return value
            if isinstance(value, str) and node.text == value:
                return value
        hint = ""
        if isinstance(node.value, str) and not node.secret:
            hint = nearest(node.value, [value for value in values if isinstance(value, str)])
        return self._wrong(node, kind, path, hint if hint.startswith("did") else "")

    def _union(self, node: YamlNode, kind: Any, path: KeyPath, bounds: Mapping[str, Any]) -> Any:
        arms = typing.get_args(kind)
        if node.value is None and type(None) in arms:
            return None
        arms = tuple(arm for arm in arms if arm is not type(None))
        if len(arms) == 1:
            return self._bind(node, arms[0], path, bounds)
        deepest: list[ConfigError] = []
        for arm in arms:
            trial = ConfigBinder(ConfigProblems(), self._environ, self._folder)
            value = trial._bind(node, arm, path, bounds)
            if value is not FAILED and not trial.problems.errors:
                self.nodes.update(trial.nodes)
                return value
            # the problems of an arm with the right shape are more helpful than "no arm fits"
            if isinstance(node.value, dict) and describe(arm) == "a mapping":
                deepest = deepest or trial.problems.errors
        if deepest:
            self.problems.errors += deepest
            return FAILED
        return self._wrong(node, kind, path)

    def _sequence(self, node: YamlNode, kind: Any, path: KeyPath, bounds: Mapping[str, Any]) -> Any:
        make = _SEQUENCES[typing.get_origin(kind) or kind]
        if bounds.get("nonempty") and node.value in (None, []):
            hint = "remove the key to restrict nothing"
            self.problems.add(node.place, path, "expected at least one entry", hint)
            return FAILED
        if node.value is None:
            return make()
        if not isinstance(node.value, list):
            return self._wrong(node, kind, path, "write a list of one as [x]")
        arguments = [part for part in typing.get_args(kind) if part is not Ellipsis] or [Any]
        if len(arguments) > 1 and len(arguments) != len(node.value):
            message = f"expected {len(arguments)} values, found {len(node.value)}"
            self.problems.add(node.place, path, message)
            return FAILED
        if len(arguments) == 1:
            arguments *= len(node.value)
        items = [
            self.bind(item, argument, (*path, index), bounds)
            for index, (item, argument) in enumerate(zip(node.value, arguments, strict=True))
        ]
        return FAILED if FAILED in items else make(items)

    def _mapping(self, node: YamlNode, kind: Any, path: KeyPath, bounds: Mapping[str, Any]) -> Any:
        if node.value is not None and not isinstance(node.value, dict):
            return self._wrong(node, kind, path)
        arguments = typing.get_args(kind) or (str, Any)
        entries: dict[str, YamlNode] = node.value or {}
        values = {
            key: self.bind(child, arguments[1], (*path, key), bounds)
            for key, child in entries.items()
        }
        if arguments[0] is not str:
            for key in entries:
                key_node = YamlNode(key, node.keys.get(key, node.place), text=key)
                if self._bind(key_node, arguments[0], (*path, key), {}) is FAILED:
                    return FAILED
        if FAILED in values.values():
            return FAILED
        plain = (typing.get_origin(kind) or kind) is dict
        return values if plain else types.MappingProxyType(values)

    def _dataclass(self, node: YamlNode, kind: type, path: KeyPath) -> Any:
        if node.value is not None and not isinstance(node.value, dict):
            return self._wrong(node, kind, path)
        entries: dict[str, YamlNode] = node.value or {}
        fields = bound_fields(kind)
        names = [field.name for field, _ in fields]
        good = not self._unknown(node, names, path)
        values: dict[str, Any] = {}
        for field, hint in fields:
            child = entries.get(field.name)
            if chosen_by := field.metadata.get("chosen_by"):
                hint = self._chosen(node, chosen_by, values, path)
                if hint is FAILED:
                    good = False
                    continue
                child = child or YamlNode({}, node.place)
            if child is not None:
                value = self.bind(child, hint, (*path, field.name), field.metadata)
                good = good and value is not FAILED
                values[field.name] = value
            elif field.default is field.default_factory is dataclasses.MISSING:
                self.problems.add(node.place, (*path, field.name), "this key is missing")
                good = False
        if not good:
            return FAILED
        try:
            return kind(**values)
        except (ValueError, ConfigError) as error:
            self._refused(node, names, path, error)
            return FAILED

    def _chosen(
        self, node: YamlNode, chosen_by: tuple[str, Any], values: Mapping[str, Any], path: KeyPath
    ) -> Any:
        """Return the type for a field whose type depends on another field, or FAILED."""
        key, find = chosen_by
        value = values.get(key, FAILED)
        if value is FAILED:
            return FAILED
        try:
            return find(value)
        except ConfigError as error:
            self.problems.add(node.at((key,)).place, (*path, key), error.message, error.hint)
            return FAILED

    def _unknown(self, node: YamlNode, names: Sequence[str], path: KeyPath) -> bool:
        """Record every key that is not among `names`, and return whether there are any."""
        unknown = [key for key in node.value or {} if key not in names]
        for key in unknown:
            place = node.keys.get(key, node.place)
            self.problems.add(place, (*path, key), "unknown key", nearest(key, names))
        return bool(unknown)

    def _refused(
        self, node: YamlNode, names: Sequence[str], path: KeyPath, error: Exception
    ) -> None:
        """Record that a class rejected the values passed to it. A ``ValueError("KEY: why")`` is recorded at the location
        of KEY.
        """
        message = error.message if isinstance(error, ConfigError) else str(error)
        hint = error.hint if isinstance(error, ConfigError) else ""
        key, _, rest = message.partition(": ")
        if rest and key in names:
            place, path = node.at((key,)).place, (*path, key)
            if self._reads_outside(path) or self._reveals(f"{message} {hint}"):
                rest, hint = "invalid value", _HIDDEN
            elif is_secret_key(key):
                rest, hint = "invalid value", ""
            self.problems.add(place, path, rest, hint)
        elif self._reads_outside(path):
            self.problems.add(node.place, path, "invalid values", _HIDDEN)
        else:
            self.problems.add(node.place, path, message or "invalid values", hint)

    def _reads_outside(self, path: KeyPath) -> bool:
        """Return whether a value at or below `path` comes from ``$env`` or ``$file``. An error for it might contain
        this value, even in another form."""
        return any(
            node.secret and node.origin and at[: len(path)] == path
            for at, node in self.nodes.items()
        )

    def _reveals(self, message: str) -> bool:
        """Return whether `message` contains the beginning of any value from ``$env`` or ``$file``, even one that belongs
        to a different key.
        """
        beginnings = (
            node.text.strip()[:_SEEN] for node in self.nodes.values() if node.secret and node.text
        )
        return any(one in message or repr(one)[1:-1] in message for one in beginnings)

    def _model(self, node: YamlNode, kind: Any, path: KeyPath) -> Any:
        if node.value is not None and not isinstance(node.value, dict):
            return self._wrong(node, kind, path)
        plain = self.plain(node, path, as_text=True)
        if plain is FAILED:
            return FAILED
        schema = kind.model_json_schema()
        names = list(schema.get("properties", {}))
        if not schema.get("additionalProperties", False) and self._unknown(node, names, path):
            return FAILED
        try:
            return kind.model_validate(plain or {})
        except ValueError as error:
            details = getattr(error, "errors", None)
            for detail in details() if callable(details) else [{"loc": (), "msg": str(error)}]:
                location = tuple(detail["loc"])
                place = node.at(location).place
                message = str(detail["msg"])
                hidden = self._reads_outside((*path, *location)) or self._reveals(message)
                message = "invalid value" if hidden else message
                self.problems.add(place, (*path, *location), message, _HIDDEN if hidden else "")
            return FAILED


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _is_number(text: str) -> bool:
    return isinstance(scalar(text), int | float) and not isinstance(scalar(text), bool)
