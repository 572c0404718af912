"""A block, which holds the records of one partition as Arrow column buffers: its bytes, and its columns. PROTOCOL.md
describes each byte. `hookmq_spark_sink.building` builds blocks.

The code needs only the standard library. It works on whole columns, so that `list`, `map` and `join` do the work for
each record. Readers get the bytes exactly as they were written.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

Data = bytes | bytearray | memoryview

MAGIC: Final = b"HqAB"
HEADER: Final = struct.Struct("<4sIQHHIQQIIqq")
"""The fields magic, crc, length, version, buffers, partition, base, end, count, flags, min_timestamp, max_timestamp."""
_ENTRY: Final = struct.Struct("<HHIQQ")
"""The fields column, role, nulls, position, length."""
CHECKED: Final = 8
"""Position at which the checksummed part of a block begins."""
VERSION: Final = 1
NEWEST: Final = 2
"""The newest version of a block (`hookmq_spark_sink.packed`)."""
SPARSE: Final = 1

TIMESTAMP, TOPIC, PAYLOAD, QOS, RETAIN, CLIENT_ID = 1, 2, 3, 4, 5, 6
CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, HEADERS, OFFSET = 7, 8, 9, 10, 11
COLUMNS: Final[Mapping[str, int]] = {
    "timestamp": TIMESTAMP, "topic": TOPIC, "payload": PAYLOAD, "qos": QOS, "retain": RETAIN, "client_id": CLIENT_ID,
    "content_type": CONTENT_TYPE, "response_topic": RESPONSE_TOPIC, "correlation_data": CORRELATION_DATA,
    "headers": HEADERS, "offset": OFFSET,
}  # fmt: skip
VALIDITY, OFFSETS, VALUES, KEY_OFFSETS, KEY_VALUES, VALUE_OFFSETS, VALUE_VALUES = range(7)

FIXED: Final = ((TIMESTAMP, "q"), (QOS, "b"), (RETAIN, "b"), (OFFSET, "q"))
VARIABLE: Final = (TOPIC, PAYLOAD, CLIENT_ID, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA)
_TEXT: Final = frozenset({TOPIC, CLIENT_ID, CONTENT_TYPE, RESPONSE_TOPIC})

Buffers = dict[tuple[int, int], Data]
"""A block's buffers by column and role."""


class Damaged(ValueError):
    """The bytes are not a valid block."""


class Head(NamedTuple):
    """A block's header."""

    length: int
    buffers: int
    partition: int
    base: int
    end: int
    rows: int
    sparse: bool
    min_timestamp: int
    max_timestamp: int
    version: int


@dataclass(slots=True)
class Block:
    """A decoded block. The buffers are views of the block's bytes. `nulls` contains the number of nulls in each
    column.
    """

    partition: int
    base: int
    end: int
    count: int
    sparse: bool
    min_timestamp: int
    max_timestamp: int
    buffers: Buffers
    nulls: dict[int, int]


def little(numbers: "array[int]") -> bytes:
    """Return an array's numbers as little-endian bytes."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def numbers(kind: str, data: Data) -> "array[int]":
    """Return an array of the little-endian numbers in `data`."""
    found: array[int] = array(kind)
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def assemble(block: Block) -> bytes:
    """Encode a block as bytes."""
    at = HEADER.size + _ENTRY.size * len(block.buffers)
    table: list[bytes] = []
    parts: list[Data] = []
    for (column, role), data in block.buffers.items():
        size = len(data)
        nulls = block.nulls.get(column, 0) if role == VALIDITY else 0
        table.append(_ENTRY.pack(column, role, nulls, at, size))
        parts.append(data)
        filling = -size % 8
        if filling:
            parts.append(bytes(filling))
        at += size + filling
    head = (
        at, VERSION, len(table), block.partition, block.base, block.end, block.count, SPARSE if block.sparse else 0,
        block.min_timestamp, block.max_timestamp,
    )  # fmt: skip
    return sealed(head, [*table, *parts])


def sealed(head: tuple[int, ...], parts: Sequence[Data]) -> bytes:
    """Return a block, given its header fields from `length` on and the parts that follow the header."""
    start = HEADER.pack(MAGIC, 0, *head)
    check = crc32(start[CHECKED:])
    for part in parts:  # checking the parts saves a copy of all of them
        check = crc32(part, check)
    return b"".join((MAGIC, check.to_bytes(4, "little"), start[CHECKED:], *parts))


def read_head(data: Data, position: int = 0) -> Head:
    """Decode the header at `position`. Raises Damaged if it is invalid."""
    if len(data) - position < HEADER.size:
        raise Damaged("less than a header")
    (
        magic, _, length, version, buffers, partition, base, end, count, flags, minimum, maximum
    ) = HEADER.unpack_from(data, position)  # fmt: skip
    if magic != MAGIC or length < HEADER.size + buffers * _ENTRY.size or length % 8:
        raise Damaged("not a block")
    if not VERSION <= version <= NEWEST:
        raise Damaged(f"a block of version {version}; expected version {VERSION} to {NEWEST}")
    return Head(
        length, buffers, partition, base, end, count, bool(flags & SPARSE), minimum, maximum, version
    )  # fmt: skip


def parse(data: Data, verify: bool = True) -> Block:
    """Decode exactly one block of version 1. Raises Damaged if it is invalid."""
    head = read_head(data)
    if head.version != VERSION:
        raise Damaged(f"a block of version {head.version}; expected version {VERSION}")
    view = memoryview(data)
    if head.length != len(view):
        raise Damaged(f"a block of {head.length} bytes, but there are {len(view)}")
    if verify and crc32(view[CHECKED:]) != int.from_bytes(view[4:8], "little"):
        raise Damaged("wrong checksum")
    found: Buffers = {}
    nulls: dict[int, int] = {}
    for number in range(head.buffers):
        column, role, missing, at, size = _ENTRY.unpack_from(
            view, HEADER.size + number * _ENTRY.size
        )
        if at + size > head.length:
            raise Damaged("a buffer is outside the block")
        found[column, role] = view[at : at + size]
        if missing:
            nulls[column] = missing
    return Block(
        head.partition, head.base, head.end, head.rows, head.sparse, head.min_timestamp, head.max_timestamp, found, nulls
    )  # fmt: skip


# decoding -------------------------------------------------------------------------------------------------------------


def column(block: Block, wanted: int) -> list[bytes | None]:
    """Return the values of a bytes or text column, by row."""
    offsets = block.buffers.get((wanted, OFFSETS))
    if offsets is None:
        return [None] * block.count
    values: list[bytes | None] = list(slices(offsets, block.buffers[wanted, VALUES]))
    validity = block.buffers.get((wanted, VALIDITY))
    if validity is not None:
        for row in range(block.count):
            if not validity[row >> 3] >> (row & 7) & 1:
                values[row] = None
    return values


def slices(offsets: Data, data: Data) -> list[bytes]:
    """Return the values of a column, given its `offsets` and `data` buffers."""
    places = numbers("i", offsets)
    whole = bytes(data)
    return [whole[a:b] for a, b in pairwise(places)]


def fixed(block: Block, wanted: int) -> "array[int]":
    """Return the values of a numeric column, by row."""
    return numbers("q" if wanted in (TIMESTAMP, OFFSET) else "b", block.buffers[wanted, VALUES])


def headers(block: Block) -> list[list[tuple[bytes, bytes]]]:
    """Return the user properties, by row."""
    found = block.buffers
    if (HEADERS, OFFSETS) not in found:
        return [[] for _ in range(block.count)]
    keys = slices(found[HEADERS, KEY_OFFSETS], found[HEADERS, KEY_VALUES])
    values = slices(found[HEADERS, VALUE_OFFSETS], found[HEADERS, VALUE_VALUES])
    pairs = list(zip(keys, values, strict=True))
    places = numbers("i", found[HEADERS, OFFSETS])
    return [pairs[a:b] for a, b in pairwise(places)]


def offsets(block: Block) -> Sequence[int]:
    """Return each row's offset."""
    return fixed(block, OFFSET) if block.sparse else range(block.base, block.base + block.count)


def project(block: Block, wanted: frozenset[int]) -> Block:
    """Return the block with only the `wanted` columns. A sparse block also keeps its `offset` column."""
    return Block(
        block.partition, block.base, block.end, block.count, block.sparse, block.min_timestamp, block.max_timestamp,
        {
            key: data for key, data in block.buffers.items() if key[0] in wanted or key[0] == OFFSET
        },
        {name: count for name, count in block.nulls.items() if name in wanted},
    )  # fmt: skip


def thinned(block: Block, places: Sequence[int], end: int) -> Block:
    """Return a sparse form of a block that covers the offsets from its `base` to `end`. The rows have the offsets in
    `places`.
    """
    buffers = block.buffers | {(OFFSET, VALUES): little(array("q", places))}
    return replace(block, end=end, sparse=True, buffers=buffers)


def empty(partition: int, base: int, end: int) -> Block:
    """Return a block without rows, which means that no record from `base` to `end` passed the filter."""
    buffers: Buffers = {(OFFSET, VALUES): b""}
    return Block(partition, base, end, 0, True, 0, 0, buffers, {})


def rows(block: Block) -> Iterator[dict[str, Any]]:
    """Yield a complete block's rows for display. Each row maps column names to values, with `partition` and `offset`."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode("utf-8", "replace")

    if not block.count:
        return
    places = offsets(block)
    times, qos, retain = fixed(block, TIMESTAMP), fixed(block, QOS), fixed(block, RETAIN)
    variable = {name: column(block, name) for name in VARIABLE}
    pairs = headers(block)
    names = {number: name for name, number in COLUMNS.items()}
    for row in range(block.count):
        made: dict[str, Any] = {
            "partition": block.partition,
            "offset": places[row],
            "timestamp": times[row],
            "qos": qos[row],
            "retain": bool(retain[row]),
        }
        for name, values in variable.items():
            value = values[row]
            made[names[name]] = text(value) if name in _TEXT else value
        made["headers"] = [(text(key), value) for key, value in pairs[row]]
        yield made
