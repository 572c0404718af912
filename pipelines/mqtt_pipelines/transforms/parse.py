"""Parse payloads. Each message yields either its values or the reason why it cannot be parsed.

JSON is parsed strictly: the payload must be a single object, with nothing after it, and without NaN or single quotes.
Fields that the schema does not name are ignored. If a key is repeated, the last value counts, but every value must have
the field's type.
"""

from dataclasses import dataclass, field
from functools import reduce
from typing import Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DecimalType,
    IntegralType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import PipelineError, Seconds, required, setting
from mqtt_pipelines.transforms.values import Rounding, huge, readable, refused, value

REASONS: Final = {
    "empty": "it has no payload",
    "not_utf8": "it is not UTF-8 text",
    "bad_json": "it is not JSON, or not one value",
    "not_an_object": "it is JSON, but no object",
    "wrong_type": "a field is of another type than the schema's, or out of its range; "
    "`detail` says which, what was expected and what was found",
    "missing_field": "a field that is `not null` is missing; `detail` names it",
    "missing_device": "the device's name is missing where the configuration seeks it",
    "bad_time": "the event's time is missing or no time",
    "late": "the broker got it too long after its event",
    "future": "its event is too far ahead of the broker's clock",
}
"""The reasons for dead letters, in the order of checking. The first reason that applies is used."""

PARSED: Final = "_parsed"
DEVICE: Final = "_device"
EVENT_TIME: Final = "_event_time"
REASON: Final = "_reason"
DETAIL: Final = "_detail"
"""The columns that `judge` adds."""

_CORRUPT: Final = "_corrupt"
_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
}
_LAST_SECOND: Final = 253_402_300_799  # in the year 9999; later times would end the query
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``silver.device:`` where to find the device's name. Set one of these keys."""

    topic_level: int | None = setting(None, "the topic's level, counted from 0", maximum=65535)
    field: str = setting("", "a field of the payload")
    client_id: bool = setting(False, "the publisher's client id")

    def __post_init__(self) -> None:
        if (self.topic_level is not None) + bool(self.field) + self.client_id != 1:
            raise ValueError("give one of topic_level, field and client_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """``silver.event_time:`` when the event happened; by default, when the broker received the message."""

    field: str = setting("", "a field of the payload; empty: the time at the broker")
    unit: Literal["s", "ms", "us"] = setting(
        "ms", "unit of a number since 1970; text is read as 2026-11-20T12:00:00Z"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Silver:
    """``silver:`` how payloads are read, which messages are duplicates, and how late a message may arrive."""

    schema: str = required("the payload's fields in DDL: `celsius double not null, battery int`")
    device: Device = field(metadata={"help": "where to find the device's name"})
    event_time: EventTime = EventTime()
    message_id: str = setting(
        "message-id", "the user property that identifies a message that is sent again"
    )
    deduplicate: tuple[str, ...] = setting(
        ("message_id",),
        "columns of silver that are equal in duplicates; a message without message_id has no duplicates. "
        "Empty: keep all messages",
    )
    late: Seconds = setting(600.0, "how long after its event a message may reach the broker")
    ahead: Seconds = setting(60.0, "how far a device's clock may be ahead of the broker's")
    slack: Seconds = setting(60.0, "how far one partition may be read ahead of another")
    rounding: Rounding = setting(
        "fail",
        "a number with more digits after the point than its `decimal`: fail makes it a dead letter, half_up rounds it. "
        "Digits after the 38th are not compared",
    )

    @property
    def watermark(self) -> float:
        """Return how many seconds the watermark lags behind the newest event. It drops only rows that are already
        `late`.
        """
        return (
            self.late + self.ahead + self.slack + 0.001
        )  # Spark also drops rows exactly at the watermark.


def payload_schema(by: Silver) -> StructType:
    """Return the payload's fields. Requires a Spark session. Raises PipelineError for invalid DDL."""
    try:
        found = StructType.fromDDL(by.schema)
    except PySparkException as error:
        why = next(iter(str(error).strip().splitlines()), "")
        raise PipelineError(
            f"silver.schema is no DDL such as `celsius double, at bigint`: {why}"
        ) from None
    if not isinstance(found, StructType):
        raise PipelineError(
            "silver.schema names a type and no fields: give names, too, as `celsius double`."
        )
    names = [one.name.lower() for one in found.fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PipelineError(
            f"silver.schema names {min(twice)} twice; Spark does not tell case apart."
        )
    _seek(found, by.device.field, "silver.device.field")
    _seek(found, by.event_time.field, "silver.event_time.field")
    return found


def column_name(name: str) -> str:
    """Return the name of silver's column for a payload field. If silver already has a column with the field's name, the
    prefix ``payload_`` is added.
    """
    own = {*schemas.SILVER_BEFORE, *schemas.SILVER_AFTER}
    return f"payload_{name}" if name.lower() in own else name


def judge(raw: DataFrame, by: Silver) -> DataFrame:
    """Add the payload's fields, the device and the event time to rows of `schemas.RAW`. The fields are stored in one
    struct.

    Dead letters also get a reason and details. In all other rows, both are null.
    """
    payload = payload_schema(by)
    text = f.col("payload").cast("string")
    whole = StructType([StructField("p", readable(payload)), StructField(_CORRUPT, StringType())])
    # A parser for a single value ignores the text after it. Inside an object, only one value is accepted.
    wrapped = f.concat(f.lit('{"p":'), text, f.lit("}"))
    parsed = f.from_json(wrapped, whole, _OPTIONS)
    # Without this, the optimizer would repeat the parser for each of the ten tests below that use its result.
    unread = huge(text, payload)
    once = f.explode(f.array(f.when(f.is_valid_utf8(text) & ~unread, parsed)))
    read = {one.name: f.col("_json.p").getField(one.name) for one in payload.fields}
    frame = raw.select("*", once.alias("_json"))
    frame = frame.withColumn(PARSED, value(f.col("_json.p"), payload))
    single = f.json_array_length(f.concat(f.lit("["), text, f.lit("]"))) == 1
    fields = {one.name: f.col(PARSED).getField(one.name) for one in payload.fields}
    wrong = [
        _named(one, _is_wrong(one, fields[one.name], read[one.name], text, by.rounding))
        for one in payload.fields
    ]
    needed = [one for one in payload.fields if not one.nullable]
    missing = [_named(one, fields[one.name].isNull()) for one in needed]
    frame = frame.withColumn(DEVICE, _device(by, fields)).withColumn(
        EVENT_TIME, _event_time(by, payload, fields)
    )
    out = refused(f.col("_json.p"), payload, by.rounding)
    corrupt = f.col(f"_json.{_CORRUPT}").isNotNull()
    brace = text.rlike(r"\A[ \t\r\n]*\{")
    behind = f.unix_micros("timestamp") - f.unix_micros(EVENT_TIME)
    no_device = f.col(DEVICE).isNull() | (f.col(DEVICE) == "")
    tests: dict[str, Column] = {
        "empty": f.coalesce(f.octet_length("payload"), f.lit(0)) == 0,
        "not_utf8": ~f.is_valid_utf8(text),
        "bad_json": ~f.coalesce(single, f.lit(False)) | (brace & f.col(PARSED).isNull() & ~unread),
        "not_an_object": ~brace,
        "wrong_type": _any([unread, corrupt, *([] if out is None else [out])]),
        "missing_field": _any([fields[one.name].isNull() for one in needed]),
        "missing_device": no_device,
        "bad_time": f.col(EVENT_TIME).isNull(),
        "late": behind > int(by.late * 1e6),
        "future": behind < -int(by.ahead * 1e6),
    }
    assert tests.keys() == REASONS.keys()
    reason = f.lit(None).cast("string")
    for name in reversed(tests):
        reason = f.when(tests[name], name).otherwise(reason)
    frame = frame.withColumn(REASON, reason)
    detail = (
        f.when((f.col(REASON) == "wrong_type") & unread, "an exponent has more than three digits")
        .when(f.col(REASON) == "wrong_type", f.array_join(_list(wrong), ", "))
        .when(f.col(REASON) == "missing_field", f.array_join(_list(missing), ", "))
        .when(f.col(REASON).isin("late", "future"), f.col(EVENT_TIME).cast("string"))
    )
    return frame.withColumn(DETAIL, detail).drop("_json")


def _seek(found: StructType, name: str, key: str) -> None:
    if name and name not in found.names:
        known = ", ".join(found.names)
        raise PipelineError(
            f"{key} is {name!r}, which silver.schema does not name: it has {known}."
        )


def _named(one: StructField, test: Column) -> Column:
    return f.when(test, one.name)


def _any(tests: list[Column]) -> Column:
    return reduce(lambda one, other: one | other, tests, f.lit(False))


def _list(names: list[Column]) -> Column:
    """Return the names of the conditions that are true."""
    if not names:
        return f.array().cast("array<string>")
    return f.array_compact(f.array(*names))


def _is_wrong(
    one: StructField, value: Column, read: Column, text: Column, rounding: Rounding
) -> Column:
    """Return whether a field contains something that could not be parsed."""
    there = f.get_json_object(text, f"$['{one.name}']").isNotNull() & value.isNull()
    out = refused(read, one.dataType, rounding)
    return there if out is None else there | out


def _device(by: Silver, fields: dict[str, Column]) -> Column:
    if by.device.topic_level is not None:
        return f.get(f.split("topic", "/"), f.lit(by.device.topic_level))
    return f.col("client_id") if by.device.client_id else fields[by.device.field].cast("string")


def _event_time(by: Silver, payload: StructType, fields: dict[str, Column]) -> Column:
    name = by.event_time.field
    if not name:
        return f.col("timestamp")
    kind, value = payload[name].dataType, fields[name]
    if isinstance(kind, TimestampType | TimestampNTZType):
        return value.cast("timestamp")
    if isinstance(kind, StringType):
        return f.try_to_timestamp(value)
    if not isinstance(kind, NumericType):
        raise PipelineError(
            f"silver.event_time.field is {name!r}, which is {kind.simpleString()}: a time is a number, a string or a "
            "timestamp."
        )
    per_second = _PER_SECOND[by.event_time.unit]
    possible = value.between(0, _LAST_SECOND * per_second)
    if isinstance(kind, DecimalType):
        value = value.cast("decimal(38,6)")
    elif isinstance(kind, IntegralType):
        value = value.cast("long")
    micros = f.round(value * (1_000_000 // per_second)).cast("long")
    return f.when(possible, f.timestamp_micros(micros))
