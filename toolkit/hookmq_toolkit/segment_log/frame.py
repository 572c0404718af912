"""Frames, the units of a segment. This module handles only bytes, not files.

A frame is a header and a payload that holds `records` records, numbered from `offset`. The header and the payload each
have a checksum seeded with the log's own number, its `salt`. A payload therefore cannot be mistaken for a frame.

All records below `synced` were known to be on disk when the frame was written. This distinguishes a torn tail from
damage. After a power cut, any record that was never synced may be missing. If a frame is unreadable, but a later frame
shows that its records had been synced, the disk has lost data.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, cast
from zlib import crc32

MAGIC: Final = b"HqFr"
HEADER: Final = struct.Struct("<4sIIIIQQQ")
"""Magic, CRC of the rest of the header, CRC of the payload, length, records, commit, offset, synced."""
FRAME_HEADER: Final = HEADER.size
"""Bytes of a frame without its payload."""
_CHECKED: Final = 8
"""Position in the header from which its CRC is computed."""
MAX_PAYLOAD: Final = (1 << 31) - 1

Data = bytes | memoryview
"""The type that frames are decoded from: bytes, or a view of a memory map."""


class Frame(NamedTuple):
    """`records` records, numbered from `offset`, that belong to commit `commit`."""

    offset: int
    records: int
    commit: int
    synced: int
    payload: bytes

    @property
    def end(self) -> int:
        """Return the number that follows the last record."""
        return self.offset + self.records


def encode(frame: Frame, salt: int) -> bytes:
    """Return the bytes of a frame. Raises ValueError if it has no records or more than `MAX_PAYLOAD` bytes."""
    length = len(frame.payload)
    if frame.records < 1 or length > MAX_PAYLOAD:
        raise ValueError(f"a frame of {frame.records} records and {length} bytes")
    payload_check = crc32(frame.payload, salt)
    rest = (payload_check, length, frame.records, frame.commit, frame.offset, frame.synced)
    header = HEADER.pack(MAGIC, 0, *rest)
    check = crc32(header[_CHECKED:], salt)
    return b"".join((HEADER.pack(MAGIC, check, *rest), frame.payload))


def decode(data: Data, position: int, salt: int, check_payload: bool = True) -> Frame | None:
    """Return the frame at `position`, or None if it is incomplete or damaged. Without `check_payload`, only the
    payload's length is checked, and the returned frame has no payload."""
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


def header_of(data: Data, position: int, salt: int) -> tuple[Frame, int] | None:
    """Return the frame at `position` without its payload, and the length of the whole frame in bytes. Return None if the
    header is incomplete or damaged."""
    header = bytes(data[position : position + HEADER.size])
    if len(header) < HEADER.size:
        return None
    magic, check, _, length, records, commit, offset, synced = HEADER.unpack(header)
    if magic != MAGIC or check != crc32(header[_CHECKED:], salt):
        return None
    return Frame(offset, records, commit, synced, b""), HEADER.size + length


def scan(
    data: Data, position: int, salt: int, check_payloads: bool = True
) -> Iterator[tuple[int, Frame]]:
    """Yield the frames from `position` on, each with the position after it. Stop at an incomplete or damaged frame."""
    while (frame := decode(data, position, salt, check_payloads)) is not None:
        position += HEADER.size + HEADER.unpack(data[position : position + HEADER.size])[3]
        yield position, frame


def after_damage(data: Data, position: int, offset: int, salt: int) -> tuple[int, Frame] | None:
    """Find the first intact frame after `position` that holds records from `offset` on. Return its position and the
    frame itself, or None if there is none.
    """
    whole = data if isinstance(data, bytes) else cast("bytes", data.obj)
    while (position := whole.find(MAGIC, position + 1)) >= 0:
        frame = decode(data, position, salt)
        if frame is not None and frame.offset >= offset:
            return position, frame
    return None


def known_end(data: Data, position: int, salt: int) -> int:
    """Return the highest end of any frame with an intact header from `position` on, or 0 if there is no such frame."""
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
    """Return whether a frame after `position` shows that the unreadable record `offset` had been synced."""
    whole = data if isinstance(data, bytes) else cast("bytes", data.obj)
    while (position := whole.find(MAGIC, position + 1)) >= 0:
        header = bytes(data[position : position + HEADER.size])
        if len(header) < HEADER.size:
            return False
        _, check, _, _, _, _, _, synced = HEADER.unpack(header)
        if check == crc32(header[_CHECKED:], salt) and synced > offset:
            return True
    return False
