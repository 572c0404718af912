"""Transform decoded values: steps that select, rename, cast and set fields. A field is a path such as ``a.b``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hookmq.plugin import ConfigError, setting
from hookmq_toolkit.templates import at_path

from hookmq_sinks.record import Record
from hookmq_sinks.record_template import RecordError, RecordTemplate

CastType = Literal["int", "float", "text", "bool"]
Step = Callable[[Record, dict[str, Any]], dict[str, Any]]
_WORDS: Final = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True)
class TransformStep:
    """A step of a transform. It has exactly one key."""

    select: tuple[str, ...] = setting(
        (), "keep only these fields; a field that is missing stays missing"
    )
    drop: tuple[str, ...] = setting((), "remove these fields")
    rename: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "new names of fields, by their old names"}
    )
    cast: Mapping[str, CastType] = field(
        default_factory=dict, metadata={"help": "types of fields: int, float, text or bool"}
    )
    set: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "values of fields; texts are templates"}
    )

    def __post_init__(self) -> None:
        given = [
            name for name in ("select", "drop", "rename", "cast", "set") if getattr(self, name)
        ]
        if len(given) != 1:
            raise ConfigError(
                f"a step has exactly one of select, drop, rename, cast and set, found {len(given)}"
            )
        for name in (
            *self.select,
            *self.drop,
            *self.rename,
            *self.rename.values(),
            *self.cast,
            *self.set,
        ):
            if not all(name.split(".")):
                raise ConfigError(f"{given[0]}: {name!r} is not a field")
        for name, value in self.set.items():
            _templates(value, f"set.{name}")


def compile_steps(steps: tuple[TransformStep, ...]) -> Callable[[Record], None] | None:
    """Return a function that transforms a record's value in place, or None if there are no steps.

    The function raises RecordError if the value is not a mapping, or if a cast fails.
    """
    if not steps:
        return None
    made = [_compile(one) for one in steps]

    def transform(record: Record) -> None:
        value = record.value
        if not isinstance(value, dict):
            raise RecordError(f"cannot transform a {_kind(value)}; expected a mapping")
        for step in made:
            record.value = value = step(record, value)
        record.changed = True

    return transform


def _kind(value: object) -> str:
    if isinstance(value, bytes):
        return "payload that is not decoded"
    return "text" if isinstance(value, str) else "list" if isinstance(value, list) else "scalar"


def _compile(step: TransformStep) -> Step:
    if step.select:
        paths = [one.split(".") for one in step.select]

        def select(record: Record, value: dict[str, Any]) -> dict[str, Any]:
            made: dict[str, Any] = {}
            for path in paths:
                if (found := at_path(value, path)) is not None:
                    _put(made, path, found)
            return made

        return select
    if step.drop:
        dropped = [one.split(".") for one in step.drop]

        def drop(record: Record, value: dict[str, Any]) -> dict[str, Any]:
            for path in dropped:
                _take(value, path)
            return value

        return drop
    if step.rename:
        pairs = [(old.split("."), new.split(".")) for old, new in step.rename.items()]

        def rename(record: Record, value: dict[str, Any]) -> dict[str, Any]:
            taken = [(new, _take(value, old)) for old, new in pairs]
            for new, found in taken:
                if found is not _MISSING:
                    _put(value, new, found)
            return value

        return rename
    if step.cast:
        casts = [(name, name.split("."), _CASTS[kind]) for name, kind in step.cast.items()]

        def cast(record: Record, value: dict[str, Any]) -> dict[str, Any]:
            for name, path, change in casts:
                if (found := at_path(value, path)) is not None:
                    try:
                        _put(value, path, change(found))
                    except (ValueError, TypeError, OverflowError) as error:
                        raise RecordError(f"cannot cast {name}: {error}") from None
            return value

        return cast
    fields = [(name.split("."), _templates(one, name)) for name, one in step.set.items()]

    def set_fields(record: Record, value: dict[str, Any]) -> dict[str, Any]:
        for path, make in fields:
            _put(value, path, make(record))
        return value

    return set_fields


def _templates(value: Any, key: str) -> Callable[[Record], Any]:
    """Return a function that returns `value` with its templates filled in. Raises ConfigError."""
    if isinstance(value, str):
        return RecordTemplate(value, key).value
    if isinstance(value, Mapping):
        items = {name: _templates(one, f"{key}.{name}") for name, one in value.items()}
        return lambda record: {name: make(record) for name, make in items.items()}
    if isinstance(value, list | tuple):
        parts = [_templates(one, key) for one in value]
        return lambda record: [make(record) for make in parts]
    return lambda record: value


_MISSING: Final = object()


def _put(value: dict[str, Any], path: list[str], found: Any) -> None:
    """Set a field, creating missing mappings on its path. Raises RecordError if another value is in the way."""
    for step in path[:-1]:
        value = value.setdefault(step, {})
        if not isinstance(value, dict):
            raise RecordError(f"cannot set {'.'.join(path)}: {step} is not a mapping")
    value[path[-1]] = found


def _take(value: Any, path: list[str]) -> Any:
    """Remove a field and return its value, or `_MISSING`."""
    value = at_path(value, path[:-1])
    return value.pop(path[-1], _MISSING) if isinstance(value, dict) else _MISSING


def _to_int(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is not a whole number")
    if isinstance(value, list | dict):
        raise ValueError("it is not a number")
    return int(value)


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise ValueError(f"{word[:40]!r} is not true or false")
    return _WORDS[word]


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    from hookmq_sinks.record import to_bytes

    return to_bytes(value).decode()


_CASTS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _to_int, "float": float, "text": _to_text, "bool": _to_bool,
}  # fmt: skip
