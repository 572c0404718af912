"""Encode and decode version 2 blocks, whose buffers may be compressed. PROTOCOL.md describes each byte.

A version 2 block has the same rows as a version 1 block. Each buffer is stored either as is or as a Zstandard frame.
`topic` and `client_id` may be stored as a dictionary. Sealed segments contain such blocks. A reader that supports them
gets the requested columns exactly as they are on disk. For other readers, the server decodes them.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from hookmq_spark_sink import block
from hookmq_spark_sink.block import Block, Buffers, Damaged, Data

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VERSION: Final = 2
ENTRY: Final = Struct("<HHIQQII")
"""The fields column, role, nulls, position, length, size, encoding."""
PLAIN, ZSTD = 0, 1
INDICES: Final = 7
"""The role of a dictionary's indices, one for each row."""
LEVEL: Final = 3
LARGEST: Final = (1 << 31) + (1 << 20)
"""Upper limit of a block's size in bytes after decoding, so that a damaged or hostile block cannot fill the memory."""
_DICTIONARIES: Final = (block.TOPIC, block.CLIENT_ID)
_SMALLEST: Final = 64
"""Buffers of fewer bytes are not compressed."""
_SHARE: Final = 2
"""A column becomes a dictionary if it has at least this many rows for each distinct value."""


class Buffer(NamedTuple):
    """A stored buffer. `size` is its size in bytes after decompression."""

    data: Data
    size: int
    encoding: int


@dataclass(slots=True)
class Packed:
    """A version 2 block, with its buffers as stored."""

    head: block.Head
    buffers: dict[tuple[int, int], Buffer]
    nulls: dict[int, int]


# encoding -------------------------------------------------------------------------------------------------------------


def pack(one: Block) -> bytes:
    """Encode a block as version 2."""
    buffers = dict(one.buffers)
    for column in _DICTIONARIES:
        _index(buffers, column)
    head = block.Head(
        0, 0, one.partition, one.base, one.end, one.count, one.sparse, one.min_timestamp, one.max_timestamp, VERSION
    )  # fmt: skip
    return assemble(Packed(head, {key: _compress(buffers[key]) for key in buffers}, one.nulls))


def _compress(data: Data) -> Buffer:
    size = len(data)
    if size >= _SMALLEST:
        smaller = zstd.compress(data, LEVEL)
        if len(smaller) < size:
            return Buffer(smaller, size, ZSTD)
    return Buffer(data, size, PLAIN)


def _index(buffers: Buffers, column: int) -> None:
    """Replace a column's values with a dictionary and indices if the values repeat often enough."""
    if (column, block.OFFSETS) not in buffers:
        return
    values = block.slices(buffers[column, block.OFFSETS], buffers[column, block.VALUES])
    known = dict.fromkeys(values)
    if len(known) * _SHARE > len(values):
        return
    numbers = {value: number for number, value in enumerate(known)}
    buffers[column, INDICES] = block.little(array("i", map(numbers.__getitem__, values)))
    buffers[column, block.OFFSETS] = _offsets(list(known))
    buffers[column, block.VALUES] = b"".join(known)


def _offsets(values: Sequence[bytes]) -> bytes:
    return block.little(array("i", accumulate(map(len, values), initial=0)))


def assemble(one: Packed) -> bytes:
    """Encode the stored buffers as bytes, without compressing them again."""
    at = block.HEADER.size + ENTRY.size * len(one.buffers)
    table: list[bytes] = []
    parts: list[Data] = []
    for (column, role), (data, size, encoding) in one.buffers.items():
        length = len(data)
        nulls = one.nulls.get(column, 0) if role == block.VALIDITY else 0
        table.append(ENTRY.pack(column, role, nulls, at, length, size, encoding))
        filling = -length % 8
        parts += (data, bytes(filling))
        at += length + filling
    head = one.head
    fields = (
        at, VERSION, len(table), head.partition, head.base, head.end, head.rows, block.SPARSE if head.sparse else 0,
        head.min_timestamp, head.max_timestamp,
    )  # fmt: skip
    return block.sealed(fields, [*table, *parts])


# decoding -------------------------------------------------------------------------------------------------------------


def version(data: Data) -> int:
    """Return the version of a block. Raises Damaged if its header is invalid."""
    return block.read_head(data).version


def parse(data: Data, wanted: frozenset[int] | None = None, verify: bool = True) -> Block:
    """Decode exactly one block of either version. With `wanted`, omit all other columns except the offsets of a sparse
    block. Raises Damaged if the block is invalid.
    """
    if version(data) == VERSION:
        return unpack(read(data, verify), wanted)
    one = block.parse(data, verify)
    return one if wanted is None else block.project(one, wanted)


def read(data: Data, verify: bool = True) -> Packed:
    """Return the buffers of a version 2 block, without decompressing them. Raises Damaged if the block is invalid or
    too large.
    """
    head = block.read_head(data)
    view = memoryview(data)
    if head.length != len(view):
        raise Damaged(f"a block of {head.length} bytes, but there are {len(view)}")
    if verify and crc32(view[block.CHECKED :]) != int.from_bytes(view[4:8], "little"):
        raise Damaged("wrong checksum")
    first = block.HEADER.size + head.buffers * ENTRY.size
    if first > head.length:
        raise Damaged("the table is outside the block")
    found: dict[tuple[int, int], Buffer] = {}
    nulls: dict[int, int] = {}
    total = 0
    for column, role, missing, at, length, size, encoding in ENTRY.iter_unpack(
        view[block.HEADER.size : first]
    ):
        if at < first or at + length > head.length:
            raise Damaged("a buffer is outside the block")
        if encoding not in (PLAIN, ZSTD):
            raise Damaged(f"a buffer with encoding {encoding}; expected 0 or 1")
        if encoding == PLAIN and size != length:
            raise Damaged(f"a buffer of {length} bytes that should have {size}")
        total += size
        found[column, role] = Buffer(view[at : at + length], size, encoding)
        if missing:
            nulls[column] = missing
    if total > LARGEST:
        raise Damaged(f"a block of {total} bytes after decoding; at most {LARGEST}")
    return Packed(head, found, nulls)


def select(one: Packed, wanted: frozenset[int] | None) -> bytes:
    """Encode the block with only the `wanted` columns, without decompressing any of them."""
    if wanted is not None:
        kept = {key: data for key, data in one.buffers.items() if key[0] in wanted}
        nulls = {column: count for column, count in one.nulls.items() if column in wanted}
        one = Packed(one.head, kept, nulls)
    return assemble(one)


def unpack(one: Packed, wanted: frozenset[int] | None = None) -> Block:
    """Decode the `wanted` columns, or all if it is None. Raises Damaged if a buffer is invalid."""
    columns = {key[0] for key in one.buffers}
    if wanted is not None:
        columns &= wanted
    buffers: Buffers = {}
    nulls: dict[int, int] = {}
    for key, stored in one.buffers.items():
        if key[0] in columns and (key[0], INDICES) not in one.buffers:
            buffers[key] = plain(stored)
    for column in sorted(columns):
        if (column, INDICES) in one.buffers:
            _expand(one, column, buffers)
        if column in one.nulls:
            nulls[column] = one.nulls[column]
    head = one.head
    return Block(
        head.partition, head.base, head.end, head.rows, head.sparse, head.min_timestamp, head.max_timestamp, buffers,
        nulls,
    )  # fmt: skip


def plain(stored: Buffer) -> Data:
    """Return a buffer's decompressed bytes. Raises Damaged if they are invalid or do not have the expected size."""
    if stored.encoding == PLAIN:
        return stored.data
    decoder = zstd.ZstdDecompressor()
    try:
        # One more byte than expected shows a frame that is too long, without decompressing all of it.
        data = decoder.decompress(stored.data, stored.size + 1)
    except zstd.ZstdError as error:
        raise Damaged(f"a buffer cannot be decompressed: {error}") from None
    if len(data) != stored.size or not decoder.eof or decoder.unused_data:
        raise Damaged(f"a buffer does not decompress to {stored.size} bytes")
    return data


def dictionary(one: Packed, column: int) -> tuple[list[bytes], Sequence[int]]:
    """Return a column's distinct values, and for each row the index of its value. Raises Damaged if the column is
    invalid.

    A column that is not stored as a dictionary has one value per row.
    """
    values = block.slices(
        plain(one.buffers[column, block.OFFSETS]), plain(one.buffers[column, block.VALUES])
    )
    if (column, INDICES) not in one.buffers:
        return values, range(len(values))
    indices = block.numbers("i", plain(one.buffers[column, INDICES]))
    if len(indices) != one.head.rows:
        raise Damaged(f"{len(indices)} indices for {one.head.rows} rows")
    if indices and not 0 <= min(indices) <= max(indices) < len(values):
        raise Damaged("an index is outside its dictionary")
    return values, indices


def _expand(one: Packed, column: int, buffers: Buffers) -> None:
    """Expand a dictionary to one value per row, and add the result to `buffers`."""
    values, indices = dictionary(one, column)
    if sum(map(list(map(len, values)).__getitem__, indices)) > LARGEST:
        raise Damaged(f"a dictionary with more than {LARGEST} bytes of rows")
    if (column, block.VALIDITY) in one.buffers:
        buffers[column, block.VALIDITY] = plain(one.buffers[column, block.VALIDITY])
    rows = list(map(values.__getitem__, indices))
    buffers[column, block.OFFSETS] = _offsets(rows)
    buffers[column, block.VALUES] = b"".join(rows)
