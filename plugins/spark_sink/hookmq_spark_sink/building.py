"""Build blocks: from messages, from rows of another block, and from several blocks.

The code works on whole columns, because calling Python code for each message would take most of the time.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar, cast

from hookmq.plugin import EMPTY, Message, Properties
from hookmq.storage_api import MessageColumns, collect

from hookmq_spark_sink.block import (
    CLIENT_ID,
    CONTENT_TYPE,
    CORRELATION_DATA,
    FIXED,
    HEADERS,
    KEY_OFFSETS,
    KEY_VALUES,
    OFFSET,
    OFFSETS,
    PAYLOAD,
    QOS,
    RESPONSE_TOPIC,
    RETAIN,
    TIMESTAMP,
    TOPIC,
    VALIDITY,
    VALUE_OFFSETS,
    VALUE_VALUES,
    VALUES,
    VARIABLE,
    Block,
    Buffers,
    Data,
    assemble,
    column,
    fixed,
    headers,
    little,
    numbers,
    offsets,
)

T = TypeVar("T")

_LONG: Final = 1 << 10
_REMEMBERED: Final = 1 << 16
"""Limits on the texts whose encoding is remembered: the length of each in characters, and their number."""
_STEPS: Final = 1 << 12
_LENGTHS: Final = 64
"""Limits on the offsets that are remembered: the number of values, and of lengths."""
MAX_ROWS: Final = 1 << 16
MAX_BYTES: Final = 4 << 20
"""Size in bytes at which a new block begins. A single record may be larger."""


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


# from other blocks ---------------------------------------------------------------------------------------------------


def take(block: Block, rows: Sequence[int], base: int, end: int) -> Block:
    """Return a sparse block with the given rows, which covers the offsets from `base` to `end`."""
    there = {key[0] for key in block.buffers}
    buffers: Buffers = {}
    nulls: dict[int, int] = {}
    times: array[int] = array("q")
    for name, kind in FIXED:
        if name in there and name != OFFSET:
            values = fixed(block, name)
            picked = array(kind, [values[row] for row in rows])
            buffers[name, VALUES] = little(picked)
            if name == TIMESTAMP:
                times = picked
    for name in VARIABLE:
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


def merge(blocks: Sequence[Block]) -> Block:
    """Merge consecutive blocks of one partition. None of them may be sparse."""
    first, last = blocks[0], blocks[-1]
    count = sum(block.count for block in blocks)
    buffers: Buffers = {}
    nulls: dict[int, int] = {}
    there = {key[0] for block in blocks for key in block.buffers}
    for name, _ in FIXED:
        if name in there:
            buffers[name, VALUES] = b"".join(block.buffers[name, VALUES] for block in blocks)
    for name in VARIABLE:
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
