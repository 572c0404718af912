"""Test records, templates, decoding, transforms and samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
import msgpack  # type: ignore[import-untyped]
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.config import SinkConfig
from hookmq_sinks.decoding import ProtobufConfig, find_decoder
from hookmq_sinks.driver import Batch, Rejected, make_each
from hookmq_sinks.protobuf import SPARKPLUG, protobuf_class
from hookmq_sinks.record import Position, Record
from hookmq_sinks.record_template import (
    RecordError,
    RecordTemplate,
    template_setting,
    templates_of,
)
from hookmq_sinks.testing import make_record
from hookmq_sinks.transform import TransformStep, compile_steps

RECORD = make_record(
    7,
    {"a": {"b": [1, 2.5]}, "ok": True, "none": None, "name": "x"},
    "plant/7/temp",
    content_type="application/json",
    user_properties=(("site", "north"), ("site", "south")),
    received_at=1767269410.123456,
)


@pytest.mark.parametrize(
    ("text", "filled", "value"),
    [
        ("plain", "plain", "plain"),
        ("${topic}", "plant/7/temp", "plant/7/temp"),
        ("${topic.1}-${topic.-1}", "plant-temp", "plant-temp"),
        ("${payload.a.b.1}", "2.5", 2.5),
        ("${payload.ok}", "true", True),
        ("${payload.a}", '{"b":[1,2.5]}', {"b": [1, 2.5]}),
        ("${property.site}", "north", "north"),
        ("${client_id}/${qos}", "c/1", "c/1"),
        ("${qos}", "1", 1),
        ("${content_type}", "application/json", "application/json"),
        ("${timestamp}", "2026-01-01T12:10:10.123Z", "2026-01-01T12:10:10.123Z"),
        ("${timestamp.s}", "1767269410", 1767269410),
        ("${timestamp.ms}", "1767269410123", 1767269410123),
        ("${timestamp.us}", "1767269410123456", 1767269410123456),
        ("${timestamp.ns}", "1767269410123456000", 1767269410123456000),
        ("${time.%Y/%m/%d/%H}", "2026/01/01/12", "2026/01/01/12"),
        ("${offset}", "7", 7),
    ],
)
def test_placeholders(text: str, filled: str, value: Any) -> None:
    template = RecordTemplate(text)
    assert template.fill(RECORD) == filled
    assert template.value(RECORD) == value
    assert template.optional(RECORD) == value


@pytest.mark.parametrize(
    "name",
    ["payload.b", "payload.a.b.9", "payload.none", "payload.name.x", "topic.4", "topic.-4", "property.x", "key"],
)  # fmt: skip
def test_a_missing_value_is_an_error_or_none(name: str) -> None:
    template = RecordTemplate(f"${{{name}}}")
    with pytest.raises(RecordError, match=f"no value for \\${{{name}}}"):
        template.fill(RECORD)
    with pytest.raises(RecordError):
        template.value(RECORD)
    assert template.optional(RECORD) is None
    assert RecordTemplate(f"a ${{{name}}}").optional(RECORD) is None


@pytest.mark.parametrize(
    "text", ["${x}", "${topic.0}", "${payload.}", "${payload..a}", "${timestamp.h}", "${topic.x}", "${"]
)  # fmt: skip
def test_unknown_placeholders_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="subject: "):
        RecordTemplate(text, "subject")


def test_a_payload_that_is_not_text_cannot_be_in_a_text() -> None:
    record = Record("i", 0, "t", b"\xff", b"\xff")
    with pytest.raises(RecordError, match="not UTF-8"):
        RecordTemplate("a ${payload}").fill(record)
    assert RecordTemplate("${payload}").value(record) == b"\xff"


def test_make_each_names_every_record_without_a_value() -> None:
    batch = Batch(
        (make_record(0, {"a": 1}), make_record(1, {}), make_record(2, {})), Position("l", 3)
    )
    with pytest.raises(Rejected) as caught:
        make_each(batch, RecordTemplate("${payload.a}").fill)
    assert list(caught.value.reasons) == [1, 2]
    assert not caught.value.stored


@dataclass(frozen=True)
class Column:
    value: str = template_setting("${payload.x}", "a value")


@dataclass(frozen=True)
class Settings:
    table: str = template_setting("${topic.1}", "a table")
    columns: Mapping[str, Any] = template_setting({"a": "${payload.a}"}, "columns")
    more: tuple[Column, ...] = (Column(),)
    plain: str = "${not a template"


def test_the_templates_of_settings_are_found() -> None:
    found = {key: one.text for key, one in templates_of(Settings())}
    assert found == {
        "table": "${topic.1}", "columns.a": "${payload.a}", "more.0.value": "${payload.x}",
    }  # fmt: skip


# decoding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        ("raw", b"\xff", b"\xff"),
        ("text", "ä".encode(), "ä"),
        ("json", b'{"a":[1,null]}', {"a": [1, None]}),
        ("msgpack", msgpack.packb({"a": 1, 2: b"x"}), {"a": 1, 2: b"x"}),
        ("cbor", cbor2.dumps({"a": [1.5]}), {"a": [1.5]}),
    ],
)
def test_payloads_are_decoded(kind: str, payload: bytes, value: Any) -> None:
    assert find_decoder(kind)(payload) == value


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("text", b"a\xff"),
        ("json", b"{"),
        ("json", b"NaN"),
        ("json", b"\xff\xff"),
        ("json", b"[" * 100_000),
        ("msgpack", b"\xc1"),
        ("msgpack", b""),
        ("msgpack", b"\x01\x02"),
        ("cbor", b"\x9f"),
        ("cbor", b"\x01\x02"),
        ("cbor", b""),
    ],
)
def test_payloads_that_cannot_be_decoded_are_errors(kind: str, payload: bytes) -> None:
    with pytest.raises(RecordError, match="the payload is not"):
        find_decoder(kind)(payload)


def descriptors(path: Path) -> Path:
    """Write a message type's descriptor set."""
    files = FileDescriptorSet()
    file = files.file.add(name="plant.proto", package="plant", syntax="proto3")
    kinds = FieldDescriptorProto
    reading = file.message_type.add(name="Reading")
    for number, (name, kind) in enumerate(
        [("celsius", kinds.TYPE_DOUBLE), ("count", kinds.TYPE_INT64), ("raw", kinds.TYPE_BYTES)], 1
    ):
        reading.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    reading.field.add(
        name="parts",
        number=4,
        type=kinds.TYPE_MESSAGE,
        type_name=".plant.Reading",
        label=kinds.LABEL_REPEATED,
    )
    reading.field.add(
        name="next",
        number=5,
        type=kinds.TYPE_MESSAGE,
        type_name=".plant.Reading",
        label=kinds.LABEL_OPTIONAL,
    )
    path.write_bytes(files.SerializeToString())
    return path


def test_protobuf_is_decoded_with_numbers_and_defaults(tmp_path: Path) -> None:
    path = descriptors(tmp_path / "plant.desc")
    kind: Any = protobuf_class(path, "plant.Reading")
    payload = kind(count=1 << 60, raw=b"x", parts=[kind(celsius=1.5)]).SerializeToString()
    value = find_decoder("protobuf", ProtobufConfig(path, "plant.Reading"))(payload)
    part = {"celsius": 1.5, "count": 0, "raw": b"", "parts": []}
    assert value == {"celsius": 0.0, "count": 1 << 60, "raw": b"x", "parts": [part]}
    with pytest.raises(RecordError, match="the payload is not Protobuf"):
        find_decoder("protobuf", ProtobufConfig(path, "plant.Reading"))(b"\xff")


def test_mistakes_of_protobuf_are_named(tmp_path: Path) -> None:
    path = descriptors(tmp_path / "plant.desc")
    for config, reason in (
        (None, "this key is missing"),
        (ProtobufConfig(path, "plant.Writing"), "has no message type 'plant.Writing'"),
        (ProtobufConfig(tmp_path / "none", "a"), "none: No such file"),
        (ProtobufConfig(Path(__file__), "a"), "is not a descriptor set"),
    ):
        with pytest.raises(ConfigError, match=reason):
            find_decoder("protobuf", config)


def test_sparkplug_is_decoded() -> None:
    made: Any = SPARKPLUG(timestamp=5, seq=2)
    made.metrics.add(name="a", datatype=3, int_value=(1 << 32) - 7)
    made.metrics.add(name="b", datatype=1, int_value=0xFFFFFFFE)
    made.metrics.add(alias=9, datatype=9, float_value=1.5, timestamp=4)
    made.metrics.add(name="n", datatype=12, is_null=True)
    made.metrics.add(name="l", datatype=22, bytes_value=b"\x01\xff")
    value = find_decoder("sparkplug")(made.SerializeToString())
    assert value["values"] == {"a": -7, "b": -2, "9": 1.5, "n": None, "l": [1, -1]}
    assert (value["timestamp"], value["seq"]) == (5, 2)
    assert value["metrics"][2] == {"alias": 9, "timestamp": 4, "datatype": 9, "value": 1.5}
    with pytest.raises(RecordError, match="not Sparkplug B"):
        find_decoder("sparkplug")(b"\xff\xff")


# transforms ----------------------------------------------------------------------------------------------------------


def transformed(value: Any, *steps: dict[str, Any]) -> Any:
    made = tuple(bind_values(TransformStep, one) for one in steps)
    record = make_record(1, value, "a/b")
    transform = compile_steps(made)
    assert transform is not None
    transform(record)
    assert record.changed
    return record.value


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ({"select": ["a", "d.e", "zz"]}, {"a": "1", "d": {"e": 2}}),
        ({"drop": ["d.e", "b", "zz.y"]}, {"a": "1", "c": 1.0, "d": {"f": 3}}),
        ({"rename": {"a": "x.y", "d.e": "e", "zz": "z"}}, {"b": "off", "c": 1.0, "d": {"f": 3}, "x": {"y": "1"}, "e": 2}),
        ({"cast": {"a": "int", "c": "int", "d.e": "text", "zz": "int"}},
         {"a": 1, "b": "off", "c": 1, "d": {"e": "2", "f": 3}}),
        ({"set": {"site": "${topic.2}", "n": 5, "l": ["${payload.c}"], "d.g": "${qos}"}},
         {"a": "1", "b": "off", "c": 1.0, "d": {"e": 2, "f": 3, "g": 1}, "site": "b", "n": 5, "l": [1.0]}),
    ],
)  # fmt: skip
def test_steps(step: dict[str, Any], wanted: Any) -> None:
    assert transformed({"a": "1", "b": "off", "c": 1.0, "d": {"e": 2, "f": 3}}, step) == wanted


def test_steps_follow_one_another() -> None:
    steps = (
        {"rename": {"t": "celsius"}},
        {"cast": {"celsius": "float"}},
        {"set": {"copy": "${payload.celsius}"}},
    )
    assert transformed({"t": "1.5"}, *steps) == {"celsius": 1.5, "copy": 1.5}


@pytest.mark.parametrize(
    ("value", "step", "reason"),
    [
        ([1], {"select": ["a"]}, "cannot transform a list; expected a mapping"),
        ({"a": "x"}, {"cast": {"a": "int"}}, "cannot cast a"),
        ({"a": 1.5}, {"cast": {"a": "int"}}, "1.5 is not a whole number"),
        ({"a": [1]}, {"cast": {"a": "float"}}, "cannot cast a"),
        ({"a": "maybe"}, {"cast": {"a": "bool"}}, "'maybe' is not true or false"),
        ({"a": 1}, {"set": {"a.b": 1}}, "cannot set a.b: a is not a mapping"),
        ({"a": 1}, {"set": {"b": "${payload.zz}"}}, "no value for"),
    ],
)
def test_a_step_that_fails_names_the_field(value: Any, step: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        transformed(value, step)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({}, "exactly one of"),
        ({"select": ["a"], "drop": ["b"]}, "exactly one of"),
        ({"select": ["a..b"]}, "is not a field"),
        ({"cast": {"a": "date"}}, "cast"),
        ({"set": {"a": "${nothing}"}}, "unknown placeholder"),
    ],
)
def test_a_wrong_step_is_refused(step: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        bind_values(TransformStep, step)


# configuration -------------------------------------------------------------------------------------------------------


def sink(**more: Any) -> dict[str, Any]:
    target = {"path": "/tmp/x", "fields": {"n": "${payload.n}"}}
    return {
        "name": "s",
        "topics": ["a/#"],
        "driver": "file",
        "target": target,
        "decode": "json",
        **more,
    }


def test_a_good_sample_is_accepted() -> None:
    sample = {"topic": "a/b", "payload": {"n": 1}, "user_properties": {"k": "v"}}
    config = bind_values(SinkConfig, sink(sample=sample, key="${property.k}-${topic.2}"))
    record = config.sample_record()
    assert record is not None
    assert (record.value, record.key) == ({"n": 1}, "v-b")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sample": {"topic": "a/b", "payload": {"m": 1}}}, r"target\.fields\.n: .* no value for \$\{payload\.n\}"),
        ({"sample": {"topic": "a/b", "payload": "{"}}, "sample: the payload is not JSON"),
        ({"sample": {"topic": "a/b", "payload": {"n": 1}}, "decode": "raw"}, "sample: its payload must be a text"),
        ({"sample": {"topic": "a/b", "payload": {"n": 1}}, "key": "${topic.9}"}, r"no value for \$\{topic\.9\}"),
        ({"key": "${nothing}"}, "key: unknown placeholder"),
        ({"lanes": 2}, "more than one lane needs a key"),
        ({"topics": []}, "has no topic filter"),
        ({"topics": ["a/#/b"]}, "not a topic filter"),
        ({"topics": ["$share/g/a"]}, "cannot use a shared subscription"),
        ({"name": "../x"}, "is not a name"),
        ({"driver": "fil"}, "not an installed driver.*did you mean file"),
        ({"target": {"path": "x", "pth": 1}}, r"target\.pth: unknown key"),
        ({"target": {}}, r"target\.path: this key is missing"),
        ({"target": {"path": "x", "fields": {"n": "${nope}"}}}, r"target\.fields\.n: unknown placeholder"),
        ({"retry": {"first": "2s", "longest": "1s"}}, "less than first"),
    ],
)  # fmt: skip
def test_mistakes_are_named(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){reason}"):
        bind_values(SinkConfig, sink(**more))
