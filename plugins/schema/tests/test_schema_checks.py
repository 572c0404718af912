"""Test checks without a broker: good, bad and hostile payloads and schemas for each format."""

import json
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet
from hookmq.plugin import ConfigError
from hookmq_schema import checks
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
RECORD = {
    "type": "record",
    "name": "State",
    "fields": [{"name": "speed", "type": "double"}, {"name": "unit", "type": ["null", "string"]}],
}


def schema(document: Any) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", ""),
        ("grün".encode(), ""),
        (b"a\xff", "not UTF-8 at byte 1"),
        (b"\xed\xa0\x80", "not UTF-8 at byte 0"),
        (b"a\0", "a null character in the text"),
    ],
)
def test_utf8(payload: bytes, reason: str) -> None:
    assert checks.check_utf8(payload) == reason


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"1", ""),
        (b' {"a": [1, null]} ', ""),
        (b"", "not JSON at character 0"),
        (b"{'a': 1}", "not JSON at character 1"),
        (b"1 2", "not JSON at character 2"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"NaN", "not JSON: a number is too long, NaN or infinite"),
        (b"-Infinity", "not JSON: a number is too long, NaN or infinite"),
        (b"1" * 5000, "not JSON: a number is too long, NaN or infinite"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_json(payload: bytes, reason: str) -> None:
    assert checks.check_json(payload) == reason


@given(VALUES)
def test_every_json_value_passes(value: Any) -> None:
    assert checks.check_json(json.dumps(value).encode()) == ""


STATE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["speed"],
    "properties": {"speed": {"$ref": "#/$defs/speed"}},
    "$defs": {"speed": {"type": "number", "minimum": 0}},
}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"speed": 1}', ""),
        (b'{"speed": -1}', "does not satisfy properties/speed/minimum"),
        (b'{"speed": "secret"}', "does not satisfy properties/speed/type"),
        (b"{}", "does not satisfy required"),
        (b"[]", "does not satisfy type"),
        (b"", "not JSON at character 0"),
    ],
)
def test_json_schema(payload: bytes, reason: str) -> None:
    assert checks.json_schema(schema(STATE))(payload) == reason


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "not JSON at character 1"),
        (b"[]", "expected a JSON object, found list"),
        (b'{"type": "strng"}', "$.type: 'strng' is not valid under any of the given schemas"),
        (b'{"items": {"uniqueItems": true}}', "uniqueItems compares each item with all others"),
        (b'{"$ref": "http://127.0.0.1:1/x"}', "$ref 'http://127.0.0.1:1/x' is outside the schema"),
        (b'{"items": [{"$ref": "other.json#/a"}], "$schema": "http://json-schema.org/draft-07/schema#"}',
         "$ref 'other.json#/a' is outside the schema"),
    ],
)  # fmt: skip
def test_a_json_schema_that_cannot_be_used_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checks.json_schema(text)
    assert str(refused.value).startswith(why)


def test_a_reason_quotes_nothing_of_the_payload() -> None:
    check = checks.json_schema(schema({"additionalProperties": {"type": "integer"}}))
    assert check(b'{"\\ud800": "secret"}') == "does not satisfy additionalProperties/type"


def test_a_reference_that_leads_nowhere_makes_the_payload_invalid() -> None:
    check = checks.json_schema(schema({"$ref": "#/$defs/missing"}))
    assert check(b"1") == "the schema has no /$defs/missing"


def test_a_json_schema_that_nests_is_followed_without_a_crash() -> None:
    check = checks.json_schema(schema({"items": {"$ref": "#"}}))
    assert check(b"[[1]]") == ""
    assert check(b"[" * 5000 + b"]" * 5000) == "nested too deeply"


@pytest.mark.parametrize("value", [{"speed": 1.5, "unit": None}, {"speed": -2.0, "unit": "m/s"}])
def test_avro(value: dict[str, Any]) -> None:
    from io import BytesIO

    stream = BytesIO()
    fastavro.schemaless_writer(stream, RECORD, value)
    check = checks.avro(schema(RECORD))
    assert check(stream.getvalue()) == ""
    assert check(stream.getvalue() + b"\0") == "1 bytes after the Avro value"
    assert check(stream.getvalue()[:-1]).startswith("not a value of the Avro schema")


@given(st.binary(max_size=200))
def test_no_payload_makes_the_avro_check_fail(payload: bytes) -> None:
    document = {"type": "map", "values": {"type": "array", "items": ["string", "bytes", "long"]}}
    assert isinstance(checks.avro(schema(document))(payload), str)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"type": "recrd"}, "not an Avro schema"),
        ({"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
         "the Avro type R contains itself"),
        ({"type": "array", "items": "null"}, "an Avro array of values that take no bytes"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
         "an Avro array of values that take no bytes"),
    ],
)  # fmt: skip
def test_an_avro_schema_without_bounds_is_refused(document: Any, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checks.avro(schema(document))
    assert str(refused.value).startswith(why)


def descriptors() -> bytes:
    """Return the descriptors that protoc writes for two messages: `plant.State` with a double, and `plant.Report`,
    which nests it.
    """
    files = FileDescriptorSet()
    file = files.file.add(name="plant.proto", package="plant", syntax="proto2")
    state: DescriptorProto = file.message_type.add(name="State")
    state.field.add(
        name="speed",
        number=1,
        type=FieldDescriptorProto.TYPE_DOUBLE,
        label=FieldDescriptorProto.LABEL_REQUIRED,
    )
    report = file.message_type.add(name="Report")
    report.field.add(
        name="state",
        number=1,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".plant.State",
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    return files.SerializeToString()


SPEED = b"\x09" + bytes(8)


@pytest.mark.parametrize(
    ("message", "payload", "unknown", "reason"),
    [
        ("plant.State", SPEED, False, ""),
        ("plant.State", b"", True, "a required field of plant.State is missing"),
        ("plant.State", b"\xff", True, "not a plant.State"),
        ("plant.State", SPEED + b"\x10\x01", True, ""),
        ("plant.State", SPEED + b"\x10\x01", False, "a field that plant.State does not have"),
        ("plant.Report", b"\x0a\x0b" + SPEED + b"\x10\x01", False, "a field that plant.Report does not have"),
        ("plant.Report", b"", False, ""),
    ],
)  # fmt: skip
def test_protobuf(message: str, payload: bytes, unknown: bool, reason: str) -> None:
    assert checks.protobuf(descriptors(), message, unknown)(payload) == reason


@pytest.mark.parametrize(
    ("content", "message", "why"),
    [
        (b"\xff", "plant.State", "not a Protobuf descriptor set"),
        (descriptors(), "plant.Missing", "the descriptor set has no message type 'plant.Missing'"),
    ],
)
def test_a_descriptor_set_that_cannot_be_used_is_refused(
    content: bytes, message: str, why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        checks.protobuf(content, message, True)
    assert str(refused.value).startswith(why)
