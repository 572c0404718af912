"""The contents of the files that the `file` and `s3` drivers write: JSON lines, or Parquet with typed columns."""

import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Final, Literal, Protocol

from hookmq_sinks.driver import Record, RecordError, RecordTemplate, json_default, to_bytes

Type = Literal["string", "long", "double", "boolean", "timestamp", "binary"]
Row = Any
"""A line as bytes, or a row as a mapping."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Rows(Protocol):
    """Converts records to rows, and rows to a file."""

    suffix: str
    content_type: str

    def row(self, record: Record) -> Row:
        """Convert a record to a row. Raises RecordError."""

    def file(self, rows: Sequence[Row]) -> bytes:
        """Return the contents of a file with these rows. This is slow, so call it in a thread."""


class JsonLines:
    """Writes JSON lines with the payload and all properties of a message, or with the configured fields."""

    content_type = "application/x-ndjson"

    def __init__(self, fields: Mapping[str, Any], compression: str) -> None:
        self._fields = {name: _field(one, name) for name, one in fields.items()}
        self._packed = compression == "gzip"
        self.suffix = ".jsonl.gz" if self._packed else ".jsonl"

    def row(self, record: Record) -> Row:
        """Convert a record to a line. Raises RecordError."""
        made = {name: one(record) for name, one in self._fields.items()} or envelope(record)
        try:
            text = json.dumps(
                made, ensure_ascii=False, separators=(",", ":"), default=json_default,
                allow_nan=False,
            )  # fmt: skip
            return text.encode() + b"\n"
        except (ValueError, RecursionError) as error:
            raise RecordError(f"not a JSON value: {error}") from None

    def file(self, rows: Sequence[Row]) -> bytes:
        """Return the contents of the file. The same rows always give the same bytes."""
        data = b"".join(rows)
        return gzip.compress(data, 6, mtime=0) if self._packed else data


class Parquet:
    """Writes Parquet. Each column has one type, so all files of a sink have the same schema."""

    content_type = "application/vnd.apache.parquet"
    suffix = ".parquet"

    def __init__(
        self, fields: Mapping[str, Any], types: Mapping[str, Type], compression: str
    ) -> None:
        self._columns = [
            (name, _field(one, name), types.get(name, "string")) for name, one in fields.items()
        ]
        self._compression = compression

    def row(self, record: Record) -> Row:
        """Convert a record to a row. Raises RecordError if a value does not fit its column."""
        if not self._columns:
            return _whole(record)
        return {name: _convert(name, find(record), kind) for name, find, kind in self._columns}

    def file(self, rows: Sequence[Row]) -> bytes:
        """Return the contents of the file."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        table = pa.Table.from_pylist(list(rows), schema=self.schema())
        sink = io.BytesIO()
        pq.write_table(table, sink, compression=self._compression)
        return sink.getvalue()

    def schema(self) -> Any:
        """Return the schema of each file, a `pyarrow.Schema`."""
        import pyarrow as pa

        types = {
            "string": pa.string(), "long": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
            "timestamp": pa.timestamp("us", tz="UTC"), "binary": pa.binary(),
        }  # fmt: skip
        if self._columns:
            columns = [(name, types[kind]) for name, _, kind in self._columns]
        else:
            columns = [(name, types[kind]) for name, kind in _WHOLE.items()]
            columns.append(("user_properties", pa.list_(pa.list_(pa.string()))))
        return pa.schema(columns)


_WHOLE: Final[Mapping[str, Type]] = {
    "id": "string", "topic": "string", "received_at": "timestamp", "qos": "long", "retain": "boolean",
    "key": "string", "client_id": "string", "content_type": "string", "response_topic": "string",
    "correlation_data": "binary", "payload": "binary",
}  # fmt: skip
"""A message's columns if `fields` is not set. The list of user properties follows them."""


def _whole(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name, None) for name in _WHOLE}
    row["received_at"] = _EPOCH + timedelta(microseconds=round(record.received_at * 1_000_000))
    row["payload"] = record.body
    row["user_properties"] = [list(one) for one in record.user_properties]
    return row


def envelope(record: Record) -> dict[str, Any]:
    """Return a message's payload and all its properties as a JSON value. Unset properties are omitted."""
    made: dict[str, Any] = {
        "id": record.id, "topic": record.topic, "received_at": record.received_at, "qos": record.qos,
    }  # fmt: skip
    if isinstance(record.value, bytes):
        try:
            made["payload"] = record.value.decode()
        except UnicodeDecodeError:
            made["payload_base64"] = record.value
    else:
        made["payload"] = record.value
    for name in ("key", "client_id", "content_type", "response_topic", "correlation_data"):
        if (value := getattr(record, name)) is not None:
            made[name] = value
    if record.retain:
        made["retain"] = True
    if record.user_properties:
        made["user_properties"] = list(record.user_properties)
    return made


def _field(template: Any, name: str) -> Callable[[Record], Any]:
    """Return a function that computes a field's value from a record. A template that is not text is used as a
    constant.
    """
    if isinstance(template, str):
        return RecordTemplate(template, f"fields.{name}").optional
    return lambda record: template


def _convert(name: str, value: Any, kind: Type) -> Any:
    """Convert a value to the type of its column. Raises RecordError."""
    if value is None:
        return None
    try:
        return _CONVERT[kind](value)
    except (ValueError, OverflowError, RecursionError):
        shown = repr(value)[:60]
        raise RecordError(f"{name}: {shown} is not a value of the type {kind}") from None


def _text(value: Any) -> str:
    if isinstance(value, str):
        value.encode()  # JSON may contain half of a surrogate pair
        return value
    return to_bytes(value).decode()


def _long(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise ValueError
    return value


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _timestamp(value: Any) -> datetime:
    """Convert ISO 8601 text with an offset, or epoch seconds, to a datetime."""
    if isinstance(value, str):
        time = datetime.fromisoformat(value)
        if time.tzinfo is None:
            raise ValueError
        return time.astimezone(UTC)
    if isinstance(value, datetime):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError
    return _EPOCH + timedelta(microseconds=round(value * 1_000_000))


_CONVERT: Final[Mapping[Type, Callable[[Any], Any]]] = {
    "string": _text,
    "long": _long,
    "double": _double,
    "boolean": _boolean,
    "timestamp": _timestamp,
    "binary": to_bytes,
}

__all__ = ["JsonLines", "Parquet", "Row", "Rows", "Type", "envelope"]
