"""Explain which field of a payload has the wrong type, what was expected, and what was found.

Spark's parser reports only that something is wrong. This module runs on executors, and only for dead letters.
"""

import datetime
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mqtt_pipelines.transforms.values import Rounding

MOST: Final = 5
"""Maximum number of mistakes to name."""
SHOWN: Final = 40
"""Maximum number of characters of a value to show."""
_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}
_NUMBER: Final = re.compile(r"\A[+-]?[0-9]{1,999}(\.[0-9]{0,999})?([eE][+-]?[0-9]{1,3})?\Z")
_TIME: Final = re.compile(r"\A\d{4}(-\d{1,2}(-\d{1,2}([ T].*)?)?)?\Z", re.DOTALL)


class Number(str):
    """A number's text, exactly as it was sent."""


class Object(list[tuple[str, Any]]):
    """An object's keys and values. A key may be repeated."""


def mistakes(payload: bytes, schema: StructType, rounding: Rounding) -> str:
    """Return a text such as ``pos.lon: expected double, found "x"``, or '' if there is no mistake."""
    try:
        given = json.loads(payload, object_pairs_hook=Object, parse_int=Number, parse_float=Number)
    except (ValueError, RecursionError):
        return ""
    found: list[str] = []
    for path, expected, value in _wrong(given, schema, "", rounding):
        if len(found) == MOST:
            found.append("and more")
            break
        found.append(f"{path}: expected {expected}, found {_shown(value)}")
    return "; ".join(found)


def _wrong(
    value: Any, kind: DataType, path: str, rounding: Rounding
) -> Iterator[tuple[str, str, Any]]:
    if value is None:
        return
    if isinstance(kind, StructType) and isinstance(value, Object):
        for field in kind.fields:
            same = [one for key, one in value if key == field.name]
            for number, one in enumerate(same, 1):
                name = f"{path}.{field.name}" if path else field.name
                times = f" ({number} of {len(same)} times)" if len(same) > 1 else ""
                yield from _wrong(one, field.dataType, name + times, rounding)
    elif isinstance(kind, ArrayType) and isinstance(value, list) and not isinstance(value, Object):
        for number, one in enumerate(value):
            yield from _wrong(one, kind.elementType, f"{path}[{number}]", rounding)
    elif isinstance(kind, MapType) and isinstance(value, Object):
        for key, one in value:
            yield from _wrong(one, kind.valueType, f"{path}.{key[:SHOWN]}", rounding)
    elif not _fits(value, kind, rounding):
        yield path, kind.simpleString(), value


def _fits(value: Any, kind: DataType, rounding: Rounding) -> bool:
    """Return whether Spark accepts a value as being of type `kind`."""
    if isinstance(kind, StructType | ArrayType | MapType):
        return False
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if bits := _BITS.get(type(kind)):
        if not isinstance(value, Number) or not value.lstrip("-").isdigit():
            return False
        return len(value) < 30 and -(2 ** (bits - 1)) <= int(value) < 2 ** (bits - 1)
    if isinstance(kind, DoubleType | FloatType):
        largest = 3.4028235677973366e38 if isinstance(kind, FloatType) else float("inf")
        return isinstance(value, Number) and abs(float(value)) < largest
    if isinstance(kind, DecimalType):
        return isinstance(value, str) and _is_decimal(value, kind, rounding)
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return isinstance(value, str) and (
            (isinstance(value, Number) and not isinstance(kind, DateType)) or _is_time(value)
        )
    return True


def _is_decimal(text: str, kind: DecimalType, rounding: Rounding) -> bool:
    if not _NUMBER.match(text):
        return False
    exact = Decimal(text).normalize()
    _, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    fits = len(digits) + exponent <= kind.precision - kind.scale or not exact
    return fits and (rounding != "fail" or -exponent <= kind.scale or not exact)


def _is_time(text: str) -> bool:
    if not _TIME.match(text):
        return False
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return len(text) < len("2026-11-20")
    return True


def _shown(value: Any) -> str:
    if isinstance(value, Object):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = value if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
