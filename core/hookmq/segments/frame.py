"""Frames: what a segment is a row of. Bytes only, no files.

A frame is a header and a payload that holds `records` records, numbered from `offset`. Two checksums, of the header and
of the payload, begin with a number of the log's own (its `salt`), so that no payload can be mistaken for a frame,
whoever wrote it.

`synced` is what was known to be on the disk when the frame was written: every record below it. That tells a torn tail
from damage: after a power cut any part of what was never synced may be missing, but if a frame is unreadable and a later
one says that the records there had been synced, then the disk has lost what it promised.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, cast
from zlib import crc32

MAGIC: Final = b"HqFr"
HEADER: Final = struct.Struct("<4sIIIIQQQ")
"""magic, CRC of the rest of the header, CRC of the payload, length, records, commit, offset, synced"""
_CHECKED: Final = 8
"""Where the part of the header begins that its CRC is about."""
MAX_PAYLOAD: Final = (1 << 31) - 1

Data = bytes | memoryview
"""What frames are read from; a memory map as a view."""


class Frame(NamedTuple):
    """`records` records, the first of them number `offset`, that belong to commit `commit`."""

    offset: int
    records: int
    commit: int
    synced: int
    payload: bytes

    @property
    def end(self) -> int:
        """The number of the record after its last one."""
        return self.offset + self.records


def encode(frame: Frame, salt: int) -> bytes:
    """The bytes of a frame. Raises ValueError for one without records or with more than `MAX_PAYLOAD` bytes."""
    length = len(frame.payload)
    if frame.records < 1 or length > MAX_PAYLOAD:
        raise ValueError(f"a frame of {frame.records} records and {length} bytes")
    payload_check = crc32(frame.payload, salt)
    rest = (payload_check, length, frame.records, frame.commit, frame.offset, frame.synced)
    header = HEADER.pack(MAGIC, 0, *rest)
    check = crc32(header[_CHECKED:], salt)
    return b"".join((HEADER.pack(MAGIC, check, *rest), frame.payload))


def decode(data: Data, position: int, salt: int, check_payload: bool = True) -> Frame | None:
    """The frame at `position`; None if none is whole there. Without `check_payload` it comes without its payload, whose
    length is all that was looked at."""
    start = position + HEADER.size
    if start > len(data):
        return None
    header = bytes(data[position:start])
    magic, check, payload_check, length, records, commit, offset, synced = HEADER.unpack(header)
    if magic != MAGIC or check != crc32(header[_CHECKED:], salt) or start + length > len(data):
        return None
    if not check_payload:
        return Frame(offset, records, commit, synced, b"")
    payload = bytes(data[start : start + length])
    if crc32(payload, salt) != payload_check:
        return None
    return Frame(offset, records, commit, synced, payload)


def scan(
    data: Data, position: int, salt: int, check_payloads: bool = True
) -> Iterator[tuple[int, Frame]]:
    """The frames from `position` on, each with the position after it, up to the first place without a whole one."""
    while (frame := decode(data, position, salt, check_payloads)) is not None:
        position += HEADER.size + HEADER.unpack(data[position : position + HEADER.size])[3]
        yield position, frame


def after_damage(data: Data, position: int, offset: int, salt: int) -> tuple[int, Frame] | None:
    """The first whole frame after `position` that holds records from `offset` on, and where it begins."""
    whole = data if isinstance(data, bytes) else cast("bytes", data.obj)
    while (position := whole.find(MAGIC, position + 1)) >= 0:
        frame = decode(data, position, salt)
        if frame is not None and frame.offset >= offset:
            return position, frame
    return None


def known_end(data: Data, position: int, salt: int) -> int:
    """The largest record number after a frame whose header is whole, from `position` on; 0 if there is none."""
    whole = data if isinstance(data, bytes) else cast("bytes", data.obj)
    end = 0
    position -= 1
    while (position := whole.find(MAGIC, position + 1)) >= 0:
        header = bytes(data[position : position + HEADER.size])
        if len(header) == HEADER.size:
            _, check, _, _, records, _, offset, _ = HEADER.unpack(header)
            if check == crc32(header[_CHECKED:], salt):
                end = max(end, offset + records)
    return end


def lost(data: Data, position: int, offset: int, salt: int) -> bool:
    """Whether a frame somewhere after `position` says that record `offset`, unreadable there, had been synced."""
    whole = data if isinstance(data, bytes) else cast("bytes", data.obj)
    while (position := whole.find(MAGIC, position + 1)) >= 0:
        header = bytes(data[position : position + HEADER.size])
        if len(header) < HEADER.size:
            return False
        _, check, _, _, _, _, _, synced = HEADER.unpack(header)
        if check == crc32(header[_CHECKED:], salt) and synced > offset:
            return True
    return False
