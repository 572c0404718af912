"""Find and check the blocks of the read API in a stream of bytes. This module neither copies data nor needs Arrow."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from zlib import crc32

from pyspark_mqtt.errors import MqttError, UnreachableError

HEADER = Struct("<4sIQHHIQQIIqq")
ENTRY = Struct("<HHIQQ")
PACKED_ENTRY = Struct("<HHIQQII")
MAGIC = b"HqAB"
VERSION = 2
"""The newest block version that this reader supports. In version 2, buffers may be compressed with Zstandard."""
ZSTD = 1
SPARSE = 1
LONGEST = 2**31 + 2**20
PIECE = 1 << 22
"""Number of bytes to request from a connection at a time."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a partition, in columns, with ``base`` <= offset < ``end``. A block has gaps only if it is sparse.

    ``buffers`` contains the position and size of each part of ``data``, keyed by (column, role). ``nulls`` contains the
    number of nulls of each column that has any. ``sizes`` contains the size of each compressed buffer after
    decompression.
    """

    partition: int
    base: int
    end: int
    count: int
    sparse: bool
    data: memoryview
    buffers: dict[tuple[int, int], tuple[int, int]]
    nulls: dict[int, int]
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)


def split(fill: Callable[[memoryview], int]) -> Iterator[Block]:
    """Yield the blocks of a response as they arrive. ``fill(view)`` fills a view with the next bytes and returns their
    number. Only at the end of the stream does it fill less than the whole view.

    Raises UnreachableError if the bytes end within a block or were damaged in transit. Raises MqttError if they are not
    blocks, or if their version is newer than this reader supports.
    """
    rest = memoryview(b"")
    want = PIECE
    while True:
        view = memoryview(bytearray(len(rest) + want))
        view[: len(rest)] = rest
        got = fill(view[len(rest) :])
        view = view[: len(rest) + got]
        at = 0
        while len(view) - at >= HEADER.size:
            length = _length(view, at)
            if len(view) - at < length:
                break
            yield parse(view[at : at + length])
            at += length
        rest = view[at:]
        if got < want:
            break
        want = PIECE
        if len(rest) >= HEADER.size:
            want = max(PIECE, _length(rest, 0) - len(rest))
    if rest:
        raise UnreachableError(f"The answer ended within a block, after {len(rest)} bytes of it.")


def _length(view: memoryview, at: int) -> int:
    magic, _, length, version, *_ = HEADER.unpack_from(view, at)
    if magic != MAGIC:
        raise MqttError(
            f"The answer holds no blocks of messages (it begins {bytes(view[at : at + 8])!r}): is `url` "
            "the address of the broker's read API?"
        )
    if not 1 <= version <= VERSION:
        raise MqttError(
            f"The broker sends blocks of version {version}, this reader knows 1 to {VERSION}: "
            "upgrade pyspark-mqtt on the driver and all executors."
        )
    if not HEADER.size <= length <= LONGEST:
        raise UnreachableError(f"A block says that it is {length} bytes long.")
    return int(length)


def parse(view: memoryview) -> Block:
    """Decode one complete block. Raises UnreachableError if its checksum is wrong or its table is invalid."""
    _, crc, length, version, entries, partition, base, end, count, flags, _, _ = HEADER.unpack_from(
        view
    )
    if crc32(view[8:]) != crc:
        raise UnreachableError(f"The block at offset {base} of partition {partition} is damaged.")
    entry = ENTRY if version == 1 else PACKED_ENTRY
    first = HEADER.size + entries * entry.size
    buffers: dict[tuple[int, int], tuple[int, int]] = {}
    nulls: dict[int, int] = {}
    sizes: dict[tuple[int, int], int] = {}
    whole = first <= length
    for column, role, missing, position, size, *more in entry.iter_unpack(
        view[HEADER.size : first] if whole else b""
    ):
        whole = whole and first <= position <= position + size <= length
        buffers[column, role] = (position, size)
        if more and more[1]:
            whole = whole and more[1] == ZSTD
            sizes[column, role] = more[0]
        if missing:
            nulls[column] = missing
    # The sizes are known before anything is decompressed, so a small block cannot fill the memory.
    whole = whole and sum(sizes.values()) <= LONGEST
    if not whole or end < base or (not flags & SPARSE and count != end - base):
        raise UnreachableError(f"The block at offset {base} of partition {partition} is malformed.")
    sparse = bool(flags & SPARSE)
    return Block(partition, base, end, count, sparse, view, buffers, nulls, sizes)
