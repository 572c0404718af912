"""Test which blocks a reader gets from a stream's files."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.plugin import StoreError
from hookmq_spark_sink import block, reading
from hookmq_spark_sink.reading import StreamReader, Wanted

Keep = Callable[..., Any]
EVERYTHING = 1 << 40


@pytest.fixture
def kept(keep: Keep) -> Any:
    """Return a stream with 40 small blocks, a large one, and 9 small ones."""
    made = keep(partitions=1)
    for number in range(40):
        made.publish(b"%d" % number, topic=f"t/{number % 3}")
    made.publish(b"x" * (20 << 10))
    for number in range(41, 50):
        made.publish(b"%d" % number)
    return made


def read(kept: Any, wanted: Wanted, most: int = EVERYTHING) -> list[block.Block]:
    reader = StreamReader(kept.stream.folder, None)
    reader.refresh()
    try:
        return [block.parse(one) for one in reader.blocks(wanted, most)]
    finally:
        reader.index.close()


def rows(blocks: list[block.Block]) -> list[dict[str, Any]]:
    return [row for one in blocks for row in block.rows(one)]


def test_small_blocks_are_merged(kept: Any) -> None:
    found = read(kept, Wanted(0, 0, 50))
    assert [(one.base, one.end, one.count) for one in found] == [
        (0, 40, 40),
        (40, 41, 1),
        (41, 50, 9),
    ]
    assert rows(found) == kept.rows()


def test_merged_blocks_have_the_wanted_columns(kept: Any) -> None:
    columns = frozenset({block.PAYLOAD, block.TOPIC})
    merged, _, last = read(kept, Wanted(0, 0, 50, columns))
    assert {column for column, _ in merged.buffers} == columns
    assert block.column(merged, block.PAYLOAD) == [b"%d" % number for number in range(40)]
    assert block.column(last, block.PAYLOAD) == [b"%d" % number for number in range(41, 50)]


def test_at_most_so_many_blocks_are_merged(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_TOGETHER", 16)
    found = read(kept, Wanted(0, 3, 50))
    assert [one.base for one in found] == [3, 19, 35, 40, 41]
    assert rows(found) == kept.rows()[3:]


def test_the_limit_of_bytes_counts_merged_blocks(kept: Any) -> None:
    [some] = read(kept, Wanted(0, 0, 50), 2000)
    assert some.base == 0
    assert 1 < some.end < 40
    rest = read(kept, Wanted(0, some.end, 50))
    assert rows([some, *rest]) == kept.rows()


def test_a_damaged_block_among_small_ones(kept: Any) -> None:
    [segment] = (kept.stream.folder / "log").glob("*.segment")
    data = bytearray(segment.read_bytes())
    # Times and checksums may contain the payload 37, too, but not with its length before it.
    [at] = [one.start() for one in re.finditer(re.escape(b"\2\0\0\x0037"), data)]
    data[at + 4 : at + 6] = b"73"
    segment.write_bytes(data)
    with pytest.raises(StoreError, match="checksum"):
        read(kept, Wanted(0, 0, 50))
