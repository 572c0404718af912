"""Compact a stream: keep only the latest message of each key, without changing offsets.

Closed segments are rewritten without the older messages, and replace the old files one by one. A crash leaves either
the old or the new file. Memory is bounded: one pass handles up to `KEYS` keys.

`hookmq_toolkit.message_frames` describes the blocks of a compacted segment.
"""

import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

from hookmq.plugin import Message, StoreError
from hookmq_toolkit.durable_files import write_all
from hookmq_toolkit.message_frames import Entry, decode_frame, encode_sparse
from hookmq_toolkit.segment_log import Frame, Segment, SegmentLog
from hookmq_toolkit.segment_log.frame import encode
from hookmq_toolkit.segment_log.segment import SUFFIX, UNNAMED, beginning

KEYS: Final = 100_000
"""Maximum number of keys in one pass: about 15 MB."""
_MERGED: Final = 256 << 10
"""Maximum size of the blocks of a compacted segment that are merged, in bytes."""
_MOST: Final = 1 << 20
"""Maximum number of offsets in a merged block."""

KeyOf = Callable[[Message], str | None]
"""Returns the key of a message, or None if it has none and is always kept."""


def key_property(message: Message) -> str | None:
    """Return a message's user property `key`."""
    for name, value in message.user_property:
        if name == "key":
            return value
    return None


def topic_key(message: Message) -> str | None:
    """Return a message's topic."""
    return message.topic


class Compactor:
    """Compacts one stream's log. Below the offset `clean`, only the latest message of each key remains.

    After a restart, `clean` starts at 0 again, and the first pass repeats earlier work.
    """

    def __init__(self, log: SegmentLog, key_of: KeyOf, keys: int = KEYS) -> None:
        self.log = log
        self.clean = 0
        self._key_of = key_of
        self._keys = keys

    def due(self) -> bool:
        """Return whether at least half of the bytes in closed segments have yet to be compacted."""
        closed = self.log.segments[:-1]
        dirty = sum(one.size for one in closed if one.end > self.clean)
        return dirty > 0 and 2 * dirty >= sum(one.size for one in closed)

    def run(self, replace: Callable[[Segment, Path], bool]) -> int:
        """Compact the closed segments, and return how many messages were removed. `replace` moves a segment's new file
        into place. This call blocks, so run it in a thread, and only once at a time. Raises StoreError, OSError or
        ValueError.
        """
        removed = 0
        while True:
            closed = [one for one in self.log.segments[:-1] if one.end <= self.log.readable]
            if not closed or closed[-1].end <= self.clean:
                return removed
            try:
                newest, upto = self._newest(closed)
                for segment in closed:
                    if segment.base < upto:
                        removed += self._rewrite(segment, newest, replace)
            except FileNotFoundError:
                return removed  # retention deleted a segment; the next call continues
            self.clean = upto

    def _newest(self, closed: list[Segment]) -> tuple[dict[bytes, int], int]:
        """Return the latest offset of each key, starting at `clean`, for as many keys as fit. Also return the offset
        after the last message examined.
        """
        newest: dict[bytes, int] = {}
        upto = self.clean
        for segment in closed:
            if segment.end <= self.clean:
                continue
            for _, frame in segment.frames(segment.find(max(self.clean, segment.base))):
                for offset, message in decode_frame(frame)[0]:
                    key = self._key_of(message)
                    if key is None or offset < self.clean:
                        continue
                    digest = _digest(key)
                    if digest not in newest and len(newest) >= self._keys:
                        return newest, offset
                    newest[digest] = offset
                upto = frame.end
        return newest, upto

    def _rewrite(
        self, segment: Segment, newest: dict[bytes, int], replace: Callable[[Segment, Path], bool]
    ) -> int:
        """Rewrite a segment without the messages that a later message with the same key has superseded. Return how many
        were removed.
        """
        removed = 0

        def is_left(entry: Entry) -> bool:
            nonlocal removed
            key = self._key_of(entry[1])
            left = key is None or newest.get(_digest(key), 0) <= entry[0]
            removed += not left
            return left

        target = segment.path.with_name(segment.path.name + UNNAMED)
        assert target.name.endswith(SUFFIX + UNNAMED)
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(file, beginning(segment.log, segment.store, segment.base))
            for merged, entries in _merge(segment, is_left):
                data = encode_sparse(merged.offset, entries)
                write_all(file, encode(merged._replace(payload=data), segment.salt))
            os.fsync(file)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        if not removed:
            target.unlink()
            return 0
        return removed if replace(segment, target) else 0


def _merge(
    segment: Segment, is_left: Callable[[Entry], bool]
) -> Iterator[tuple[Frame, list[Entry]]]:
    """Yield the blocks of the new segment. Each is a frame without a payload, and the messages that remain in it."""
    merged: Frame | None = None
    entries: list[Entry] = []
    size = 0
    for _, frame in segment.frames(segment.head):
        left = [one for one in decode_frame(frame)[0] if is_left(one)]
        grown = size + sum(len(message.payload) + len(message.topic) + 64 for _, message in left)
        if merged is not None and (grown > _MERGED or merged.records + frame.records > _MOST):
            yield merged, entries
            merged, entries, grown = None, [], grown - size
        if merged is None:
            merged = Frame(frame.offset, frame.records, frame.commit, 0, b"")
        else:
            merged = merged._replace(records=merged.records + frame.records, commit=frame.commit)
        entries = [*entries, *left]
        size = grown
    if merged is not None:
        yield merged, entries


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()


def replace_in(log: SegmentLog, segment: Segment, path: Path) -> bool:
    """Replace a segment of a log. Return False if the segment has been deleted. Raises StoreError."""
    try:
        return log.replace(segment.base, path)
    except StoreError:
        path.unlink(missing_ok=True)
        raise
