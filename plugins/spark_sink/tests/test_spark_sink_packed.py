"""Test compressed blocks. They have the same rows as the original blocks. Damaged or hostile ones are refused before
anything large is decompressed.
"""

import random
import struct
from typing import Any
from zlib import crc32

import pytest
from hookmq.plugin import EMPTY, Message, Properties
from hookmq_spark_sink import block, building, packed
from hookmq_spark_sink.block import CLIENT_ID, COLUMNS, PAYLOAD, TOPIC, VALIDITY, VALUES, Damaged

DRAW = random.Random(5)
SHAPES: dict[str, list[Message]] = {
    "one row": [Message("t/ü", b"\0\xff", 2, True, sender="c", received_at=1.5)],
    "equal topics": [Message("t", b"x" * n, received_at=1.0 * n) for n in range(200)],
    "many topics": [Message(f"t/{n}", DRAW.randbytes(9), sender=str(n)) for n in range(100)],
    "some senders": [Message(f"t/{n % 3}", b"x", sender="me" if n % 5 else None) for n in range(99)],
    "no payload": [Message("t", b"")] * 70,
    "properties": [
        Message(
            f"t/{n % 2}",
            b"%d" % n,
            properties=Properties(
                content_type="text/plain",
                correlation_data=b"\xff",
                user_property=(("k", "v"),) * (n % 3),
            )
            if n % 2
            else EMPTY,
        )
        for n in range(80)
    ],
}  # fmt: skip


def rows(data: bytes) -> list[dict[str, Any]]:
    return list(block.rows(packed.parse(data)))


@pytest.mark.parametrize("messages", SHAPES.values(), ids=SHAPES)
def test_a_packed_block_has_the_same_rows(messages: list[Message]) -> None:
    plain = building.encode(3, 1 << 40, messages)
    one = block.parse(plain)
    data = packed.pack(one)
    assert (len(data) % 8, packed.version(data)) == (0, packed.VERSION)
    found = packed.parse(data)
    assert (found.buffers, found.nulls) == (one.buffers, one.nulls)
    assert sorted(block.rows(found), key=lambda row: row["offset"]) == rows(plain)
    stored = packed.read(data)
    assert packed.assemble(stored) == data
    for number in range(len(stored.buffers)):
        _, _, _, position, _, _, _ = packed.ENTRY.unpack_from(data, 64 + 32 * number)
        assert position % 8 == 0


@pytest.mark.parametrize("messages", SHAPES.values(), ids=SHAPES)
def test_chosen_columns_are_selected_or_decoded(messages: list[Message]) -> None:
    one = block.parse(building.encode(0, 50, messages))
    data = packed.pack(one)
    for name, column in COLUMNS.items():
        wanted = frozenset({column})
        expected = block.project(one, wanted)
        assert packed.parse(data, wanted) == expected, name
        assert packed.parse(packed.select(packed.read(data), wanted)) == expected, name


def test_equal_values_are_stored_once_and_compressed() -> None:
    messages = [
        Message(f"plant/{n % 50}/state", b'{"temperature": %d}' % (n % 90), sender="gateway")
        for n in range(5000)
    ]
    plain = building.encode(0, 0, messages)
    data = packed.pack(block.parse(plain))
    assert len(data) * 8 < len(plain)
    names, indices = packed.dictionary(packed.read(data), TOPIC)
    assert len(names) == 50
    assert [names[one].decode() for one in indices] == [one.topic for one in messages]
    assert packed.dictionary(packed.read(data), CLIENT_ID)[0] == [b"gateway"]


def test_the_layout_is_that_of_the_protocol() -> None:
    one = block.parse(building.encode(7, 9, [Message("a/b", b"x" * 100, received_at=1.5)] * 2))
    data = packed.pack(one)
    assert data[:4] == b"HqAB"
    assert int.from_bytes(data[4:8], "little") == crc32(data[8:])
    assert struct.unpack_from("<QHHIQQIIqq", data, 8) == (
        len(data), 2, 8, 7, 9, 11, 2, 0, 1_500_000, 1_500_000,
    )  # fmt: skip
    found = {}
    for number in range(8):
        column, role, nulls, at, length, size, encoding = struct.unpack_from(
            "<HHIQQII", data, 64 + 32 * number
        )
        found[column, role] = (data[at : at + length], size, encoding)
        assert nulls == 0
    assert found[TOPIC, packed.INDICES] == (struct.pack("<ii", 0, 0), 8, 0)
    assert found[TOPIC, 1] == (struct.pack("<ii", 0, 3), 8, 0)
    assert found[TOPIC, 2] == (b"a/b", 3, 0)
    frame, size, encoding = found[PAYLOAD, 2]
    assert (size, encoding) == (200, 1)
    assert frame[:4] == b"\x28\xb5\x2f\xfd"


def damage(data: bytes, number: int, **fields: int) -> bytes:
    """Change fields of a table entry, and update the checksum to match."""
    names = ("column", "role", "nulls", "position", "length", "size", "encoding")
    at = 64 + 32 * number
    entry = dict(zip(names, packed.ENTRY.unpack_from(data, at), strict=True)) | fields
    made = bytearray(data)
    made[at : at + 32] = packed.ENTRY.pack(*entry.values())
    made[4:8] = crc32(made[8:]).to_bytes(4, "little")
    return bytes(made)


def number_of(data: bytes, column: int, role: int) -> int:
    return list(packed.read(data).buffers).index((column, role))


SAMPLE = packed.pack(
    block.parse(building.encode(0, 0, [Message(f"t/{n % 4}", b"x" * 100) for n in range(50)]))
)


@pytest.mark.parametrize(
    ("column", "role", "fields", "message"),
    [
        (PAYLOAD, VALUES, {"position": 1 << 40}, "outside the block"),
        (PAYLOAD, VALUES, {"length": 1 << 40}, "outside the block"),
        (PAYLOAD, VALUES, {"size": (1 << 32) - 1}, "bytes after decoding; at most"),
        (PAYLOAD, VALUES, {"size": 4999}, "does not decompress to 4999 bytes"),
        (PAYLOAD, VALUES, {"size": 5001}, "does not decompress to 5001 bytes"),
        (PAYLOAD, VALUES, {"length": 7}, "does not decompress to 5000 bytes"),
        (PAYLOAD, VALUES, {"encoding": 2}, "encoding 2; expected 0 or 1"),
        (PAYLOAD, VALUES, {"encoding": 0}, "that should have 5000"),
        (TOPIC, VALUES, {"encoding": 1}, "cannot be decompressed"),
        (TOPIC, packed.INDICES, {"size": 196}, "does not decompress to 196 bytes"),
    ],
)
def test_a_damaged_or_hostile_block_is_refused(
    column: int, role: int, fields: dict[str, int], message: str
) -> None:
    data = damage(SAMPLE, number_of(SAMPLE, column, role), **fields)
    with pytest.raises(Damaged, match=message):
        packed.parse(data)


@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_outside_of_its_dictionary_is_damage(index: int) -> None:
    stored = packed.read(SAMPLE)
    indices = struct.pack("<50i", *[0] * 49, index)
    stored.buffers[TOPIC, packed.INDICES] = packed.Buffer(indices, len(indices), packed.PLAIN)
    with pytest.raises(Damaged, match="outside its dictionary"):
        packed.parse(packed.assemble(stored))


def test_any_changed_byte_is_noticed() -> None:
    for at in range(len(SAMPLE)):
        data = bytearray(SAMPLE)
        data[at] ^= 1 << at % 8
        with pytest.raises(Damaged):
            packed.parse(bytes(data))


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 100, -1])
def test_less_than_a_block_is_none(cut: int) -> None:
    with pytest.raises(Damaged):
        packed.parse(SAMPLE[:cut])


def test_a_column_with_nulls_keeps_them() -> None:
    one = packed.parse(packed.pack(block.parse(building.encode(0, 0, SHAPES["some senders"]))))
    assert one.nulls == {CLIENT_ID: 20}
    assert (CLIENT_ID, VALIDITY) in one.buffers
    assert [row is None for row in block.column(one, CLIENT_ID)] == [n % 5 == 0 for n in range(99)]
