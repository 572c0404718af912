"""Encode and decode blocks, which hold the records of one partition as Arrow column buffers. PROTOCOL.md describes
each byte.

The code needs only the standard library. It works on whole columns, so that `list`, `map` and `join` do the work for
each record. Readers get the bytes exactly as they were written.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeVar, cast
from zlib import crc32

from hookmq.plugin import EMPTY, Message, Properties
from hookmq.storage_api import MessageColumns, collect

T = TypeVar("T")
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

_FIXED: Final = ((TIMESTAMP, "q"), (QOS, "b"), (RETAIN, "b"), (OFFSET, "q"))
_VARIABLE: Final = (TOPIC, PAYLOAD, CLIENT_ID, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA)
_TEXT: Final = frozenset({TOPIC, CLIENT_ID, CONTENT_TYPE, RESPONSE_TOPIC})

_LONG: Final = 1 << 10
_REMEMBERED: Final = 1 << 16
"""Limits on the texts whose encoding is remembered: the length of each in characters, and their number."""
_STEPS: Final = 1 << 12
_LENGTHS: Final = 64
"""Limits on the offsets that are remembered: the number of values, and of lengths."""
MAX_ROWS: Final = 1 << 16
MAX_BYTES: Final = 4 << 20
"""Size in bytes at which a new block begins. A single record may be larger."""

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


# building -------------------------------------------------------------------------------------------------------------


def utf8(text: str) -> bytes:
    """Encode text as valid UTF-8. Unpaired surrogates, which a plugin's text may contain, are replaced."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def weight(message: Message) -> int:
    """Return the approximate size of a message in a block, in bytes. The result is never below the size of the
    variable fields.
    """
    size = 32 + len(message.payload) + 4 * len(message.topic) + 4 * len(message.sender or "")
    if message.properties is not EMPTY:
        size += properties_size(message.properties)
    return size


def properties_size(found: Properties) -> int:
    """Return an upper bound for the size of a message's properties in bytes."""
    size = 4 * len(found.content_type or "") + 4 * len(found.response_topic or "")
    size += len(found.correlation_data or b"")
    for key, value in found.user_property or ():
        size += 8 + 4 * (len(key) + len(value))
    return size


def split(messages: Sequence[T], weights: Sequence[int]) -> Iterator[Sequence[T]]:
    """Split messages into runs that each fit into one block."""
    if len(messages) <= MAX_ROWS and sum(weights) <= MAX_BYTES:
        yield messages
        return
    start = size = 0
    for number, one in enumerate(weights):
        if number > start and (size + one > MAX_BYTES or number - start >= MAX_ROWS):
            yield messages[start:number]
            start, size = number, 0
        size += one
    yield messages[start:]


def split_columns(columns: MessageColumns) -> Iterator[MessageColumns]:
    """Split messages into runs that each fit into one block."""
    weights = [
        32 + len(payload) + 4 * len(topic) + 4 * len(sender or "")
        for payload, topic, sender in zip(
            columns.payloads, columns.topics, columns.senders, strict=True
        )
    ]
    for row, properties in columns.properties.items():
        weights[row] += properties_size(properties)
    for run in split(range(len(columns)), weights):
        yield columns.part(run[0], run[-1] + 1)


class _Encoded(dict[str | None, bytes | None]):
    """Caches text encoded as UTF-8. A stream's topics and client ids repeat, so most lookups are hits."""

    def __missing__(self, text: str | None) -> bytes | None:
        if text is None or len(text) > _LONG:
            return None if text is None else utf8(text)
        if len(self) >= _REMEMBERED:
            self.clear()
        found = self[text] = utf8(text)
        return found


_encoded = _Encoded()


def encode(partition: int, base: int, messages: Sequence[Message]) -> bytes:
    """Encode messages as a block. The first message has the offset `base`. There must be at least one message."""
    return encode_columns(partition, base, collect(messages))


def encode_columns(partition: int, base: int, columns: MessageColumns) -> bytes:
    """Encode messages as a block. The first message has the offset `base`. There must be at least one message."""
    return assemble(build_columns(partition, base, columns))


def build(partition: int, base: int, messages: Sequence[Message]) -> Block:
    """Return messages as a block. The first message has the offset `base`. There must be at least one message."""
    return build_columns(partition, base, collect(messages))


def build_columns(partition: int, base: int, columns: MessageColumns) -> Block:
    """Return messages as a block. The first message has the offset `base`. There must be at least one message.

    The function processes whole columns, because calling Python code for each message would take most of the time.
    """
    count = len(columns)
    times, low, high = columns.microseconds()
    buffers: Buffers = {(TIMESTAMP, VALUES): struct.pack(f"<{count}q", *times)}
    _texts(buffers, TOPIC, columns.topics)
    _variable(buffers, PAYLOAD, columns.payloads)
    buffers[QOS, VALUES] = bytes(columns.qos)
    retained = bytearray(count)
    for row in columns.retained:
        retained[row] = 1
    buffers[RETAIN, VALUES] = retained
    nulls: dict[int, int] = {}
    senders = columns.senders
    if None in senders:
        _nullable(buffers, nulls, CLIENT_ID, list(map(_encoded.__getitem__, senders)))
    else:
        _texts(buffers, CLIENT_ID, cast("list[str]", senders))
    if columns.properties:
        properties = [EMPTY] * count
        for row, one in columns.properties.items():
            properties[row] = one
        for column, texts in (
            (CONTENT_TYPE, [one.content_type for one in properties]),
            (RESPONSE_TOPIC, [one.response_topic for one in properties]),
        ):
            _nullable(buffers, nulls, column, [None if t is None else utf8(t) for t in texts])
        _nullable(buffers, nulls, CORRELATION_DATA, [one.correlation_data for one in properties])
        _headers(
            buffers,
            [
                [(utf8(key), utf8(value)) for key, value in one.user_property or ()]
                for one in properties
            ],
        )
    return Block(partition, base, base + count, count, False, low, high, buffers, nulls)


def _offsets(values: Sequence[Any]) -> bytes:
    count, first = len(values), len(values[0]) if values else 0
    if count > 2 and len(values[-1]) == len(values[count >> 1]) == first:
        # Payloads and names of devices often have the same length.
        lengths = list(map(len, values))
        if lengths.count(first) == count:
            return _steps(first, count)
    return struct.pack(f"<{count + 1}i", *accumulate(map(len, values), initial=0))


def _steps(length: int, count: int) -> bytes:
    """Return the offsets of `count` values of the same length."""
    if count > _STEPS or length > _LONG:
        return struct.pack(f"<{count + 1}i", *(length * row for row in range(count + 1)))
    found = _equal.get(length)
    if found is None:
        found = struct.pack(f"<{_STEPS + 1}i", *(length * row for row in range(_STEPS + 1)))
        if len(_equal) >= _LENGTHS:
            _equal.clear()
        _equal[length] = found
    return found[: 4 * count + 4]


_equal: Final[dict[int, bytes]] = {}
"""The offsets of `_STEPS` values, by the length of each value."""


def _texts(buffers: Buffers, column: int, texts: Sequence[str]) -> None:
    """Add a column of texts, none of which is null."""
    joined = "".join(texts)
    if joined.isascii():  # one byte for each character
        buffers[column, OFFSETS] = _offsets(texts)
        buffers[column, VALUES] = joined.encode()
    else:
        _variable(buffers, column, cast("list[bytes]", list(map(_encoded.__getitem__, texts))))


def _variable(buffers: Buffers, column: int, values: Sequence[Data]) -> None:
    buffers[column, OFFSETS] = _offsets(values)
    buffers[column, VALUES] = b"".join(values)


def _nullable(
    buffers: Buffers, nulls: dict[int, int], column: int, values: Sequence[Data | None]
) -> None:
    missing = values.count(None)
    if missing == len(values):
        return
    if missing:
        nulls[column] = missing
        buffers[column, VALIDITY] = _bitmap([value is not None for value in values])
        _variable(buffers, column, [b"" if value is None else value for value in values])
    else:
        _variable(buffers, column, values)  # type: ignore[arg-type]  # none is None


def _bitmap(valid: Sequence[bool]) -> bytes:
    bits = "".join(["1" if one else "0" for one in reversed(valid)])
    return int(bits, 2).to_bytes((len(valid) + 7) // 8, "little")


def _headers(buffers: Buffers, rows: Sequence[Sequence[tuple[Data, Data]]]) -> None:
    pairs = [pair for row in rows for pair in row]
    if not pairs:
        return
    buffers[HEADERS, OFFSETS] = _offsets(rows)
    keys, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    buffers[HEADERS, KEY_OFFSETS], buffers[HEADERS, KEY_VALUES] = _offsets(keys), b"".join(keys)
    buffers[HEADERS, VALUE_OFFSETS] = _offsets(values)
    buffers[HEADERS, VALUE_VALUES] = b"".join(values)


# decoding
# --------------------------------------------------------------------------------------------------------------


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


def take(block: Block, rows: Sequence[int], base: int, end: int) -> Block:
    """Return a sparse block with the given rows, which covers the offsets from `base` to `end`."""
    there = {key[0] for key in block.buffers}
    buffers: Buffers = {}
    nulls: dict[int, int] = {}
    times: array[int] = array("q")
    for name, kind in _FIXED:
        if name in there and name != OFFSET:
            values = fixed(block, name)
            picked = array(kind, [values[row] for row in rows])
            buffers[name, VALUES] = little(picked)
            if name == TIMESTAMP:
                times = picked
    for name in _VARIABLE:
        if name in there:
            texts = column(block, name)
            chosen = [texts[row] for row in rows]
            if name in (TOPIC, PAYLOAD):
                _variable(buffers, name, [text or b"" for text in chosen])
            else:
                _nullable(buffers, nulls, name, chosen)
    if HEADERS in there:
        pairs = headers(block)
        _headers(buffers, [pairs[row] for row in rows])
    known = offsets(block)
    buffers[OFFSET, VALUES] = little(array("q", [known[row] for row in rows]))
    low, high = (min(times), max(times)) if times else (0, 0)
    return Block(block.partition, base, end, len(rows), True, low, high, buffers, nulls)


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


def merge(blocks: Sequence[Block]) -> Block:
    """Merge consecutive blocks of one partition. None of them may be sparse."""
    first, last = blocks[0], blocks[-1]
    count = sum(block.count for block in blocks)
    buffers: Buffers = {}
    nulls: dict[int, int] = {}
    there = {key[0] for block in blocks for key in block.buffers}
    for name, _ in _FIXED:
        if name in there:
            buffers[name, VALUES] = b"".join(block.buffers[name, VALUES] for block in blocks)
    for name in _VARIABLE:
        if name in there:
            _merge_variable(blocks, name, buffers, nulls)
    if HEADERS in there:
        buffers[HEADERS, OFFSETS] = _shifted(blocks, HEADERS, OFFSETS)
        for places, data in ((KEY_OFFSETS, KEY_VALUES), (VALUE_OFFSETS, VALUE_VALUES)):
            having = [block for block in blocks if (HEADERS, places) in block.buffers]
            buffers[HEADERS, places] = _shifted(having, HEADERS, places)
            buffers[HEADERS, data] = b"".join(block.buffers[HEADERS, data] for block in having)
    low = min(block.min_timestamp for block in blocks)
    high = max(block.max_timestamp for block in blocks)
    return Block(first.partition, first.base, last.end, count, False, low, high, buffers, nulls)


def _merge_variable(
    blocks: Sequence[Block], name: int, buffers: Buffers, nulls: dict[int, int]
) -> None:
    missing = sum(
        block.nulls.get(name, 0) if (name, OFFSETS) in block.buffers else block.count
        for block in blocks
    )
    if missing:
        valid: list[bool] = []
        for block in blocks:
            bits = block.buffers.get((name, VALIDITY))
            if bits is None:
                valid += [(name, OFFSETS) in block.buffers] * block.count
            else:
                valid += [bool(bits[row >> 3] >> (row & 7) & 1) for row in range(block.count)]
        nulls[name] = missing
        buffers[name, VALIDITY] = _bitmap(valid)
    buffers[name, OFFSETS] = _shifted(blocks, name, OFFSETS)
    buffers[name, VALUES] = b"".join(block.buffers.get((name, VALUES), b"") for block in blocks)


def _shifted(blocks: Sequence[Block], name: int, role: int) -> bytes:
    """Concatenate the position buffers of several blocks. Each block's positions continue from those of the block
    before it.

    If a block lacks the column, its rows are empty.
    """
    joined = array("i", [0])
    for block in blocks:
        reached = joined[-1]
        data = block.buffers.get((name, role))
        if data is None:
            joined.extend([reached] * block.count)
        else:
            joined.extend([place + reached for place in numbers("i", data)[1:]])
    return little(joined)


def rows(block: Block) -> Iterator[dict[str, Any]]:
    """Yield a complete block's rows for display. Each row maps column names to values, with `partition` and `offset`."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode("utf-8", "replace")

    if not block.count:
        return
    places = offsets(block)
    times, qos, retain = fixed(block, TIMESTAMP), fixed(block, QOS), fixed(block, RETAIN)
    variable = {name: column(block, name) for name in _VARIABLE}
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
