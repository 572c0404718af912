"""Convert blocks to Arrow record batches without copying buffers or handling individual rows in Python.

If one data source fails to import, Spark can no longer find any Python data source. pyarrow is therefore imported only
when the first batch is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_mqtt.blocks import Block
from pyspark_mqtt.errors import MqttError
from pyspark_mqtt.fixed import FixedColumns
from pyspark_mqtt.offsets import Range
from pyspark_mqtt.options import whole
from pyspark_mqtt.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

VALIDITY, OFFSETS, DATA, KEY_OFFSETS, KEY_DATA, VALUE_OFFSETS, VALUE_DATA, INDICES = range(8)
IDS = {
    "timestamp": 1, "topic": 2, "payload": 3, "qos": 4, "retain": 5, "client_id": 6, "content_type": 7,
    "response_topic": 8, "correlation_data": 9, "headers": 10, "offset": 11,
}  # fmt: skip
BATCH_BYTES = 1 << 25
"""Size in bytes at which a batch ends, regardless of its rows. It is far below 2 GiB, the limit of 32-bit offsets."""


def wire_columns(columns: Sequence[Column], pattern: bool = False) -> list[str]:
    """Return the columns to request from the server. ``partition`` and ``log_id`` are already known. If no others are
    needed, request ``offset``, which costs nothing. A pattern needs ``topic``."""
    names = [column.name for column in columns if column.name not in ("partition", "log_id")]
    if pattern and "topic" not in names:
        names.append("topic")
    return names or ["offset"]


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the exact schema that Spark expects the batches to have."""
    import pyarrow as pa

    kinds = {
        "timestamp": pa.timestamp("us", tz="UTC"), "topic": pa.string(), "payload": pa.binary(), "qos": pa.int32(),
        "retain": pa.bool_(), "client_id": pa.string(), "content_type": pa.string(), "response_topic": pa.string(),
        "correlation_data": pa.binary(), "offset": pa.int64(), "partition": pa.int32(), "log_id": pa.string(),
    }  # fmt: skip

    def kind(column: Column) -> pa.DataType:
        if column.name != "headers":
            return kinds[column.name]
        pair = pa.struct(
            [
                pa.field("key", pa.string(), column.key_nullable),
                pa.field("value", pa.binary(), column.value_nullable),
            ]
        )
        return pa.list_(pa.field("element", pair, column.element_nullable))

    return pa.schema([pa.field(c.name, kind(c), c.nullable) for c in columns])


def batches(
    blocks: Iterable[tuple[Block, int]],
    columns: Sequence[Column],
    wanted: Range,
    rows: int,
    log_id: str = "",
    pattern: str = "",
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in the log ``log_id``, in batches of about ``rows`` rows. With a ``pattern``, yield only
    rows whose whole topic matches.

    Each block is paired with the offset of the first row to yield from it. Small blocks are combined, and large blocks
    are split.
    """
    import pyarrow as pa

    schema, fixed = arrow_schema(columns), FixedColumns()
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0

    def joined() -> pa.RecordBatch:
        if len(held) == 1:
            return held[0]
        return pa.Table.from_batches(held, schema).combine_chunks().to_batches()[0]

    for block, first in blocks:
        if not block.count:  # No row passed the filter, so the block has no buffers.
            continue
        batch = _batch(block, schema, first, wanted.end, log_id, fixed, pattern)
        if not batch.num_rows:
            continue
        size = max(1, batch.nbytes)
        if held and (held_rows + batch.num_rows > rows or held_bytes + size > BATCH_BYTES):
            yield joined()
            held, held_rows, held_bytes = [], 0, 0
        step = max(1, min(rows, BATCH_BYTES * batch.num_rows // size))
        if batch.num_rows > step:
            # Pieces of equal size: a rest of a few rows would cost as much as a whole batch.
            step = -(-batch.num_rows // max(1, round(batch.num_rows / step)))
            for at in range(0, batch.num_rows, step):
                yield batch.slice(at, step)
            continue
        held.append(batch)
        held_rows += batch.num_rows
        held_bytes += size
    if held:
        yield joined()


def _batch(
    block: Block,
    schema: pa.Schema,
    first: int,
    end: int,
    log_id: str,
    fixed: FixedColumns,
    pattern: str,
) -> pa.RecordBatch:
    import pyarrow as pa

    data = pa.py_buffer(block.data)
    try:
        arrays = [_array(block, data, field, log_id, fixed) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        batch.validate()
        passing = _passing(block, data, fixed, pattern) if pattern else None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise MqttError(
            f"The block at offset {block.base} of partition {block.partition} is malformed ({error})."
        ) from None
    if not block.sparse:
        first = max(first, block.base)
        part = first - block.base, max(0, min(end, block.end) - first)
        batch = batch.slice(*part)
        passing = passing if passing is None else passing.slice(*part)
    return batch if passing is None else batch.filter(passing)


def _passing(block: Block, data: pa.Buffer, fixed: FixedColumns, pattern: str) -> pa.Array:
    """For each row, return whether its topic matches."""
    import pyarrow as pa
    import pyarrow.compute as pc

    topics = _array(block, data, pa.field("topic", pa.string()), "", fixed)
    return pc.match_substring_regex(topics, whole(pattern))


def _array(
    block: Block, data: pa.Buffer, field: pa.Field, log_id: str, fixed: FixedColumns
) -> pa.Array:
    import pyarrow as pa

    count = block.count

    def part(role: int) -> Any:
        found = block.buffers.get((column, role))
        if found is None:
            return None
        size = block.sizes.get((column, role))
        if size is None:
            return data.slice(*found)
        return pa.Codec("zstd").decompress(data.slice(*found), decompressed_size=size)

    if field.name == "partition":
        return fixed.repeated(field.type, block.partition.to_bytes(4, "little"), count)
    if field.name == "log_id":
        return fixed.repeated(field.type, log_id.encode(), count)
    if field.name == "offset" and not block.sparse:
        return fixed.offsets(block.base, count)
    column = IDS[field.name]
    if field.name == "headers":
        return _headers(part, count, field.type)
    if (column, DATA) not in block.buffers:
        if field.name not in ("client_id", "content_type", "response_topic", "correlation_data"):
            raise KeyError(f"no column {field.name}")
        return pa.nulls(count, field.type)
    if field.name in ("qos", "retain"):
        return fixed.small(field.type, part(DATA), count)
    if field.name in ("timestamp", "offset"):
        return pa.Array.from_buffers(field.type, count, [None, part(DATA)])
    nulls = block.nulls.get(column, 0)
    if (column, INDICES) in block.buffers:
        return _dictionary(part, count, field.type, nulls)
    return pa.Array.from_buffers(
        field.type, count, [part(VALIDITY), part(OFFSETS), part(DATA)], null_count=nulls
    )


def _dictionary(part: Any, count: int, kind: pa.DataType, nulls: int) -> pa.Array:
    """Return the values of a column that is stored as a dictionary."""
    import pyarrow as pa

    places = part(OFFSETS)
    values = pa.Array.from_buffers(kind, places.size // 4 - 1, [None, places, part(DATA)])
    indices = [part(VALIDITY), part(INDICES)]
    array = pa.DictionaryArray.from_buffers(
        pa.dictionary(pa.int32(), kind), count, indices, values, null_count=nulls
    )
    array.validate(full=True)
    return array.dictionary_decode()


def _headers(part: Any, count: int, kind: pa.ListType) -> pa.Array:
    import pyarrow as pa

    offsets = part(OFFSETS)
    if offsets is None:  # No row has a header.
        offsets, pairs = pa.py_buffer(bytes(4 * (count + 1))), 0
    else:
        pairs = part(KEY_OFFSETS).size // 4 - 1
    empty = pa.py_buffer(bytes(4))
    keys = pa.Array.from_buffers(
        pa.string(), pairs, [None, part(KEY_OFFSETS) or empty, part(KEY_DATA) or empty]
    )
    values = pa.Array.from_buffers(
        pa.binary(), pairs, [None, part(VALUE_OFFSETS) or empty, part(VALUE_DATA) or empty]
    )
    structs = pa.Array.from_buffers(kind.value_type, pairs, [None], children=[keys, values])
    return pa.Array.from_buffers(kind, count, [None, offsets], children=[structs])
