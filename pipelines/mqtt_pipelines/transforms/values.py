"""Handle payload values, at any depth of a type, that Spark's JSON parser would change or that would end a query.

Spark silently rounds decimals, so they are read with as many digits as possible. A decimal such as 1e100000000 would
keep Spark's parser busy for hours, so such text is not parsed. Times outside the years 1 to 9999 are refused, because
Python and most tools that read tables do not support them.
"""

from collections.abc import Callable
from typing import Final, Literal

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

Rounding = Literal["fail", "half_up"]
DIGITS: Final = 38
"""Maximum number of digits in a decimal."""
HUGE: Final = r"""[:\[,]\s*"?\s*[+-]?[0-9.]+[eE][+-]?[0-9]{4,}\s*"?\s*[,\]}]"""
"""Matches a number in JSON whose exponent has more than three digits."""


def huge(text: Column, kind: DataType) -> Column:
    """Return whether `text` is too dangerous to parse as `kind`.

    This is the case if `kind` contains decimals and the text contains a number that matches `HUGE`.
    """
    return text.rlike(HUGE) if _has(kind, DecimalType) else f.lit(False)


def readable(kind: DataType) -> DataType:
    """Return the type to use for reading JSON that will become `kind`. In this type, every field may be null, and
    decimals have as many digits as possible after the point.
    """
    if isinstance(kind, DecimalType):
        return DecimalType(DIGITS, DIGITS - kind.precision + kind.scale)
    if isinstance(kind, StructType):
        return StructType([StructField(one.name, readable(one.dataType)) for one in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(readable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, readable(kind.valueType))
    return kind


def value(read: Column, kind: DataType) -> Column:
    """Convert a value that was read as `readable` to the type `kind`. Decimals are rounded. A decimal that does not fit
    becomes null.
    """
    if not _has(kind, DecimalType):
        return read
    if isinstance(kind, StructType):
        fields = [
            value(read.getField(one.name), one.dataType).alias(one.name) for one in kind.fields
        ]
        return f.when(read.isNotNull(), f.struct(*fields))
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return f.transform(read, lambda one: value(one, inner))
    if isinstance(kind, MapType):
        other = kind.valueType
        return f.transform_values(read, lambda _, one: value(one, other))
    return read.try_cast(kind)


def refused(read: Column, kind: DataType, rounding: Rounding) -> Column | None:
    """Return whether a value that was read as `readable` is out of range or would be rounded. Return None if `kind`
    cannot have such values.
    """
    if isinstance(kind, StructType):
        tests = [refused(read.getField(one.name), one.dataType, rounding) for one in kind.fields]
        found: Column | None = None
        for test in tests:
            if test is not None:
                found = test if found is None else found | test
        return found
    if isinstance(kind, ArrayType):
        return _any(read, kind.elementType, rounding)
    if isinstance(kind, MapType):
        return _any(f.map_values(read), kind.valueType, rounding)
    if isinstance(kind, DecimalType):
        kept = read.try_cast(kind)
        wrong = kept.isNull() | (kept != read) if rounding == "fail" else kept.isNull()
        return f.coalesce(read.isNotNull() & wrong, f.lit(False))
    leaf = _LEAVES.get(type(kind))
    return None if leaf is None else f.coalesce(leaf(read), f.lit(False))


def _any(read: Column, kind: DataType, rounding: Rounding) -> Column | None:
    if not _has(kind, DecimalType, *_LEAVES):
        return None

    def test(one: Column) -> Column:
        wrong = refused(one, kind, rounding)
        assert wrong is not None
        return wrong

    return f.coalesce(f.exists(read, test), f.lit(False))


def _infinite(read: Column) -> Column:
    return f.abs(read) == float("inf")


def _no_year(read: Column) -> Column:
    return ~f.year(read).between(1, 9999)


_LEAVES: Final[dict[type[DataType], Callable[[Column], Column]]] = {
    DoubleType: _infinite,
    FloatType: _infinite,
    DateType: _no_year,
    TimestampType: _no_year,
    TimestampNTZType: _no_year,
}


def _has(kind: DataType, *wanted: type[DataType]) -> bool:
    if isinstance(kind, StructType):
        return any(_has(one.dataType, *wanted) for one in kind.fields)
    if isinstance(kind, ArrayType):
        return _has(kind.elementType, *wanted)
    if isinstance(kind, MapType):
        return _has(kind.valueType, *wanted)
    return isinstance(kind, wanted)
