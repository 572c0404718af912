"""The fields of requests: their validation, and their JSON schemas for the OpenAPI document."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from hookmq.mqtt_api import validate_filter, validate_topic
from hookmq.plugin import ProtocolError

from hookmq_admin.errors import ApiError

Kind = Literal["string", "integer", "number", "boolean", "map", "list", "object"]
MAX_TEXT: Final = 65_535
"""Maximum length of a string in characters, unless a field has a lower limit."""
MAX_PAIRS: Final = 64
"""Maximum number of entries in a map."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a query or a JSON body.

    For a string, `minimum` and `maximum` limit its length. `check` raises ValueError or ProtocolError for an invalid
    value. A ``map`` is an object of strings. A ``list`` has at most `maximum` values of `items`. An ``object`` has
    `fields`; missing and null fields are left out. The value of a `secret` is never shown or recorded.
    """

    kind: Kind
    help: str
    required: bool = False
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], object] | None = None
    items: "Field | None" = None
    fields: "Mapping[str, Field] | None" = None
    secret: bool = False

    def from_text(self, name: str, text: str) -> Any:
        """Parse the text of a query parameter and return its value. Raises ApiError."""
        if self.kind == "string":
            return self.parse(name, text)
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise ApiError(400, f"expected true or false, found {_shown(text)}", name)
            return text == "true"
        try:
            number = int(text) if self.kind == "integer" else float(text)
        except ValueError:
            raise ApiError(400, f"expected a number, found {_shown(text)}", name) from None
        return self.parse(name, number)

    def parse(self, name: str, value: Any) -> Any:
        """Return `value` if it is valid. Raises ApiError."""
        if not _is(self.kind, value):
            raise ApiError(
                400, f"expected {_WANTED.get(self.kind, self.kind)}, found {_kind(value)}", name
            )
        if self.items is not None:
            return self._parse_items(self.items, name, value)
        if self.fields is not None:
            return _parse_fields(self.fields, value, f"{name}.")
        texts = [value] if isinstance(value, str) else []
        if self.kind == "map":
            if len(value) > MAX_PAIRS:
                raise ApiError(400, f"expected at most {MAX_PAIRS} entries", name)
            texts = [*value, *value.values()]
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ApiError(400, "the text is not valid Unicode", name) from None
        if self.choices and value not in self.choices:
            known = ", ".join(self.choices)
            raise ApiError(400, f"expected one of {known}, found {_shown(value)}", name)
        self._check_size(name, value)
        if self.check is not None:
            try:
                self.check(value)
            except ProtocolError as error:
                raise ApiError(400, error.detail, name) from None
            except ValueError as error:
                raise ApiError(400, str(error), name) from None
        return value

    def _parse_items(self, items: "Field", name: str, value: list[Any]) -> list[Any]:
        if self.maximum is not None and len(value) > self.maximum:
            raise ApiError(400, f"expected at most {self.maximum:g} items", name)
        if self.minimum is not None and len(value) < self.minimum:
            raise ApiError(400, f"expected at least {self.minimum:g} items", name)
        return [items.parse(f"{name}[{index}]", one) for index, one in enumerate(value)]

    def _check_size(self, name: str, value: Any) -> None:
        if isinstance(value, bool | dict):
            return
        most = self.maximum
        what = ""
        if isinstance(value, str):
            most = MAX_TEXT if most is None else most
            what = "characters"
            value = len(value)
        if self.minimum is not None and value < self.minimum:
            raise ApiError(400, f"expected at least {self.minimum:g} {what}".rstrip(), name)
        if most is not None and value > most:
            raise ApiError(400, f"expected at most {most:g} {what}".rstrip(), name)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        if self.kind == "map":
            return {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "maxProperties": MAX_PAIRS,
                "description": self.help,
            }
        if self.items is not None:
            bounds = {"minItems": self.minimum, "maxItems": self.maximum}
            return {
                "type": "array",
                "items": self.items.schema(),
                "description": self.help,
                **{name: limit for name, limit in bounds.items() if limit is not None},
            }
        if self.fields is not None:
            return {**schema_of(self.fields), "description": self.help}
        found: dict[str, Any] = {"type": self.kind, "description": self.help}
        if self.choices:
            found["enum"] = list(self.choices)
        names = ("minLength", "maxLength") if self.kind == "string" else ("minimum", "maximum")
        limits = zip(names, (self.minimum, self.maximum), strict=True)
        found |= {name: limit for name, limit in limits if limit is not None}
        if self.default is not None:
            found["default"] = self.default
        return found


Fields = Mapping[str, Field]
_WANTED: Final = {"map": "object of strings", "list": "array"}


def schema_of(fields: Fields) -> dict[str, Any]:
    """Return the JSON schema of an object with these fields."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: field.schema() for name, field in fields.items()},
        "additionalProperties": False,
    }
    required = [name for name, field in fields.items() if field.required]
    if required:
        schema["required"] = required
    return schema


def parse_query(fields: Fields, query: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of all fields from a query's parameters. Raises ApiError."""
    found: dict[str, Any] = {}
    for name, text in query:
        if name not in fields:
            raise ApiError(400, f"unknown parameter; expected {_names(fields)}", name[:80])
        if name in found:
            raise ApiError(400, "the parameter is given twice", name)
        found[name] = fields[name].from_text(name, text)
    return _complete(fields, found)


def parse_body(fields: Fields, body: object) -> dict[str, Any]:
    """Return the values of all fields from a JSON body. Raises ApiError."""
    if not isinstance(body, dict):
        raise ApiError(400, f"expected a JSON object, found {_kind(body)}")
    return _complete(fields, _parse_fields(fields, body, ""))


def _parse_fields(fields: Fields, given: dict[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in fields:
            raise ApiError(400, f"unknown field; expected {_names(fields)}", where + name[:80])
        if value is not None:
            found[name] = fields[name].parse(where + name, value)
    if where:  # a part of the body; `_complete` does this for the whole
        for name, field in fields.items():
            if field.required and name not in found:
                raise ApiError(400, "the field is missing", where + name)
    return found


def _complete(fields: Fields, found: dict[str, Any]) -> dict[str, Any]:
    for name, field in fields.items():
        if field.required and name not in found:
            raise ApiError(400, "the field is missing", name)
    return {name: found.get(name, field.default) for name, field in fields.items()}


def _names(fields: Fields) -> str:
    return ", ".join(fields) or "none"


def _is(kind: Kind, value: object) -> bool:
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "list":
        return isinstance(value, list)
    if kind == "object":
        return isinstance(value, dict)
    if kind == "map":
        return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
    if isinstance(value, bool):
        return False
    if kind == "integer":
        return isinstance(value, int)
    return isinstance(value, int | float) and abs(value) < float("inf")


def _kind(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


# fmt: off
CURSOR: Final = Field("string", "the cursor of the previous page; empty for the first page", default="")
LIMIT: Final = Field("integer", "maximum number of items of a page", default=100, minimum=1, maximum=500)
FEW: Final = Field("integer", "maximum number of messages of a page", default=50, minimum=1, maximum=100)
FILTER: Final = Field("string", "a topic filter", required=True, minimum=1, check=validate_filter)
TOPIC: Final = Field("string", "a topic, without wildcards", required=True, minimum=1, check=validate_topic)
QOS: Final = Field("integer", "the QoS", default=0, minimum=0, maximum=2)
REASON: Final = Field("string", "the reason, for the log and for MQTT 5 clients", default="", maximum=256)
# fmt: on
PAGED: Final[Fields] = {"cursor": CURSOR, "limit": LIMIT}
"""The fields that select a page of a listing. One page occupies the event loop for a few milliseconds."""
MESSAGES: Final[Fields] = {"cursor": CURSOR, "limit": FEW}
"""The fields that select a page of messages. The limit is lower because messages are larger than other items."""
