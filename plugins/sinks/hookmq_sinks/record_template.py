"""Templates that are filled in from records, such as ``plant/${topic.2}`` or ``${payload.reading.celsius}``.

| placeholder | value |
|---|---|
| ``${topic}``, ``${topic.N}`` | the topic, and its N-th level; ``${topic.-1}`` is the last level |
| ``${payload}``, ``${payload.a.b}`` | the decoded value, and a field of it; ``a.0`` is a list's first item |
| ``${property.NAME}`` | a user property |
| ``${client_id}``, ``${qos}``, ``${content_type}``, ``${response_topic}`` | that field of the PUBLISH |
| ``${timestamp}`` | when the broker received the message, such as ``2026-01-31T12:00:00.123Z`` |
| ``${timestamp.s}``, ``.ms``, ``.us``, ``.ns`` | the same time as a whole number since 1970 |
| ``${time.FORMAT}`` | the same time, formatted by strftime in UTC: ``${time.%Y/%m/%d}`` |
| ``${id}``, ``${offset}``, ``${key}`` | the record's id, offset and key |
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final

from hookmq.plugin import ConfigError, HookMQError
from hookmq_toolkit.templates import Template, at_path, text_of

from hookmq_sinks.record import Record, json_default, to_bytes

Lookup = Callable[[Record], Any]
_KNOWN: Final = (
    "${topic}, ${topic.N}, ${payload}, ${payload.a.b}, ${property.NAME}, ${client_id}, ${qos}, ${content_type}, "
    "${response_topic}, ${timestamp}, ${timestamp.ms}, ${time.FORMAT}, ${id}, ${offset}, ${key}"
)
_FIELDS: Final = (
    "topic",
    "client_id",
    "qos",
    "content_type",
    "response_topic",
    "id",
    "offset",
    "key",
)
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LEVEL: Final = re.compile(r"-?[1-9][0-9]{0,3}")


class RecordError(HookMQError):
    """A record cannot be written, for example because a placeholder has no value. See `hookmq_sinks.driver.make_each`."""


class RecordTemplate:
    """A parsed template. Raises a ConfigError that names `setting` if the text contains an unknown placeholder."""

    __slots__ = ("_lookups", "_only", "_template", "text")

    def __init__(self, text: str, setting: str = "template") -> None:
        self.text = text
        self._template = Template(text)
        if self._template.unclosed:
            raise ConfigError(f"{setting}: {text!r} contains a '${{' that is not closed")
        self._lookups = {name: lookup(name, setting) for name in self._template.names}
        only = self._template.only
        self._only = None if only is None else self._lookups[only]

    def __repr__(self) -> str:
        return f"RecordTemplate({self.text!r})"

    @property
    def constant(self) -> bool:
        """Whether the text contains no placeholders."""
        return not self._lookups

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the placeholders, in order."""
        return self._template.names

    def fill(self, record: Record) -> str:
        """Return the text with all placeholders filled in. Raises RecordError if the record lacks a value."""
        if not self._lookups:
            return self.text
        filled: str = self._template.fill(lambda name: _text(self._find(record, name)))
        return filled

    def value(self, record: Record) -> Any:
        """Return the placeholder's value with its original type if the text is a single placeholder. Otherwise, return
        the filled-in text. Raises RecordError if the record lacks a value.
        """
        if self._only is None:
            return self.fill(record)
        return self._find(record, self.names[0])

    def optional(self, record: Record) -> Any:
        """Return the same as `value`, but None if the record lacks a value."""
        if self._only is not None:
            return self._only(record)
        return (
            None
            if any(one(record) is None for one in self._lookups.values())
            else self.fill(record)
        )

    def lookup(self, name: str) -> Lookup:
        """Return the function that finds the value of a placeholder."""
        return self._lookups[name]

    def _find(self, record: Record, name: str) -> Any:
        found = self._lookups[name](record)
        if found is None:
            raise RecordError(f"no value for ${{{name}}}")
        return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise RecordError("the payload is not UTF-8 text") from None
    if isinstance(value, dict | list):
        return to_bytes(value).decode()
    if isinstance(value, bool | int | float):
        return text_of(value)
    return str(json_default(value))


def lookup(name: str, setting: str) -> Lookup:
    """Return a function that finds a placeholder's value in a record. The function returns None if the record has no
    such value. Raises ConfigError if the name is unknown.
    """
    kind, _, rest = name.partition(".")
    found: Lookup | None = None
    if name in _FIELDS:
        found = _field(name)
    elif name == "payload":
        found = _field("value")
    elif kind == "payload" and rest and all(rest.split(".")):
        found = _path(rest.split("."))
    elif kind == "topic" and _LEVEL.fullmatch(rest):
        found = _level(int(rest))
    elif kind == "property" and rest:
        found = _user_property(rest)
    elif kind == "time" and rest:
        found = lambda record: _time(record).strftime(rest)  # noqa: E731
    elif name == "timestamp":
        found = _iso
    elif kind == "timestamp" and rest in _UNITS:
        found = _number(_UNITS[rest])
    if found is None:
        raise ConfigError(f"{setting}: unknown placeholder ${{{name}}}", hint=f"known: {_KNOWN}")
    return found


def _field(name: str) -> Lookup:
    return lambda record: getattr(record, name)


def _path(steps: list[str]) -> Lookup:
    def find(record: Record) -> Any:
        return at_path(record.value, steps)

    return find


def _level(number: int) -> Lookup:
    def find(record: Record) -> str | None:
        levels = record.topic.split("/")
        if abs(number) > len(levels):
            return None
        return levels[number - 1 if number > 0 else number]

    return find


def _user_property(name: str) -> Lookup:
    return lambda record: next(
        (value for key, value in record.user_properties if key == name), None
    )


def _time(record: Record) -> datetime:
    return datetime.fromtimestamp(record.received_at, UTC)


def _iso(record: Record) -> str:
    return _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(unit: int) -> Lookup:
    # Microseconds are exact in a float until the year 2255.
    return lambda record: round(record.received_at * 1_000_000) * unit // 1_000_000


def template_setting(default: Any = MISSING, help: str = "") -> Any:
    """Return a dataclass field that holds templates: a single text, or a list or mapping of texts.

    The engine checks their placeholders. If there is a sample, it checks their values too. Without a default, the
    setting is required.
    """
    metadata = {"help": help, "template": True}
    if isinstance(default, dict | list):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def templates_of(settings: Any, path: str = "") -> Iterator[tuple[str, RecordTemplate]]:
    """Yield each template in a dataclass of settings, with its key. Raises ConfigError."""
    for one in fields(settings):
        key, value = f"{path}{one.name}", getattr(settings, one.name)
        if one.metadata.get("template"):
            yield from _templates_in(value, key)
        elif is_dataclass(value):
            yield from templates_of(value, f"{key}.")
        elif isinstance(value, tuple | list):
            for number, item in enumerate(value):
                if is_dataclass(item):
                    yield from templates_of(item, f"{key}.{number}.")


def _templates_in(value: Any, key: str) -> Iterator[tuple[str, RecordTemplate]]:
    if isinstance(value, str):
        yield key, RecordTemplate(value, key)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _templates_in(item, f"{key}.{name}")
    elif isinstance(value, tuple | list):
        for number, item in enumerate(value):
            yield from _templates_in(item, f"{key}.{number}")
