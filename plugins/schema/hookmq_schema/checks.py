"""Payload checks: UTF-8, JSON, JSON Schema, Avro and Protobuf.

A check is a function that takes a payload. It returns '' if the payload is valid, or else a short reason. The reason
gives a position in the payload but never quotes it, because reasons are logged and sent to clients.
"""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, NoReturn

import fastavro
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hookmq.plugin import ConfigError
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import Draft202012Validator, validator_for
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable

Check = Callable[[bytes], str]
LONGEST_PATH: Final = 100
"""Maximum length of a position in a reason, in characters."""


def check_utf8(payload: bytes) -> str:
    """Check that the payload is UTF-8 text without null characters [MQTT-1.5.4-1, 1.5.4-2]."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    return "a null character in the text" if "\0" in text else ""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _parse_json(payload: bytes) -> tuple[Any, str]:
    """Return (value, '') or (None, reason). NaN and infinities are refused (RFC 8259, section 6)."""
    try:
        return json.loads(payload.decode(), parse_constant=_no_constant), ""
    except json.JSONDecodeError as error:
        return None, f"not JSON at character {error.pos}"
    except UnicodeDecodeError as error:
        return None, f"not UTF-8 at byte {error.start}"
    except RecursionError:
        return None, "nested too deeply"
    except ValueError:
        return None, "not JSON: a number is too long, NaN or infinite"


def check_json(payload: bytes) -> str:
    """Check that the payload is a single JSON value."""
    return _parse_json(payload)[1]


def json_schema(text: bytes) -> Check:
    """Return a check that validates payloads against a JSON Schema (draft 3 to 2020-12). Raises ConfigError if the
    schema is invalid.

    The schema must be self-contained. References to other files or hosts are refused, and nothing is downloaded.
    """
    schema, problem = _parse_json(text)
    if problem:
        raise ConfigError(problem)
    if not isinstance(schema, dict | bool):
        raise ConfigError(f"expected a JSON object, found {type(schema).__name__}")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)  # type: ignore[arg-type]  # the stubs forget booleans
    except SchemaError as error:
        raise ConfigError(f"{error.json_path}: {error.message[:200]}") from error
    except RecursionError as error:
        raise ConfigError("the schema is nested too deeply") from error
    _refuse_unsafe(schema)
    # Only the standard's own schemas: without a registry, the library would download references.
    validator = kind(schema, registry=SPECIFICATIONS)

    def check(payload: bytes) -> str:
        value, problem = _parse_json(payload)
        if problem:
            return problem
        try:
            error: ValidationError | None = next(validator.iter_errors(value), None)
        except RecursionError:
            return "nested too deeply"
        except Unresolvable as missing:
            return f"the schema has no {missing.ref}"
        if error is None:
            return ""
        # The place in the schema, not in the payload: a payload's keys are content, and may not even be valid text.
        place = "/".join(str(part) for part in error.absolute_schema_path)
        return f"does not satisfy {place[:LONGEST_PATH]}"

    return check


def _refuse_unsafe(schema: Any) -> None:
    """Raise ConfigError if a schema refers to anything outside itself, or compares all items of an array."""
    identities: set[str] = set()
    references: list[str] = []
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            for key, value in part.items():
                if key == "uniqueItems" and value is True:
                    raise ConfigError(
                        "uniqueItems compares each item with all others, which could block the broker"
                    )
                if key in ("$id", "id") and isinstance(value, str):
                    identities.add(value.rstrip("#"))
                elif key in ("$ref", "$dynamicRef") and isinstance(value, str):
                    references.append(value)
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    for reference in references:
        base = reference.partition("#")[0]
        if base and base not in identities and base not in SPECIFICATIONS:
            raise ConfigError(f"$ref {reference!r} is outside the schema; put it below $defs")


def avro(text: bytes) -> Check:
    """Return a check that a payload is a single Avro value in binary encoding, without a header.

    Raises ConfigError for an invalid schema. Schemas that let a short payload cause unbounded work are also refused:
    types that contain themselves, and arrays whose items take no bytes.
    """
    document, problem = _parse_json(text)
    if problem:
        raise ConfigError(problem)
    try:
        schema = fastavro.parse_schema(document)
    except Exception as error:
        raise ConfigError(f"not an Avro schema: {str(error)[:200]}") from error
    _AvroBounds().least(schema, ())

    def check(payload: bytes) -> str:
        stream = BytesIO(payload)
        try:
            fastavro.schemaless_reader(stream, schema, None)
        except Exception:  # the library documents no error types for malformed data
            return f"not a value of the Avro schema, near byte {stream.tell()}"
        rest = len(payload) - stream.tell()
        return f"{rest} bytes after the Avro value" if rest else ""

    return check


class _AvroBounds:
    """Computes the minimum encoded size of Avro types, in bytes."""

    _SIZES: Final = {"null": 0, "float": 4, "double": 8}

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def least(self, schema: Any, inside: tuple[str, ...]) -> int:
        """Return the minimum size. `inside` contains the names of the enclosing types. Raises ConfigError."""
        if isinstance(schema, list):
            return 1 + min((self.least(one, inside) for one in schema), default=0)
        if isinstance(schema, str):
            if schema in inside:
                raise ConfigError(
                    f"the Avro type {schema} contains itself: values could nest without end"
                )
            known = self._named.get(schema)
            return self.least(known, inside) if known is not None else self._SIZES.get(schema, 1)
        kind, name = schema["type"], str(schema.get("name", ""))
        if name and kind in ("record", "error", "enum", "fixed"):
            self._named[name] = schema
        if kind in ("record", "error"):
            around = (*inside, name)
            return sum(self.least(field["type"], around) for field in schema["fields"])
        if kind in ("array", "map"):
            items = self.least(schema["items" if kind == "array" else "values"], inside)
            if not items and kind == "array":
                raise ConfigError("an Avro array of values that take no bytes could be endless")
            return 1
        if kind == "fixed":
            return int(schema["size"])
        return (
            self.least(kind, inside) if isinstance(kind, list | dict) else self._SIZES.get(kind, 1)
        )


def protobuf(descriptors: bytes, message: str, unknown_fields: bool) -> Check:
    """Return a check that a payload is a Protobuf message of the given type.

    `descriptors` is a FileDescriptorSet, as written by ``protoc --include_imports --descriptor_set_out``. `message` is
    the full name of the type. Unless `unknown_fields` is True, a payload with fields that the type does not define is
    invalid. Raises ConfigError if the type cannot be built.
    """
    files = FileDescriptorSet()
    pool = DescriptorPool()
    try:
        files.ParseFromString(descriptors)
        for file in files.file:
            pool.Add(file)
        kind: type[Message] = GetMessageClass(pool.FindMessageTypeByName(message))
    except DecodeError as error:
        raise ConfigError("not a Protobuf descriptor set") from error
    except KeyError as error:
        raise ConfigError(f"the descriptor set has no message type {message!r}") from error
    except TypeError as error:
        raise ConfigError(f"the descriptor set is not complete: {str(error)[:200]}") from error

    def check(payload: bytes) -> str:
        found = kind()
        try:
            found.ParseFromString(payload)
        except DecodeError:
            return f"not a {message}"
        if not found.IsInitialized():
            return f"a required field of {message} is missing"
        if not unknown_fields:
            before = found.ByteSize()
            found.DiscardUnknownFields()
            if found.ByteSize() != before:
                return f"a field that {message} does not have"
        return ""

    return check
