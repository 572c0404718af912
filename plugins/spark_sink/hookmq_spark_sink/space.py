"""Count a stream's bytes against its `max_bytes`.

This includes the log's files (even the newest), blocks being written, and the copy of a file being merged. The size of
buffered messages is an estimate that is never too low.
"""

from typing import Final

from hookmq.storage_api import Room

from hookmq_spark_sink.building import properties_size
from hookmq_spark_sink.config import StreamConfig

PER_RECORD: Final = 64
"""Bytes that a record needs for its numbers and column positions, in addition to its payload, texts and properties."""
PER_CHARACTER: Final = 4
"""Bytes of a character in a topic or a client id: the maximum in UTF-8."""
PER_BLOCK: Final = 1024
"""Size in bytes of a block without records, including its frame and padding."""
_FILE: Final = 512
"""Size of a file header in bytes."""


class Space:
    """A stream's use of space in bytes. Call `settle` after changing a number.

    - `stored`: the log's files.
    - `writing`: the blocks being written.
    - `copying`: the size of the file that is being copied.
    - `floor`: what counts against `limit` in addition to the buffered messages. Messages are refused when the sum of both
      reaches `limit`.
    - `low_disk`: whether the disk has too little free space, so that all messages are refused.
    - `pending`: the estimated size of the buffered messages, which is never too low, and the size at which messages are
      refused.

    With `on_full: drop_oldest`, files are deleted before a commit is written (`lacking`), so only buffered messages
    count. `max_bytes` has room for two commits and one file, because only the newest file must be kept.
    """

    __slots__ = (
        "_drop", "_max", "copying", "floor", "limit", "low_disk", "pending", "stored", "writing",
    )  # fmt: skip

    def __init__(self, config: StreamConfig) -> None:
        self.stored = self.writing = self.copying = self.floor = 0
        self.low_disk = False
        self.pending = Room(PER_RECORD, PER_CHARACTER, PER_BLOCK, properties_size)
        self._drop = config.on_full == "drop_oldest"
        self._max = config.max_bytes
        self.limit = config.max_bytes
        if self._drop:
            self.limit = (config.max_bytes - config.segment_size) // 2 - _FILE
        self.pending.limit = self.limit

    @property
    def used(self) -> int:
        """Return the number of bytes that are on disk or being written."""
        return self.stored + self.writing + self.copying

    def settle(self) -> None:
        """Compute `floor`, and the limit of `pending`."""
        self.floor = self.used
        if self._drop:
            # Files that should be deleted could not be deleted.
            self.floor = self.limit if self.stored + self.copying > self._max else 0
        self.pending.limit = 0 if self.low_disk else self.limit - self.floor

    def lacking(self) -> bool:
        """Return whether the oldest files must be deleted before the next write."""
        return self._drop and self.used + _FILE > self._max

    def fits(self, copy: int) -> bool:
        """Return whether there is room for a copy of this size. With `on_full: reject`, the same amount must also
        remain free afterwards, so that the copy does not cause refusals.
        """
        return self.used + copy * (1 if self._drop else 2) <= self._max
