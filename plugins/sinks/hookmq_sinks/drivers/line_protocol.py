"""InfluxDB's line protocol: one line of text per point.

    MEASUREMENT,TAG=VALUE FIELD=VALUE,FIELD=VALUE TIMESTAMP

In names and tag values, a backslash escapes commas, equals signs and spaces. A backslash itself cannot be escaped
there, so no name can end with one. In string values of fields, a backslash escapes quotes and backslashes.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

from hookmq_sinks.driver import RecordError, to_bytes

FieldType = Literal["integer", "float", "boolean", "string"]
Precision = Literal["ns", "us", "ms", "s"]

UNITS: Final[Mapping[Precision, int]] = {
    "ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000,
}  # fmt: skip
"""The number of nanoseconds in each unit."""
_FIRST, _LAST = -(1 << 63) + 2, (1 << 63) - 2
"""The first and last timestamp that InfluxDB accepts, in nanoseconds."""
_MEASUREMENT: Final = re.compile(r"[, ]")
_KEY: Final = re.compile(r"[,= ]")
_QUOTED: Final = re.compile(r'["\\]')
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def line(
    measurement: str,
    tags: Mapping[str, str],
    fields: Mapping[str, str],
    nanoseconds: int,
) -> bytes:
    """Return a line without its newline. The values in `fields` come from `field_value`. Raises RecordError."""
    if not fields:
        raise RecordError("no value for any of the fields")
    found = mistake(measurement, "measurement")
    if measurement.startswith("#"):
        found = "the measurement begins with #"
    if found:
        raise RecordError(found)
    words = [_escape(_MEASUREMENT, measurement)]
    for name, value in tags.items():
        found = mistake(value, f"tag {name}")
        if found:
            raise RecordError(found)
        words.append(f",{_escape(_KEY, name)}={_escape(_KEY, value)}")
    given = ",".join(f"{_escape(_KEY, name)}={value}" for name, value in fields.items())
    return f"{''.join(words)} {given} {nanoseconds}".encode()


def mistake(text: str, what: str) -> str:
    """Return why `text` is not a valid measurement, tag, field name or tag value, or '' if it is valid."""
    if not text:
        return f"the {what} is empty"
    if text.endswith("\\"):
        return f"the {what} ends with a backslash"
    if _CONTROL.search(text):
        return f"the {what} contains a control character, such as the end of a line"
    return ""


def field_value(name: str, value: Any, kind: FieldType | None) -> str:
    """Format a field's value for a line. Without a type, all numbers become floats. Raises RecordError."""
    value = _text(value, f"field {name}")
    if kind is None:
        kind = "boolean" if isinstance(value, bool) else "string"
        if isinstance(value, int | float) and not isinstance(value, bool):
            kind = "float"
    if kind == "string":
        return f'"{_QUOTED.sub(_backslash, to_bytes(value).decode())}"'
    found: str | None
    if kind == "boolean":
        found = _boolean(value)
    elif kind == "integer":
        found = _integer(value)
    else:
        found = _float(value)
    if found is None:
        raise RecordError(f"field {name}: {_shown(value)} is not {_NAMES[kind]}")
    return found


def nanoseconds(value: Any, precision: Precision) -> int:
    """Convert a timestamp to nanoseconds. Raises RecordError.

    `value` is a number in the unit `precision`, or text such as 2026-01-31T12:00:00.123Z. Text without an offset is in
    UTC.
    """
    value = _text(value, "timestamp")
    found: int | None = None
    number = None if isinstance(value, bool) else _decimal(value)
    if number is not None and abs(number) < 1 << 64:
        found = round(number * UNITS[precision])
    elif isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise RecordError(f"timestamp: {_shown(value)} is not a time") from None
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
        found = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
    if found is None:
        raise RecordError(f"timestamp: {_shown(value)} is not a time")
    if not _FIRST <= found <= _LAST:
        raise RecordError(f"timestamp: {_shown(value)} is outside the years 1677 to 2262")
    return found


_NAMES: Final[Mapping[FieldType, str]] = {
    "integer": "a whole number of 64 bits",
    "float": "a finite number",
    "boolean": "true or false",
    "string": "a text",
}


def _text(value: Any, what: str) -> Any:
    """Decode bytes, such as a raw payload, as text. Return any other value unchanged."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RecordError(f"{what}: the value is not UTF-8 text") from None


def _boolean(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value.lower() if isinstance(value, str) else ""
    return text if text in ("true", "false") else None


def _integer(value: Any) -> str | None:
    number = None if isinstance(value, bool) else _decimal(value)
    if number is None or not -(1 << 63) <= number < 1 << 63 or number != int(number):
        return None
    return f"{int(number)}i"


def _float(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return repr(number) if math.isfinite(number) else None


def _decimal(value: Any) -> Decimal | None:
    """Convert a number, or text that contains a number, to an exact Decimal. Return None if it is not finite."""
    if not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(value) if isinstance(value, int) else Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _escape(special: re.Pattern[str], text: str) -> str:
    return special.sub(_backslash, text)


def _backslash(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
