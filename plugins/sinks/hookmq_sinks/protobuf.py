"""Decode Protobuf messages and Sparkplug B payloads to JSON values. Needs the extra ``protobuf``."""

import struct
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hookmq.plugin import ConfigError

from hookmq_sinks.record_template import RecordError

MAX_DESCRIPTORS: Final = 16 << 20
_TYPES: Final = {
    "uint32": FieldDescriptorProto.TYPE_UINT32, "uint64": FieldDescriptorProto.TYPE_UINT64,
    "float": FieldDescriptorProto.TYPE_FLOAT, "double": FieldDescriptorProto.TYPE_DOUBLE,
    "bool": FieldDescriptorProto.TYPE_BOOL, "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}  # fmt: skip
_METRIC: Final = (
    ("name", 1, "string"), ("alias", 2, "uint64"), ("timestamp", 3, "uint64"), ("datatype", 4, "uint32"),
    ("is_historical", 5, "bool"), ("is_transient", 6, "bool"), ("is_null", 7, "bool"),
    ("int_value", 10, "uint32"), ("long_value", 11, "uint64"), ("float_value", 12, "float"),
    ("double_value", 13, "double"), ("boolean_value", 14, "bool"), ("string_value", 15, "string"),
    ("bytes_value", 16, "bytes"), ("dataset_value", 17, "bytes"), ("template_value", 18, "bytes"),
    ("extension_value", 19, "bytes"),
)  # fmt: skip
_PAYLOAD: Final = (
    ("timestamp", 1, "uint64"), ("seq", 3, "uint64"), ("uuid", 4, "string"), ("body", 5, "bytes"),
)  # fmt: skip
_VALUES: Final = tuple(name for name, _, _ in _METRIC if name.endswith("_value"))
_SIGNED: Final = {1: 8, 2: 16, 3: 32, 4: 64}
"""By Sparkplug data type, the bits of signed integers. They are sent as unsigned numbers in two's complement."""
_ARRAYS: Final = {
    22: "b", 23: "h", 24: "i", 25: "q", 26: "B", 27: "H", 28: "I", 29: "Q", 30: "f", 31: "d", 34: "Q",
}  # fmt: skip
"""By Sparkplug data type, the format of an array's items, packed as little-endian bytes."""


def protobuf_class(path: Path, message: str) -> type[Message]:
    """Return the class of a message type in a descriptor set. Reads a file. Raises ConfigError."""
    files, pool = FileDescriptorSet(), DescriptorPool()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DESCRIPTORS + 1)
    except OSError as error:
        raise ConfigError(f"protobuf.descriptors: {path}: {error.strerror}") from None
    try:
        if len(data) > MAX_DESCRIPTORS:
            raise ConfigError(f"protobuf.descriptors: {path} is larger than 16 MiB")
        files.ParseFromString(data)
        for one in files.file:
            pool.Add(one)
        return GetMessageClass(pool.FindMessageTypeByName(message))
    except DecodeError:
        raise ConfigError(f"protobuf.descriptors: {path} is not a descriptor set") from None
    except KeyError:
        raise ConfigError(f"protobuf.message: {path} has no message type {message!r}") from None
    except TypeError as error:
        raise ConfigError(
            f"protobuf.descriptors: {path} is not complete: {str(error)[:200]}"
        ) from None


def decode_protobuf(kind: type[Message], payload: bytes) -> dict[str, Any]:
    """Decode a message to a JSON value, using the field names of its type. Raises RecordError.

    Numbers stay numbers, unlike in Protobuf's own JSON. Unset fields without presence get their default values.
    """
    found = kind()
    try:
        found.ParseFromString(payload)
        if not found.IsInitialized():
            raise RecordError("the payload is not Protobuf: a required field is missing")
        value: dict[str, Any] = _plain(found)
        return value
    except (DecodeError, ValueError, TypeError) as error:
        raise RecordError(f"the payload is not Protobuf: {str(error)[:200]}") from None


def _plain(found: Any) -> Any:
    descriptor = found.DESCRIPTOR
    if descriptor.full_name.startswith("google.protobuf."):
        return MessageToDict(found, preserving_proto_field_name=True)  # such as a time
    made: dict[str, Any] = {}
    for one in descriptor.fields:
        if one.has_presence and not found.HasField(one.name):
            continue
        value = getattr(found, one.name)
        kind = one.message_type
        if kind is not None and kind.GetOptions().map_entry:
            inner = kind.fields_by_name["value"]
            made[one.name] = {str(key): _item(inner, value[key]) for key in value}
        elif one.is_repeated:
            made[one.name] = [_item(one, item) for item in value]
        else:
            made[one.name] = _item(one, value)
    return made


def _item(one: Any, value: Any) -> Any:
    if one.message_type is not None:
        return _plain(value)
    if one.enum_type is not None:
        known = one.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value


def _sparkplug_class() -> type[Message]:
    file = FileDescriptorProto(name="hookmq_sinks.proto", package="sparkplug", syntax="proto2")
    optional = FieldDescriptorProto.LABEL_OPTIONAL
    metric = file.message_type.add(name="Metric")
    for name, number, kind in _METRIC:
        metric.field.add(name=name, number=number, type=_TYPES[kind], label=optional)
    payload = file.message_type.add(name="Payload")
    for name, number, kind in _PAYLOAD:
        payload.field.add(name=name, number=number, type=_TYPES[kind], label=optional)
    payload.field.add(
        name="metrics", number=2, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".sparkplug.Metric",
        label=FieldDescriptorProto.LABEL_REPEATED,
    )  # fmt: skip
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("sparkplug.Payload"))


SPARKPLUG: Final = _sparkplug_class()


def decode_sparkplug(payload: bytes) -> dict[str, Any]:
    """Decode a Sparkplug B payload to a JSON value. Raises RecordError.

    `values` maps the name of each metric to its value. A metric that has an alias but no name is listed under its
    alias, as text. `metrics` lists all metrics in order, with their data types and times. Data sets and templates are
    left as bytes.

    Source: Eclipse Sparkplug 3.0.0, chapter 6.
    """
    found: Any = SPARKPLUG()
    try:
        found.ParseFromString(payload)
        metrics = [_metric(one) for one in found.metrics]
    except (DecodeError, ValueError, struct.error) as error:
        raise RecordError(f"the payload is not Sparkplug B: {str(error)[:200]}") from None
    made: dict[str, Any] = {
        name: getattr(found, name)
        for name in ("timestamp", "seq", "uuid", "body")
        if found.HasField(name)
    }
    made["values"] = {one.get("name", str(one.get("alias", ""))): one["value"] for one in metrics}
    made["metrics"] = metrics
    return made


def _metric(found: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        name: getattr(found, name)
        for name in ("name", "alias", "timestamp", "datatype", "is_historical", "is_transient")
        if found.HasField(name)
    }
    made["value"] = None
    if not found.is_null:
        for name in _VALUES:
            if found.HasField(name):
                made["value"] = _value(getattr(found, name), found.datatype)
    return made


def _value(value: Any, kind: int) -> Any:
    if (bits := _SIGNED.get(kind)) is not None and isinstance(value, int):
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    if (letter := _ARRAYS.get(kind)) is not None and isinstance(value, bytes):
        return [one for (one,) in struct.iter_unpack(f"<{letter}", value)]
    return value
