"""Test that the reader decodes compressed blocks from the broker into the rows of the plain blocks. It must refuse
hostile sizes before it decompresses anything.
"""

from zlib import crc32

import pyarrow as pa
import pytest
from hookmq.plugin import Message, Properties
from hookmq_spark_sink import block, building, packed
from pyspark_mqtt.arrow import batches
from pyspark_mqtt.blocks import PACKED_ENTRY, parse
from pyspark_mqtt.errors import MqttError, UnreachableError
from pyspark_mqtt.offsets import Range
from pyspark_mqtt.schema import READABLE, Column

COLUMNS = [Column(name) for name in READABLE]
MESSAGES = [
    Message(
        f"plant/{n % 7}",
        b'{"temperature": %d}' % n,
        n % 3,
        n % 2 == 0,
        properties=Properties(content_type="json", user_property=(("k", str(n)),) * (n % 3)),
        sender=None if n % 5 == 0 else f"device-{n % 4}",
        received_at=1.7e9 + n,
    )
    for n in range(500)
]
PLAIN = block.parse(building.encode(3, 100, MESSAGES))
PACKED = packed.pack(PLAIN)


def table(data: bytes, start: int = 0, end: int = 1 << 40) -> pa.Table:
    found = batches([(parse(memoryview(data)), start)], COLUMNS, Range(3, start, end), 10_000, "id")
    return pa.Table.from_batches(found)


def test_a_compressed_block_has_the_rows_of_the_plain_one() -> None:
    assert len(PACKED) * 4 < len(block.assemble(PLAIN))
    assert table(PACKED) == table(block.assemble(PLAIN))
    assert table(PACKED).num_rows == len(MESSAGES)
    part = table(PACKED, 150, 160)
    assert part["offset"].to_pylist() == list(range(150, 160))
    assert part["topic"].to_pylist() == [one.topic for one in MESSAGES[50:60]]
    assert part["client_id"].to_pylist() == [one.sender for one in MESSAGES[50:60]]


def test_chosen_columns_of_a_compressed_block() -> None:
    data = packed.select(packed.read(PACKED), frozenset({block.TOPIC, block.PAYLOAD}))
    columns = [Column("topic"), Column("payload")]
    wanted = Range(3, 0, 1 << 40)
    [batch] = batches([(parse(memoryview(data)), 0)], columns, wanted, 10_000)
    assert batch["payload"].to_pylist() == [one.payload for one in MESSAGES]
    assert batch["topic"].to_pylist() == [one.topic for one in MESSAGES]


def changed(column: int, role: int, **fields: int) -> bytes:
    """Return the compressed block with one table entry changed and the checksum corrected."""
    number = list(packed.read(PACKED).buffers).index((column, role))
    names = ("column", "role", "nulls", "position", "length", "size", "encoding")
    at = 64 + PACKED_ENTRY.size * number
    entry = dict(zip(names, PACKED_ENTRY.unpack_from(PACKED, at), strict=True)) | fields
    made = bytearray(PACKED)
    made[at : at + PACKED_ENTRY.size] = PACKED_ENTRY.pack(*entry.values())
    made[4:8] = crc32(made[8:]).to_bytes(4, "little")
    return bytes(made)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"size": 1 << 31 | 1 << 30}, UnreachableError),
        ({"encoding": 2}, UnreachableError),
        ({"length": 1 << 40}, UnreachableError),
        ({"size": 17}, MqttError),
        ({"size": 1 << 20}, MqttError),
        ({"encoding": 0}, MqttError),
    ],
)
def test_a_hostile_block_is_refused(fields: dict[str, int], error: type[MqttError]) -> None:
    with pytest.raises(error, match="is malformed"):
        table(changed(block.PAYLOAD, block.OFFSETS, **fields))


def test_an_index_outside_of_its_dictionary_is_refused() -> None:
    stored = packed.read(PACKED)
    indices = (7).to_bytes(4, "little") * len(MESSAGES)
    stored.buffers[block.TOPIC, packed.INDICES] = packed.Buffer(indices, len(indices), 0)
    with pytest.raises(MqttError, match="is malformed"):
        table(packed.assemble(stored))
