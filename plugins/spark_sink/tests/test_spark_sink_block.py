"""Test that published messages can be read row by row and as bytes, and that damaged blocks are refused."""

import struct
from typing import Any
from zlib import crc32

import pytest
from hookmq.plugin import EMPTY, Message, Properties
from hookmq_spark_sink import block, building
from hookmq_spark_sink.block import COLUMNS, Block, Damaged
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
TOPICS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0+#"),
    min_size=1,
    max_size=20,
)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)


def properties_of(given: dict[str, Any]) -> Properties:
    return Properties(**given) if given else EMPTY


PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": TEXT,
        "response_topic": TOPICS,
        "correlation_data": st.binary(max_size=9),
        "user_property": PAIRS.filter(bool),
    },
).map(properties_of)
MESSAGES = st.lists(
    st.builds(
        Message,
        topic=TOPICS,
        payload=st.binary(max_size=40),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        properties=PROPERTIES,
        sender=st.none() | TEXT,
        received_at=st.integers(0, 1 << 40).map(lambda n: n / 64),
    ),
    min_size=1,
    max_size=12,
)


def expected(messages: list[Message], base: int, partition: int) -> list[dict[str, Any]]:
    return [
        {
            "partition": partition,
            "offset": base + number,
            "timestamp": int(one.received_at * 1e6),
            "qos": one.qos,
            "retain": one.retain,
            "topic": one.topic,
            "payload": one.payload,
            "client_id": one.sender,
            "content_type": one.properties.content_type,
            "response_topic": one.properties.response_topic,
            "correlation_data": one.properties.correlation_data,
            "headers": [(key, value.encode()) for key, value in one.user_property],
        }
        for number, one in enumerate(messages)
    ]


@given(MESSAGES, st.integers(0, 1 << 62), st.integers(0, 255))
def test_a_block_contains_the_messages_as_published(
    messages: list[Message], base: int, partition: int
) -> None:
    data = building.encode(partition, base, messages)
    assert len(data) % 8 == 0
    found = block.parse(data)
    assert list(block.rows(found)) == expected(messages, base, partition)
    assert (found.base, found.end, found.count) == (base, base + len(messages), len(messages))
    times = [int(one.received_at * 1e6) for one in messages]
    assert (found.min_timestamp, found.max_timestamp) == (min(times), max(times))
    assert block.assemble(found) == data
    for number in range(found.count and len(found.buffers)):
        _, _, _, position, _ = struct.unpack_from("<HHIQQ", data, 64 + 24 * number)
        assert position % 8 == 0


@given(MESSAGES, st.data())
def test_merged_blocks_are_the_block_of_all(messages: list[Message], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(messages)), max_size=3)) | {len(messages)})
    parts: list[Block] = []
    for start, end in zip([0, *cuts], cuts, strict=False):
        parts.append(block.parse(building.encode(3, 100 + start, messages[start:end])))
    merged = block.parse(block.assemble(building.merge(parts)))
    whole = block.parse(building.encode(3, 100, messages))
    assert merged.buffers == whole.buffers
    assert merged.nulls == whole.nulls
    assert (merged.base, merged.end, merged.count) == (whole.base, whole.end, whole.count)
    assert merged.min_timestamp == whole.min_timestamp
    assert merged.max_timestamp == whole.max_timestamp


@given(MESSAGES, st.data())
def test_rows_that_are_taken_and_columns_that_are_left_out(
    messages: list[Message], data: st.DataObject
) -> None:
    one = block.parse(building.encode(0, 50, messages))
    rows = sorted(data.draw(st.sets(st.integers(0, len(messages) - 1))))
    taken = block.parse(block.assemble(building.take(one, rows, 40, 90)))
    every = expected(messages, 50, 0)
    assert list(block.rows(taken)) == [every[row] for row in rows]
    assert (taken.base, taken.end, taken.count, taken.sparse) == (40, 90, len(rows), True)
    wanted = data.draw(st.sets(st.sampled_from(sorted(COLUMNS.values()))))
    left = block.parse(block.assemble(block.project(taken, frozenset(wanted))))
    assert {key[0] for key in left.buffers} == {
        key[0] for key in taken.buffers if key[0] in wanted or key[0] == block.OFFSET
    }
    assert all(left.buffers[key] == taken.buffers[key] for key in left.buffers)


@given(MESSAGES, st.data())
def test_any_changed_bit_is_noticed(messages: list[Message], data: st.DataObject) -> None:
    written = bytearray(building.encode(0, 0, messages))
    bit = data.draw(st.integers(0, len(written) * 8 - 1))
    written[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        block.parse(bytes(written))


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 100, -1])
def test_less_than_a_block_is_none(cut: int) -> None:
    data = building.encode(0, 0, [Message("t", b"x" * 50)])
    with pytest.raises(Damaged):
        block.parse(data[:cut])


def test_a_newer_version_says_so() -> None:
    data = bytearray(building.encode(0, 0, [Message("t", b"")]))
    data[16] = 3
    with pytest.raises(Damaged, match="version 3; expected version 1 to 2"):
        block.parse(bytes(data))


def test_a_buffer_outside_of_the_block_is_damage() -> None:
    data = bytearray(building.encode(0, 0, [Message("t", b"")]))
    data[64 + 16 : 64 + 24] = (1 << 40).to_bytes(8, "little")
    data[4:8] = crc32(data[8:]).to_bytes(4, "little")
    with pytest.raises(Damaged, match="outside"):
        block.parse(bytes(data))


def test_the_layout_is_that_of_the_protocol() -> None:
    message = Message("a/b", b"\0\xff", 2, True, received_at=1.5, sender="c")
    data = building.encode(7, 9, [message])
    assert data[:4] == b"HqAB"
    assert int.from_bytes(data[4:8], "little") == crc32(data[8:])
    assert struct.unpack_from("<QHHIQQIIqq", data, 8) == (
        len(data), 1, 9, 7, 9, 10, 1, 0, 1_500_000, 1_500_000,
    )  # fmt: skip
    buffers = {}
    for number in range(9):
        column, role, nulls, at, size = struct.unpack_from("<HHIQQ", data, 64 + 24 * number)
        buffers[column, role] = data[at : at + size]
        assert nulls == 0
    places = struct.pack("<ii", 0, 3)
    assert buffers == {
        (1, 2): struct.pack("<q", 1_500_000), (2, 1): places, (2, 2): b"a/b", (3, 1): struct.pack("<ii", 0, 2),
        (3, 2): b"\0\xff", (4, 2): b"\2", (5, 2): b"\1", (6, 1): struct.pack("<ii", 0, 1), (6, 2): b"c",
    }  # fmt: skip


def test_a_topic_with_half_a_surrogate_pair_ends_nothing() -> None:
    one = Message("t/\ud800", b"", properties=Properties(user_property=(("\udfff", "v"),)))
    (row,) = block.rows(block.parse(building.encode(0, 0, [one])))
    assert (row["topic"], row["headers"]) == ("t/?", [("?", b"v")])
