"""Decode Sparkplug B payloads and their values. The protobuf messages use the field numbers from the specification."""

from __future__ import annotations

import base64
import json
import math
import struct
from functools import cache
from typing import Any, Final, NamedTuple

TYPES: Final = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean",
    "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList",
    "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array",
    "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)  # fmt: skip
"""Data type names, by number."""

_MESSAGES: Final = {
    "Payload": "1 uint64 timestamp, 2 *Metric metrics, 3 uint64 seq, 4 string uuid, 5 bytes body",
    "Metric": (
        "1 string name, 2 uint64 alias, 3 uint64 timestamp, 4 uint32 datatype, 5 bool is_historical, "
        "6 bool is_transient, 7 bool is_null, 10 uint32 int_value|, 11 uint64 long_value|, 12 float float_value|, "
        "13 double double_value|, 14 bool boolean_value|, 15 string string_value|, 16 bytes bytes_value|, "
        "17 DataSet dataset_value|, 18 Template template_value|"
    ),
    "DataSet": "1 uint64 num_of_columns, 2 *string columns, 3 *uint32 types, 4 *Row rows",
    "Row": "1 *Cell elements",
    "Cell": (
        "1 uint32 int_value|, 2 uint64 long_value|, 3 float float_value|, 4 double double_value|, "
        "5 bool boolean_value|, 6 string string_value|"
    ),
    "Template": (
        "1 string version, 2 *Metric metrics, 3 *Parameter parameters, 4 string template_ref, 5 bool is_definition"
    ),
    "Parameter": (
        "1 string name, 2 uint32 type, 3 uint32 int_value|, 4 uint64 long_value|, 5 float float_value|, "
        "6 double double_value|, 7 bool boolean_value|, 8 string string_value|"
    ),
}
"""The fields of each message: number, type (* means repeated), name (| means one of `value`).

Metadata, properties and extensions are skipped. The specification nests cells and rows, but their bytes are the
same.
"""
_PACKAGE: Final = "hookmq.sparkplug"


class Value(NamedTuple):
    """A metric's value, in the columns of `schemas.METRICS`. If all fields are None, the value is null."""

    long: int | None = None
    double: float | None = None
    boolean: bool | None = None
    string: str | None = None
    bytes: bytes | None = None


@cache
def messages() -> dict[str, Any]:
    """Return the message classes by name. Requires protobuf."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="hookmq/sparkplug.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        made = file.message_type.add(name=name)
        if "|" in fields:
            made.oneof_decl.add(name="value")
        for one in fields.split(", "):
            number, kind, field = one.split(" ")
            label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            added = made.field.add(name=field.rstrip("|"), number=int(number), label=label)
            if field.endswith("|"):
                added.oneof_index = 0
            kind = kind.lstrip("*")
            if kind in _MESSAGES:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def decode(data: bytes) -> Any:
    """Decode a payload. Raises ValueError if it is invalid."""
    from google.protobuf.message import DecodeError

    try:
        made = messages()["Payload"].FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    if not made.ListFields():
        raise ValueError("none of its fields is Sparkplug's" if data else "it is empty")
    return made


def text(given: str | bytes) -> str:
    """Return the value of a text field in a message. Raises ValueError for bytes, which protobuf returns if the text is
    not UTF-8.
    """
    if isinstance(given, bytes):
        raise ValueError("text that is not UTF-8")
    return given


def type_name(number: int) -> str:
    """Return the name of a data type."""
    return TYPES[number] if number < len(TYPES) else f"Type{number}"


_BITS: Final = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
_ARRAYS: Final = {
    "Int8Array": "b", "Int16Array": "h", "Int32Array": "i", "Int64Array": "q", "UInt8Array": "B", "UInt16Array": "H",
    "UInt32Array": "I", "UInt64Array": "Q", "FloatArray": "f", "DoubleArray": "d", "DateTimeArray": "Q",
}  # fmt: skip


def value(metric: Any, datatype: str) -> Value:
    """Return the value of a metric that is not null. `datatype` comes from the metric's birth. Raises ValueError if the
    value has another type.
    """
    which = metric.WhichOneof("value")
    if which is None:
        raise ValueError("it has no value")
    given = getattr(metric, which)
    if which in ("int_value", "long_value"):
        return _whole(given, datatype)
    if which in ("float_value", "double_value"):
        return Value(double=given)
    if which == "boolean_value":
        return Value(boolean=given)
    if which == "string_value":
        return Value(string=text(given))
    if which == "bytes_value":
        return Value(string=_array(given, datatype), bytes=given)
    shown = _data_set(given) if which == "dataset_value" else _template(given)
    return Value(string=json.dumps(shown, ensure_ascii=False))


def _whole(given: int, datatype: str) -> Value:
    if datatype == "Boolean":
        return Value(boolean=bool(given))
    made = _signed(given, datatype)
    if made >= 1 << 63:
        return Value(double=float(made), string=str(made))
    return Value(long=made)


def _signed(given: int, datatype: str) -> int:
    """Return a signed number. Negative numbers arrive in two's complement, with the number of bits that the publisher
    chose.
    """
    bits = _BITS.get(datatype)
    if bits is None:
        return given
    low = given & ((1 << bits) - 1)
    return low - (1 << bits) if low >> (bits - 1) else low


def _array(data: bytes, datatype: str) -> str | None:
    """Return an array as JSON, or None if the bytes are not a valid array."""
    kind = _ARRAYS.get(datatype)
    found: list[Any]
    if kind is not None:
        size = struct.calcsize(f"<{kind}")
        if len(data) % size:
            raise ValueError(f"{len(data)} bytes are no {datatype}")
        found = [
            one if math.isfinite(one) else None  # JSON has no NaN or infinity
            for one in struct.unpack(f"<{len(data) // size}{kind}", data)
        ]
    elif datatype == "BooleanArray":
        if len(data) < 4 or (count := int.from_bytes(data[:4], "little")) > 8 * (len(data) - 4):
            raise ValueError(f"{len(data)} bytes are no {datatype}")
        found = [bool(data[4 + n // 8] >> (7 - n % 8) & 1) for n in range(count)]
    elif datatype == "StringArray":
        if data and not data.endswith(b"\0"):
            raise ValueError(f"a {datatype} without an end")
        found = [one.decode() for one in data.split(b"\0")[:-1]]
    else:
        return None
    return json.dumps(found, ensure_ascii=False)


def _plain(one: Any, datatype: str) -> Any:
    """Convert a DataSet or Template value to a JSON value."""
    if one.WhichOneof("value") is None:
        return None
    made = value(one, datatype)
    if made.bytes is not None and made.string is None:
        return base64.b64encode(made.bytes).decode()
    return next((part for part in (made.string, *made) if part is not None), None)


def _data_set(given: Any) -> Any:
    types = [type_name(one) for one in given.types]
    return {
        "columns": [text(one) for one in given.columns],
        "types": types,
        "rows": [
            [
                _plain(cell, types[at] if at < len(types) else "Unknown")
                for at, cell in enumerate(row.elements)
            ]
            for row in given.rows
        ],
    }


def _template(given: Any) -> Any:
    shown: dict[str, Any] = {
        "metrics": {text(one.name): _plain(one, type_name(one.datatype)) for one in given.metrics},
        "parameters": {
            text(one.name): _plain(one, type_name(one.type)) for one in given.parameters
        },
    }
    for name in ("version", "template_ref"):
        if given.HasField(name):
            shown[name] = text(getattr(given, name))
    if given.HasField("is_definition"):
        shown["is_definition"] = given.is_definition
    return shown
