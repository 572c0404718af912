"""Rewrite a sealed segment, merging and compressing each partition's small blocks.

``python -P -m hookmq_spark_sink.merge`` runs as a separate process, so that it does not compete with the broker's event
loop for the interpreter lock. It reads a request from each line of its input: a list of the segment's path, the
target's path and the compression, as JSON. It answers each request with the text of an error, which is empty if the
segment was merged. It ends at the end of its input, or when it has been idle for a while.
"""

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from hookmq_toolkit.durable_files import write_all
from hookmq_toolkit.segment_log.frame import Frame, encode
from hookmq_toolkit.segment_log.segment import beginning, read

from hookmq_spark_sink import block, building, packed

BYTES: Final = 2 << 20
"""Target size of a merged block in bytes."""
ROWS: Final = 1 << 16
NICE: Final = 10
IDLE: Final = 10.0
"""Seconds without a request after which the process ends."""
_DEATH_SIGNAL: Final = 1
"""The value of PR_SET_PDEATHSIG."""


def worthwhile(blocks: int, packed: int, partitions: int, size: int, compression: str) -> bool:
    """Return whether rewriting a segment is worthwhile.

    The segment has `blocks` blocks with a total size of `size` bytes. Of these blocks, `packed` are already compressed.
    """
    if compression == "zstd" and packed < blocks:
        return True
    return not packed and blocks > 2 * (partitions + size // BYTES)


def merge(source: Path, target: Path, compression: str) -> None:
    """Write the merged segment to `target` without syncing it, because `SegmentLog.replace` does that. Raises OSError,
    StoreError or block.Damaged if that fails.
    """
    encoded = packed.pack if compression == "zstd" else block.assemble
    segment = read(source, False, verify=False)
    blocks: dict[int, list[block.Block]] = {}
    for _, frame in segment.frames(segment.head):
        one = packed.parse(frame.payload, verify=False)  # the frame's checksum has been verified
        blocks.setdefault(one.partition, []).append(one)
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(file, beginning(segment.log, segment.store, segment.base))
        offset = segment.base
        for partition in sorted(blocks):
            for group in groups(blocks[partition]):
                data = encoded(building.merge(group))
                count = sum(one.count for one in group)
                write_all(file, encode(Frame(offset, count, segment.commit, 0, data), segment.salt))
                offset += count
    finally:
        os.close(file)


def groups(blocks: list[block.Block]) -> Iterator[list[block.Block]]:
    """Yield groups of consecutive blocks, each of which fits into one block."""
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
    """Make the kernel kill this process when the broker dies. Otherwise, it could write to a folder that the next
    broker is already using.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def main(idle: float = IDLE) -> int:
    """Serve requests until there are no more. Return the exit code."""
    die_with_parent()
    os.nice(NICE)
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    # The broker sends a request only after the answer to the one before, so none is left in Python's buffer.
    while poll.poll(idle * 1000) and (request := sys.stdin.readline()):
        source, target, compression = json.loads(request)
        try:
            merge(Path(source), Path(target), compression)
            said = ""
        except Exception as error:
            said = str(error) or repr(error)
        print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
