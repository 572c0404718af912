"""Test that Sparkplug data is interpreted according to the preceding births, and that undecodable messages become dead
letters.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mqtt_pipelines import schemas
from mqtt_pipelines.transforms import tahu
from mqtt_pipelines.transforms.sparkplug import (
    _MADE,
    REASONS,
    Node,
    Sparkplug,
    dead_letters,
    metrics,
)
from mqtt_pipelines.transforms.stateful import PROVIDER, prepare
from pyspark.sql import Row, SparkSession
from rows import Log, Message, Stream, at, batch, epoch_ms, frame

BY = Sparkplug()
KIND = {name: number for number, name in enumerate(tahu.TYPES)}


@pytest.fixture(autouse=True)
def rocksdb(spark: SparkSession) -> Iterator[None]:
    prepare(spark)
    yield
    spark.conf.unset(PROVIDER)


def payload(*given: dict[str, Any], **more: Any) -> bytes:
    made = tahu.messages()["Payload"](**more)
    for one in given:
        made.metrics.add(**one)
    data: bytes = made.SerializeToString()
    return data


def birth(name: str, alias: int | None, datatype: str, **value: Any) -> dict[str, Any]:
    named = {"name": name, "datatype": KIND[datatype], **value}
    return named if alias is None else {**named, "alias": alias}


def send(log: Log, kind: str, data: bytes, second: float, device: str = "") -> Message:
    topic = f"spBv1.0/plant/{kind}/line1" + (f"/{device}" if device else "")
    return log.message(data, second, topic=topic)


def day() -> list[list[Message]]:
    """Return messages from an edge node with a device. The node publishes two births with different aliases."""
    log = Log()
    node = [
        birth("temperature", 1, "Float", float_value=20.5),
        birth("count", 2, "Int32", int_value=2**32 - 5),
        birth("bdSeq", None, "UInt64", long_value=0),
    ]
    motor = [
        birth("rpm", 7, "UInt16", int_value=900, timestamp=epoch_ms(-5)),
        birth("fault", 8, "Boolean", boolean_value=False),
        birth("model", 9, "String", string_value="größe"),
    ]
    return [
        [
            send(log, "NDATA", payload({"alias": 1, "float_value": 1.0}), 0),  # before any birth
            send(log, "NDEATH", payload({"name": "bdSeq", "long_value": 0}), 1),
            send(log, "NBIRTH", payload(*node, timestamp=epoch_ms(2), seq=0), 2),
            send(log, "DBIRTH", payload(*motor, timestamp=epoch_ms(3), seq=1), 3, "motor"),
            log.message(b'{"online": true}', 4, topic="spBv1.0/STATE/scada"),
            log.message(b"{}", 4, topic="plant/line1/state"),
        ],
        [
            send(log, "NDATA", payload({"alias": 2, "int_value": 3, "is_historical": True}, timestamp=epoch_ms(5)), 6),
            send(log, "DDATA", payload({"alias": 7, "int_value": 1000}, {"alias": 8, "is_null": True}), 7, "motor"),
            send(log, "DDATA", payload({"alias": 7, "int_value": 1}, {"alias": 99, "int_value": 1}), 8, "motor"),
            send(log, "DDATA", payload({"alias": 7, "int_value": 1}), 9, "pump"),  # never born
            send(log, "NCMD", b"what ever", 9),
            send(log, "NDATA", b"\xff\xff\xff", 10),
            send(log, "NDATA", b"", 10),
            log.message(payload({"name": "x"}), 11, topic="spBv1.0/plant/NDATA/line1/motor"),
            log.message(payload({"name": "x"}), 11, topic="spBv1.0/plant/XDATA/line1"),
            log.message(payload({"name": "x"}), 11, topic="spBv1.0"),
            send(log, "NDATA", payload({"name": "new", "datatype": 12, "string_value": "by name"}), 12),
            send(log, "NDATA", payload({"name": "temperature", "float_value": 2.5}), 13),
        ],
        [
            send(log, "NBIRTH", payload(birth("temperature", 2, "Double", double_value=0.5)), 20),
            send(log, "NDATA", payload({"alias": 2, "double_value": 1.5}), 21),
            send(log, "NDATA", payload({"alias": 1, "double_value": 1.5}), 22),  # of the life before
            send(log, "DDATA", payload({"alias": 7, "int_value": 1}), 23, "motor"),  # not born again yet
            log.message(payload({"alias": 2, "int_value": 1}), 24, topic="spBv1.0/plant/NDATA/line2"),
        ],
    ]  # fmt: skip


def shown(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return only the columns that differ between the rows, in the log's order."""
    return [
        (
            row.offset, row.message_type, row.device, row.metric, row.datatype,
            next((row[name] for name in row.__fields__ if name.startswith("value_") and row[name] is not None), None),
        )
        for row in sorted(rows, key=lambda row: (row.offset, row.metric))
    ]  # fmt: skip


def test_a_node_is_born_again(spark: SparkSession, tmp_path: Path) -> None:
    batches = day()
    flat = [message for part in batches for message in part]
    whole = batch(spark, flat, lambda raw: metrics(raw, BY))
    assert shown(whole) == [
        (2, "NBIRTH", None, "bdSeq", "UInt64", 0),
        (2, "NBIRTH", None, "count", "Int32", -5),
        (2, "NBIRTH", None, "temperature", "Float", 20.5),
        (3, "DBIRTH", "motor", "fault", "Boolean", False),
        (3, "DBIRTH", "motor", "model", "String", "größe"),
        (3, "DBIRTH", "motor", "rpm", "UInt16", 900),
        (6, "NDATA", None, "count", "Int32", 3),
        (7, "DDATA", "motor", "fault", "Boolean", None),
        (7, "DDATA", "motor", "rpm", "UInt16", 1000),
        (16, "NDATA", None, "new", "String", "by name"),
        (17, "NDATA", None, "temperature", "Float", 2.5),
        (18, "NBIRTH", None, "temperature", "Double", 0.5),
        (19, "NDATA", None, "temperature", "Double", 1.5),
    ]
    by = {(row.offset, row.metric): row for row in whole}
    assert {row.group_id for row in whole} == {"plant"}
    assert {row.edge_node for row in whole} == {"line1"}
    assert by[3, "rpm"].event_time == at(-5)  # its own time, else the message's, else the broker's
    assert by[3, "fault"].event_time == at(3)
    assert by[7, "rpm"].event_time == at(7)
    assert by[7, "fault"].is_null
    assert not by[7, "rpm"].is_null
    assert by[6, "count"].is_historical
    assert not by[7, "rpm"].is_historical
    assert (by[6, "count"].topic, by[6, "count"].timestamp) == ("spBv1.0/plant/NDATA/line1", at(6))
    assert metrics(frame(spark, []), BY).schema == schemas.METRICS

    dead = batch(spark, flat, lambda raw: dead_letters(raw, BY))
    assert sorted((row.offset, row.reason, row.detail) for row in dead) == [
        (0, "unknown_metric", "alias 1"),
        (8, "unknown_metric", "alias 99"),
        (9, "unknown_metric", "alias 7"),
        (11, "bad_payload", dead[[row.offset for row in dead].index(11)].detail),
        (12, "bad_payload", "it is empty"),
        (13, "bad_topic", None),
        (14, "bad_topic", None),
        (20, "unknown_metric", "alias 1"),
        (21, "unknown_metric", "alias 7"),
        (22, "unknown_metric", "alias 2"),
    ]
    assert dead[0].__fields__ == schemas.DEAD_LETTER.names
    for row in dead:
        [message] = [one for one in flat if one["offset"] == row.offset]
        assert {name: row[name] for name in message} == {**message, "headers": []}

    stream = Stream(spark, tmp_path, lambda raw: metrics(raw, BY)).add(*batches[:2])
    stream.run()
    assert stream.add(*batches[2:]).run() == whole


@pytest.mark.parametrize(
    ("datatype", "given", "expected"),
    [
        ("Int8", {"int_value": 0xFF}, {"long": -1}),
        ("Int8", {"int_value": 2**32 - 1}, {"long": -1}),
        ("Int16", {"int_value": 0x8000}, {"long": -32768}),
        ("Int64", {"long_value": 2**64 - 7}, {"long": -7}),
        ("Int64", {"int_value": 7}, {"long": 7}),
        ("UInt32", {"int_value": 2**32 - 1}, {"long": 2**32 - 1}),
        ("UInt64", {"long_value": 2**64 - 1}, {"double": 2.0**64, "string": str(2**64 - 1)}),
        ("DateTime", {"long_value": 1_700_000_000_000}, {"long": 1_700_000_000_000}),
        ("Float", {"float_value": 0.5}, {"double": 0.5}),
        ("Boolean", {"int_value": 1}, {"boolean": True}),
        ("Text", {"string_value": ""}, {"string": ""}),
        ("Bytes", {"bytes_value": b"\x00\xff"}, {"bytes": b"\x00\xff"}),
        ("Int16Array", {"bytes_value": struct.pack("<2h", -1, 5)}, {"string": "[-1, 5]"}),
        ("FloatArray", {"bytes_value": struct.pack("<2f", 0.5, float("nan"))}, {"string": "[0.5, null]"}),
        ("BooleanArray", {"bytes_value": b"\x0a\0\0\0\xc0\x40"}, {
            "string": json.dumps([True, True, *[False] * 7, True]),
        }),
        ("StringArray", {"bytes_value": b"a\0\xc3\xbc\0"}, {"string": '["a", "ü"]'}),
    ],
)  # fmt: skip
def test_values(datatype: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    metric = tahu.decode(payload({"name": "m", **given})).metrics[0]
    found = tahu.value(metric, datatype)
    if "bytes_value" in given:
        expected = {"bytes": given["bytes_value"], **expected}
    assert found == tahu.Value(**expected)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("Int32Array", b"123"), ("BooleanArray", b"\xff"), ("StringArray", b"a"), ("StringArray", b"\xff\0")],
)  # fmt: skip
def test_values_that_do_not_fit(datatype: str, data: bytes) -> None:
    metric = tahu.decode(payload({"name": "m", "bytes_value": data})).metrics[0]
    with pytest.raises(ValueError):  # noqa: PT011 - also those of UTF-8
        tahu.value(metric, datatype)


def test_data_sets_and_templates() -> None:
    messages = tahu.messages()
    cells = [{"int_value": 2**32 - 1}, {"string_value": "x"}]
    data_set = {
        "num_of_columns": 2, "columns": ["a", "b"], "types": [KIND["Int8"], KIND["String"]],
        "rows": [{"elements": cells}, {"elements": [{}]}],
    }  # fmt: skip
    template = {
        "template_ref": "Motor", "is_definition": False,
        "metrics": [{"name": "rpm", "datatype": KIND["Int32"], "int_value": 7}, {"name": "raw", "bytes_value": b"\xff"}],
        "parameters": [{"name": "n", "type": KIND["Boolean"], "boolean_value": True}],
    }  # fmt: skip
    made = messages["Payload"](
        metrics=[
            {"name": "d", "dataset_value": data_set},
            {"name": "t", "template_value": template},
        ]
    )
    first, second = tahu.decode(made.SerializeToString()).metrics
    shown = tahu.value(first, "DataSet").string
    assert shown is not None
    assert json.loads(shown) == {
        "columns": ["a", "b"], "types": ["Int8", "String"], "rows": [[-1, "x"], [None]],
    }  # fmt: skip
    shown = tahu.value(second, "Template").string
    assert shown is not None
    assert json.loads(shown) == {
        "metrics": {"rpm": 7, "raw": "/w=="}, "parameters": {"n": True}, "template_ref": "Motor", "is_definition": False,
    }  # fmt: skip


def test_known_bytes() -> None:
    """Check the bytes field by field against protobuf's wire format. Without this, the encoder and decoder would only
    be tested against each other.
    """
    metric = (
        "0a0474656d70"
        "1005"
        "18e907"
        "2009"
        "2801"
        "6500002041"
    )  # name, alias, timestamp, datatype, historical, float
    data = bytes.fromhex(
        "08e807" + f"12{len(metric) // 2:02x}" + metric + "1805" + "22027531" + "2a01ff"
    )
    whole = tahu.decode(data)
    assert (whole.timestamp, whole.seq, whole.uuid, whole.body) == (1000, 5, "u1", b"\xff")
    [one] = whole.metrics
    assert (one.name, one.alias, one.timestamp, one.datatype) == ("temp", 5, 1001, KIND["Float"])
    assert one.is_historical
    assert one.float_value == 10.0
    with pytest.raises(ValueError, match=r"."):
        tahu.decode(data[:-1])
    with pytest.raises(ValueError, match="none of its fields"):
        tahu.decode(bytes.fromhex("f80101"))


def test_no_bytes_end_the_query() -> None:
    """Randomly corrupted births and data do not end the query. Each message yields either rows or one dead letter."""
    random = Random(11)
    messages = [message for part in day() for message in part if "line1" in message["topic"]]
    node, state, reasons = Node(), Node().begin(), set()
    for offset in range(3000):
        message = random.choice(messages)
        data = bytearray(message["payload"])
        for _ in range(random.randrange(3)):
            if data:
                data[random.randrange(len(data))] = random.randrange(256)
        row = {**message, "payload": data, "at": 0, "offset": offset}
        found = list(node.rows(("plant", "line1"), state, [row]))
        if any(one[5] is not None for one in found):
            assert len(found) == 1
            reasons.add(found[0][5])
        assert {len(one) for one in found} <= {len(_MADE.names)}
        state = json.loads(json.dumps(state))
    assert reasons == set(REASONS)
