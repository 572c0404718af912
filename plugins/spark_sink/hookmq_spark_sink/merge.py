"""A sealed segment written anew with the small blocks of each partition merged.

``python -P -m hookmq_spark_sink.merge SEGMENT TARGET`` is a process of its own, so that the broker's event loop does not
wait for the interpreter lock meanwhile.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from hookmq.segments.frame import Frame, encode
from hookmq.segments.segment import beginning, read, write

from hookmq_spark_sink import block

BYTES: Final = 2 << 20
"""Bytes of what is merged into one block."""
ROWS: Final = 1 << 16
NICE: Final = 10
_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG"""


def worthwhile(blocks: int, partitions: int, size: int) -> bool:
    """Whether that many blocks in `size` bytes are too many."""
    return blocks > 2 * (partitions + size // BYTES)


def merge(source: Path, target: Path) -> None:
    """Write `target`, safe on the disk when this returns. Raises OSError, StoreError, block.Damaged."""
    segment = read(source, False, verify=False)
    blocks: dict[int, list[block.Block]] = {}
    for _, frame in segment.frames(segment.head):
        one = block.parse(frame.payload, verify=False)  # the frame's checksum was verified
        blocks.setdefault(one.partition, []).append(one)
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write(file, beginning(segment.log, segment.store, segment.base))
        offset = segment.base
        for partition in sorted(blocks):
            for group in groups(blocks[partition]):
                data = block.assemble(block.merge(group))
                count = sum(one.count for one in group)
                write(file, encode(Frame(offset, count, segment.commit, 0, data), segment.salt))
                offset += count
        os.fsync(file)
    finally:
        os.close(file)


def groups(blocks: list[block.Block]) -> Iterator[list[block.Block]]:
    """Blocks that follow one another, as many as one block may hold."""
    group: list[block.Block] = []
    size = rows = 0
    for one in blocks:
        bytes_of_it = sum(len(data) for data in one.buffers.values())
        if group and (size + bytes_of_it > BYTES or rows + one.count > ROWS):
            yield group
            group, size, rows = [], 0, 0
        group.append(one)
        size += bytes_of_it
        rows += one.count
    if group:
        yield group


def die_with_parent() -> None:
    """Have the kernel kill this process when the broker dies: the next one finds nobody who writes into its folder."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def main() -> int:
    """The exit code."""
    die_with_parent()
    os.nice(NICE)
    merge(Path(sys.argv[1]), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
