"""Test that every payload yields either its values or a reason. The tests cover strict JSON, types, devices and times."""

import sys
from dataclasses import replace

import pytest
from mqtt_pipelines import schemas
from mqtt_pipelines.settings import PipelineError
from mqtt_pipelines.transforms.parse import REASONS, Device, EventTime, Silver
from mqtt_pipelines.transforms.quality import dead_letters, replayed
from mqtt_pipelines.transforms.silver import silver
from pyspark.sql import SparkSession
from rows import Log, Message, at, batch, epoch_ms, frame

BY = Silver(
    schema="celsius double not null, battery int, name string, pos struct<lat: double, lon: double>, at bigint",
    device=Device(topic_level=1),
    event_time=EventTime(field="at"),
)
NOW = f'"at": {epoch_ms(0)}'

GOOD: dict[str, tuple[object, ...]] = {
    f'{{"celsius": 21.5, "battery": 3, {NOW}}}': (21.5, 3, None),
    f' \n{{"celsius": 1, "name": 5, {NOW}}}\t ': (1.0, None, "5"),
    f'{{"celsius": 1, "name": "é\\u0000", "unknown": [1, {{}}], {NOW}}}': (1.0, None, "é\0"),
    f'{{"celsius": -0.0, "Celsius": 7, "battery": null, {NOW}}}': (-0.0, None, None),
    f'{{"celsius": 1, "celsius": 2, {NOW}}}': (2.0, None, None),
}
BAD: dict[bytes, tuple[str, str | None]] = {
    b"": ("empty", None),
    b"\xff\xfe{}": ("not_utf8", None),
    b" ": ("bad_json", None),
    b"21.5 C": ("bad_json", None),
    b'{"celsius": 1': ("bad_json", None),
    b"{celsius: 1}": ("bad_json", None),
    b'{"celsius": 1} and more': ("bad_json", None),
    b'{"celsius": 1}{"celsius": 2}': ("bad_json", None),
    b'{"celsius": 1},{"celsius": 2}': ("bad_json", None),
    b'{"celsius": 1}] x': ("bad_json", None),
    b'{"celsius": 1}} x': ("bad_json", None),
    b'{"celsius": 1},"x":{"celsius": 2}': ("bad_json", None),
    b"\xef\xbb\xbf{}": ("bad_json", None),
    b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}": ("bad_json", None),
    b'{"celsius": ' + b"1" * 3000 + b"}": ("bad_json", None),
    b"[]": ("not_an_object", None),
    b'[{"celsius": 1}]': ("not_an_object", None),
    b"42": ("not_an_object", None),
    b'"text"': ("not_an_object", None),
    b"null": ("not_an_object", None),
    b'{"celsius": "21.5"}': ("wrong_type", 'celsius: expected double, found "21.5"'),
    b'{"celsius": true, "battery": 1.5}': (
        "wrong_type",
        "celsius: expected double, found true; battery: expected int, found 1.5",
    ),
    b'{"celsius": NaN}': ("bad_json", None),
    b"{'celsius': 1}": ("bad_json", None),
    b'{"celsius": 1e999}': ("wrong_type", "celsius: expected double, found 1e999"),
    b'{"celsius": 1, "battery": 99999999999}': (
        "wrong_type",
        "battery: expected int, found 99999999999",
    ),
    b'{"celsius": 1, "pos": {"lat": 1, "lon": "x"}}': (
        "wrong_type",
        'pos.lon: expected double, found "x"',
    ),
    b'{"celsius": 1, "pos": {"lat": 1e999}}': (
        "wrong_type",
        "pos.lat: expected double, found 1e999",
    ),
    b'{"celsius": "x", "celsius": 1}': (
        "wrong_type",
        'celsius (1 of 2 times): expected double, found "x"',
    ),
    b'{"celsius": 1, "pos": 5}': (
        "wrong_type",
        "pos: expected struct<lat:double,lon:double>, found 5",
    ),
    b"{}": ("missing_field", "celsius"),
    b'{"celsius": null}': ("missing_field", "celsius"),
    b'{"Celsius": 5}': ("missing_field", "celsius"),
    b'{"celsius": 1}': ("bad_time", None),
    b'{"celsius": 1, "at": -1}': ("bad_time", None),
    b'{"celsius": 1, "at": 9223372036854775807}': ("bad_time", None),
    b'{"celsius": 1, "at": 0}': ("late", "1970-01-01 00:00:00"),
    b'{"celsius": 1, "at": 253402300799000}': ("future", "9999-12-31 23:59:59"),
}


def test_payloads(spark: SparkSession) -> None:
    log = Log()
    messages: list[Message] = [log.message(payload) for payload in GOOD]
    messages += [log.message(payload) for payload in BAD]
    messages.append(log.message(None))
    messages.append(log.message("{}", topic="plant"))
    messages.append(log.message(f'{{"celsius": 1, {NOW}}}', topic="plant"))
    messages.append(log.message(f'{{"celsius": 1, {NOW}}}', topic="plant//x"))
    raw = frame(spark, messages).cache()
    try:
        taken = {row.offset: row for row in silver(raw, BY).collect()}
        left = {row.offset: row for row in dead_letters(raw, BY).collect()}
        assert len(taken) + len(left) == len(messages)
        for offset, expected in enumerate(GOOD.values()):
            row = taken[offset]
            assert (row.celsius, row.battery, row.name) == expected
            assert (row.device, row.event_time, row.message_id) == ("d1", at(0), None)
        found = {bytes(left[o].payload or b""): (left[o].reason, left[o].detail)
                 for o in range(len(GOOD), len(GOOD) + len(BAD))}  # fmt: skip
        assert found == BAD
        rest = [left[o].reason for o in range(len(GOOD) + len(BAD), len(messages))]
        assert rest == ["empty", "missing_field", "missing_device", "missing_device"]
        assert {row.reason for row in left.values()} == set(REASONS)
        # Nothing of a dead letter is lost: it goes back as it came.
        again = replayed(dead_letters(raw, BY))
        assert again.schema == schemas.RAW
        kept = {row.offset: row for row in raw.collect()}
        assert {row.offset: row for row in again.collect()} == {o: kept[o] for o in left}
        # And is silver as soon as the settings say so.
        mild = Silver(schema="Celsius double, unit string", device=Device(client_id=True))
        rows = {row.offset: row for row in silver(again, mild).collect()}
        odd = len(GOOD) + list(BAD).index(b'{"Celsius": 5}')
        assert rows[odd].Celsius == 5.0
        assert (rows[odd].device, rows[odd].event_time) == ("client", at(0))
    finally:
        raw.unpersist()


def test_columns_and_names(spark: SparkSession) -> None:
    by = Silver(
        schema="device string, Timestamp timestamp, `a.b` int, `x'y` int",
        device=Device(field="device"),
        event_time=EventTime(field="Timestamp"),
        deduplicate=("a.b",),
    )
    text = '{"device": "d7", "Timestamp": "2026-11-20T13:00:05+01:00", "a.b": 3, "x\'y": %s}'
    log = Log()
    messages = [log.message(text % 4), log.message(text % 5), log.message(text % '"five"')]
    [row] = batch(spark, messages, lambda raw: silver(raw, by))
    assert row.__fields__ == [
        "device", "event_time", "message_id", "payload_device", "payload_Timestamp", "a.b", "x'y",
        *schemas.SILVER_AFTER,
    ]  # fmt: skip
    assert (row.device, row.event_time, row["a.b"], row["x'y"]) == ("d7", at(5), 3, 4)
    [bad] = batch(spark, messages, lambda raw: dead_letters(raw, by))
    assert bad.reason == "wrong_type"


@pytest.mark.parametrize(
    ("kind", "unit", "value", "second"),
    [
        ("bigint", "s", str(epoch_ms(5) // 1000), 5.0),
        ("double", "s", f"{epoch_ms(5) / 1000 + 0.25}", 5.25),
        ("bigint", "ms", str(epoch_ms(5.5)), 5.5),
        ("bigint", "us", str(epoch_ms(5) * 1000 + 7), 5.000007),
        ("string", "ms", '"2026-11-20T12:00:05.125Z"', 5.125),
        ("string", "ms", '"yesterday"', None),
        ("timestamp", "ms", '"2026-11-20T12:00:05Z"', 5.0),
        ("double", "s", "1e300", None),
        ("decimal(20,3)", "s", "12345678901234567", None),
    ],
)
def test_times(spark: SparkSession, kind: str, unit: str, value: str, second: float | None) -> None:
    assert unit in ("s", "ms", "us")
    by = Silver(
        schema=f"at {kind}",
        device=Device(topic_level=1),
        event_time=EventTime(field="at", unit=unit),  # type: ignore[arg-type]
    )
    message = Log().message('{"at": ' + value + "}", 6)
    if second is None:
        [bad] = batch(spark, [message], lambda raw: dead_letters(raw, by))
        assert bad.reason == "bad_time"
    else:
        [row] = batch(spark, [message], lambda raw: silver(raw, by))
        assert row.event_time == at(second)


def test_decimals_and_times_are_exact_or_dead_letters(spark: SparkSession) -> None:
    exact = Silver(
        schema="price decimal(10,2), all array<decimal(5,1)>, day date, seen timestamp",
        device=Device(topic_level=1),
    )
    said = {
        '{"price": 1.230}': None,
        '{"price": 12300e-4, "all": [1.5, null, 10]}': None,
        '{"price": "7.25"}': None,
        '{"price": 0e-5}': None,
        '{"price": 1.234}': "price: expected decimal(10,2), found 1.234",
        '{"price": 123456789.01}': "price: expected decimal(10,2), found 123456789.01",
        '{"price": 1e100000000}': "price: expected decimal(10,2), found 1e100000000",
        '{"price": 1e-100000000}': "price: expected decimal(10,2), found 1e-100000000",
        '{"price": {"a": 1}}': "price: expected decimal(10,2), found an object",
        '{"all": [1.5, 2.25]}': "all[1]: expected decimal(5,1), found 2.25",
        '{"day": "2026-02-30"}': 'day: expected date, found "2026-02-30"',
        '{"day": "+12026-02-03"}': 'day: expected date, found "+12026-02-03"',
        '{"seen": "0000-01-01T00:00:00Z"}': 'seen: expected timestamp, found "0000-01-01T00:00:00Z"',
    }
    log = Log()
    messages = [log.message(payload) for payload in said]
    left = {row.offset: row for row in batch(spark, messages, lambda raw: dead_letters(raw, exact))}
    taken = {row.offset: row for row in batch(spark, messages, lambda raw: silver(raw, exact))}
    assert {n: left[n].detail if n in left else None for n in range(len(said))} == dict(
        enumerate(said.values())
    )
    assert {row.reason for row in left.values()} == {"wrong_type"}
    assert [str(taken[n].price) for n in range(4)] == ["1.23", "1.23", "7.25", "0.00"]
    assert [str(one) for one in taken[1]["all"]] == ["1.5", "None", "10.0"]
    rounded = replace(exact, rounding="half_up")
    prices = {
        row.offset: str(row.price)
        for row in batch(spark, messages, lambda raw: silver(raw, rounded))
    }
    assert prices[4] == "1.23"
    assert set(prices) == {0, 1, 2, 3, 4, 9}


def test_times_at_the_edge(spark: SparkSession) -> None:
    log = Log()
    said = {600_000: None, 600_001: "late", -60_000: None, -60_001: "future"}
    messages = [
        log.message({"celsius": 1, "at": epoch_ms(0) - behind}, topic=f"plant/{behind}/x")
        for behind in said
    ]
    left = batch(spark, messages, lambda raw: dead_letters(raw, BY))
    assert {row.topic.split("/")[1]: row.reason for row in left} == {
        str(behind): reason for behind, reason in said.items() if reason
    }


def test_a_payload_is_parsed_once(spark: SparkSession) -> None:
    raw = frame(spark, [Log().message("{}")])
    for made in (silver(raw, BY), dead_letters(raw, BY)):
        plan = made._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("from_json(") == 1, plan


def test_a_payload_of_megabytes(spark: SparkSession) -> None:
    """A payload that exceeds the JSON parser's length limit becomes a dead letter, and the query continues."""
    by = Silver(schema="name string", device=Device(client_id=True))
    huge = '{"name": "%s"}' % ("x" * 21_000_000)
    assert sys.getsizeof(huge) > 20_000_000
    messages = [Log().message(huge)]
    [(reason, size)] = (
        dead_letters(frame(spark, messages), by).selectExpr("reason", "length(payload)").collect()
    )
    assert (reason, size) == ("bad_json", len(huge))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schema": "celsius dubble"}, "silver.schema is no DDL such as"),
        ({"schema": "double"}, "silver.schema"),
        ({"schema": "a int, A int"}, "silver.schema names a twice"),
        (
            {"device": Device(field="id")},
            "silver.device.field is 'id', which silver.schema does not",
        ),
        ({"event_time": EventTime(field="when")}, "silver.event_time.field is 'when'"),
        ({"event_time": EventTime(field="pos")}, "a time is a number, a string or a timestamp"),
        ({"deduplicate": ("Device",)}, "silver.deduplicate names 'Device', which is not a column"),
    ],
)
def test_settings_that_do_not_fit(spark: SparkSession, more: dict[str, object], said: str) -> None:
    with pytest.raises(PipelineError, match=r"^[^\n]*$") as raised:
        silver(frame(spark, [Log().message("{}")]), replace(BY, **more))  # type: ignore[arg-type]
    assert said in str(raised.value)
