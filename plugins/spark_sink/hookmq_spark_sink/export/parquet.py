"""Write blocks as Parquet files with the columns of Spark's ``format("mqtt")``.

pyarrow is imported on first use. A block's buffers are already Arrow buffers, so Python never handles individual rows.
"""

import io
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from hookmq.plugin import StoreError

from hookmq_spark_sink import block
from hookmq_spark_sink.export.places import package

GROUP_ROWS: Final = 1 << 20
GROUP_BYTES: Final = 64 << 20
"""Bytes in a row group."""
_DICTIONARY: Final = (
    "topic", "client_id", "content_type", "response_topic", "headers.list.element.key",
)  # fmt: skip
_STATISTICS: Final = ("topic", "qos", "retain", "partition", "offset", "timestamp", "client_id")


class Part(NamedTuple):
    """The rows of a block with `first` <= offset < `end`."""

    block: block.Block
    first: int
    end: int


class Parquet:
    """Writes files that Spark's file source reads as if they came from ``format("mqtt")`` with every column."""

    suffix: Final = ".parquet"

    def __init__(self, compression: str = "zstd") -> None:
        """Import pyarrow. Raises UsageError if it is not installed."""
        self._arrow = package("pyarrow")
        self._parquet = package("pyarrow.parquet")
        self._compression = compression
        self.schema = _schema(self._arrow)

    def write(self, file: BinaryIO, parts: Iterable[Part], facts: dict[str, str]) -> int:
        """Write a file with `facts` in its footer. Return the number of rows.

        Raises block.Damaged for a damaged block, and passes on any error from `file`.
        """
        schema = self.schema.with_metadata(facts)
        rows = 0
        with self._parquet.ParquetWriter(
            file,
            schema,
            compression=self._compression,
            use_dictionary=list(_DICTIONARY),
            write_statistics=list(_STATISTICS),
            version="2.6",
        ) as writer:
            for group in self._groups(parts, facts["hookmq.log_id"]):
                table = self._arrow.Table.from_batches(group, self.schema).combine_chunks()
                writer.write_table(table, row_group_size=GROUP_ROWS)
                rows += table.num_rows
        return rows

    def _groups(self, parts: Iterable[Part], log_id: str) -> Iterator[list[Any]]:
        held: list[Any] = []
        rows = size = 0
        for part in parts:
            bytes_of_it = sum(len(data) for data in part.block.buffers.values())
            if held and (rows + part.block.count > GROUP_ROWS or size + bytes_of_it > GROUP_BYTES):
                yield held
                held, rows, size = [], 0, 0
            batch = self._batch(part, log_id)
            held.append(batch)
            rows += batch.num_rows
            size += bytes_of_it
        if held:
            yield held

    def _batch(self, part: Part, log_id: str) -> Any:
        arrow, found = self._arrow, part.block
        try:
            arrays = [_array(arrow, found, field, log_id) for field in self.schema]
            batch = arrow.RecordBatch.from_arrays(arrays, schema=self.schema)
            batch.validate()
        except (KeyError, arrow.ArrowException) as error:
            raise block.Damaged(f"the columns do not match: {error}") from None
        first = max(part.first, found.base)
        return batch.slice(first - found.base, min(part.end, found.end) - first)

    def inspect(self, data: bytes) -> tuple[int, dict[str, str]]:
        """Return the number of rows in a file, and its facts. Raises StoreError if the file was not written by an
        export.
        """
        try:
            found = self._parquet.ParquetFile(io.BytesIO(data)).metadata
        except self._arrow.ArrowException as error:
            raise StoreError(
                f"is not a complete Parquet file: {' '.join(str(error).split())}"
            ) from None
        facts = {
            key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for key, value in (found.metadata or {}).items()
        }
        return found.num_rows, facts


def _schema(arrow: Any) -> Any:
    """Return the columns of ``format("mqtt")`` with includeProperties and includeHeaders, in the same order, followed
    by `log_id`.
    """
    pair = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
    return arrow.schema(
        [
            ("topic", arrow.string()),
            ("payload", arrow.binary()),
            ("qos", arrow.int32()),
            ("retain", arrow.bool_()),
            ("partition", arrow.int32()),
            ("offset", arrow.int64()),
            ("timestamp", arrow.timestamp("us", tz="UTC")),
            ("client_id", arrow.string()),
            ("content_type", arrow.string()),
            ("response_topic", arrow.string()),
            ("correlation_data", arrow.binary()),
            ("headers", arrow.list_(arrow.field("element", pair))),
            ("log_id", arrow.string()),
        ]
    )


def _array(arrow: Any, found: block.Block, field: Any, log_id: str) -> Any:
    count, name = found.count, field.name

    def buffer(role: int) -> Any:
        data = found.buffers.get((block.COLUMNS[name], role))
        return None if data is None else arrow.py_buffer(data)

    if name == "log_id":
        return arrow.repeat(arrow.scalar(log_id, field.type), count)
    if name == "partition":
        return arrow.repeat(arrow.scalar(found.partition, field.type), count)
    if name == "offset":
        places = arrow.py_buffer(array("q", range(found.base, found.end)))
        return arrow.Array.from_buffers(field.type, count, [None, places])
    if name in ("qos", "retain"):
        return arrow.Array.from_buffers(arrow.int8(), count, [None, buffer(block.VALUES)]).cast(
            field.type
        )
    if name == "timestamp":
        return arrow.Array.from_buffers(field.type, count, [None, buffer(block.VALUES)])
    offsets = buffer(block.OFFSETS)
    if name == "headers":
        return _headers(arrow, buffer, offsets, count, field.type)
    if offsets is None:
        if name in ("topic", "payload"):
            raise KeyError(name)
        return arrow.nulls(count, field.type)
    nulls = found.nulls.get(block.COLUMNS[name], 0)
    buffers = [buffer(block.VALIDITY), offsets, buffer(block.VALUES)]
    return arrow.Array.from_buffers(field.type, count, buffers, null_count=nulls)


def _headers(arrow: Any, buffer: Any, offsets: Any, count: int, kind: Any) -> Any:
    if offsets is None:
        return arrow.array([[]] * count, kind)
    places = buffer(block.KEY_OFFSETS)
    pairs = places.size // 4 - 1
    keys = arrow.Array.from_buffers(arrow.string(), pairs, [None, places, buffer(block.KEY_VALUES)])
    values = arrow.Array.from_buffers(
        arrow.binary(), pairs, [None, buffer(block.VALUE_OFFSETS), buffer(block.VALUE_VALUES)]
    )
    structs = arrow.Array.from_buffers(kind.value_type, pairs, [None], children=[keys, values])
    return arrow.Array.from_buffers(kind, count, [None, offsets], children=[structs])
