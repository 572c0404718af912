"""Which part of a lane's log is still needed, and what must be written again so that its beginning can be deleted.

The log has no snapshots. Each live object knows the frame in which it was last written in full. The log is deleted up to
the oldest of these frames. To move this point, the owner writes the oldest objects again with its commits.
"""

from collections import deque
from typing import Any, Final

from hookmq.plugin import EMPTY, ClientRecord, Message
from hookmq.storage_api import (
    Enqueue,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutSession,
    PutState,
    PutSubscription,
    Record,
)

SLACK: Final = 2 << 20
"""Bytes of a log that are never compacted."""
SHARE: Final = 1.5
"""A log with more than this many times the bytes of its live objects, and `SLACK` bytes, is compacted."""
RATE: Final = 2.0
"""Bytes to write again for each byte that is committed meanwhile. The log then has at most ``SHARE + 1 / RATE`` times
the live bytes, and a constant."""
LEAST: Final = 64 << 10
"""The least number of bytes to write again with one commit."""
MOST: Final = 4 << 20
"""The largest number of bytes to write again with one commit."""
TRIM: Final = 256 << 10
"""The log is trimmed after each this many bytes."""


class Kept:
    """A live object: its full record, which is None once it is gone, and the frame that has it."""

    __slots__ = ("frame", "record", "weight")

    def __init__(self) -> None:
        self.record: Any = None
        self.frame: Frame | None = None
        self.weight = 0


class Frame:
    """The objects that a frame has in full. Some of them may be gone, or written again later."""

    __slots__ = ("objects", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.objects: list[Kept] = []


class LogAge:
    """The ages of all live objects of one lane."""

    __slots__ = (
        "_current",
        "_frames",
        "_needed",
        "_needed_bytes",
        "_sizes",
        "live_bytes",
        "log_bytes",
    )

    def __init__(self) -> None:
        self.live_bytes = 0
        """The size of all live objects, as they are in the log. Most of it is an estimate."""
        self.log_bytes = 0
        """The size of the log after the last `trimmed`."""
        self._frames: deque[Frame] = deque()
        """The frames that may have live objects."""
        self._sizes: deque[tuple[int, int]] = deque()
        """Sequence and size of everything in the log."""
        self._needed: deque[tuple[int, int]] = deque()
        """The same from the oldest live object on. `_needed_bytes` is the sum of the sizes."""
        self._needed_bytes = 0
        self._current = Frame(0)

    def begin(self, sequence: int, size: int) -> None:
        """Begin a frame of `size` bytes. Sequences must increase."""
        self.grow(sequence, size)
        self._current = Frame(sequence)

    def grow(self, sequence: int, size: int) -> None:
        """Account for `size` bytes at `sequence` that have no objects."""
        one = (sequence, size)
        self.log_bytes += size
        self._sizes.append(one)
        self._needed_bytes += size
        self._needed.append(one)

    def put(self, kept: Kept, record: Record, weight: int) -> None:
        """The current frame has `record`, the full record of `kept`. `weight` is its `weight_of`."""
        self.live_bytes += weight - kept.weight
        kept.weight = weight
        kept.record = record
        current = self._current
        if kept.frame is not current:
            kept.frame = current
            if not current.objects:
                self._frames.append(current)
            current.objects.append(kept)

    def drop(self, kept: Kept) -> None:
        """The object is gone."""
        self.live_bytes -= kept.weight
        kept.weight = 0
        kept.record = None
        kept.frame = None

    @property
    def oldest(self) -> int:
        """The sequence of the oldest frame with a live object, or 0 if no object is alive."""
        frames = self._frames
        while frames:
            frame = frames[0]
            objects = frame.objects
            while objects and objects[-1].frame is not frame:
                objects.pop()
            if objects:
                return frame.sequence
            frames.popleft()
        return 0

    def due(self, size: int, inbox: int) -> list[Record]:
        """Return the records to write again together with a commit of `size` bytes. Frames of other nodes above the
        sequence `inbox` cannot be deleted."""
        oldest = self.oldest
        # A trim can take long. Until then, the bytes before the oldest object are no reason to write objects again.
        needed = self._needed
        while needed and needed[0][0] < oldest:
            self._needed_bytes -= needed.popleft()[1]
        if self._needed_bytes <= SHARE * self.live_bytes + SLACK or oldest > inbox:
            return []
        wanted = max(LEAST, min(MOST, int(RATE * size)))
        return self.take(wanted, wanted)

    def take(self, count: int, size: int) -> list[Record]:
        """Return the records of the oldest live objects: at most `count`, of about `size` bytes. The objects stay as old
        as they are until they are written."""
        taken: list[Record] = []
        if not self.oldest:  # this also removes deleted objects from the end of the first frame
            return taken
        for frame in self._frames:
            for kept in reversed(frame.objects):
                if kept.frame is frame:
                    if len(taken) >= count or size <= 0:
                        return taken
                    taken.append(kept.record)
                    size -= kept.weight
        return taken

    def trimmed(self, before: int) -> None:
        """Everything below the sequence `before` is deleted."""
        sizes = self._sizes
        while sizes and sizes[0][0] < before:
            self.log_bytes -= sizes.popleft()[1]


# --- sizes -----------------------------------------------------------------------------------------------------------


def _text(value: str | None) -> int:
    if value is None:
        return 1
    return 2 + (len(value) if value.isascii() else len(value.encode(errors="surrogatepass")))


def weight_of_message(message: Message) -> int:
    """Return about how many bytes a message has in a frame."""
    sender = message.sender
    size = 40 + len(message.topic) + len(message.payload) + len(message.origin)
    if sender is not None:
        size += len(sender)
    properties = message.properties
    return size if properties is EMPTY else size + properties.extent() + 6 * len(properties.values)


def weight_of_entry(entry: Enqueue) -> int:
    """Return about how many bytes a queue entry has in a frame."""
    return 36 + len(entry.owner) + len(entry.filter) + len(entry.group) + 3 * len(entry.identifiers)


def _client(client: ClientRecord) -> int:
    peer = client.peer
    size = (
        40
        + _text(client.client_id)
        + _text(client.username)
        + _text(client.identity)
        + _text(client.vouched_by)
    )
    size += (
        _text(peer.host) + len(peer.transport) + len(client.listener) + _text(client.mount_point)
    )
    if client.claims:
        size += len(repr(client.claims))
    if peer.certificate is not None:
        one = peer.certificate
        size += (
            8
            + _text(one.common_name)
            + _text(one.subject)
            + len(one.fingerprint)
            + sum(map(_text, one.sans))
        )
    return size


def weight_of(record: Record) -> int:
    """Return about how many bytes a record has in a frame. It is 0 for records that only delete. Texts that are not
    ASCII are larger than estimated."""
    if isinstance(record, PutSubscription):
        one = record.subscription
        size = 8 + _text(record.client_id) + _text(one.filter)
        return size if one.topic_filter == one.filter else size + _text(one.topic_filter)
    if isinstance(record, PutSession):
        session = record.session
        size = (
            32
            + _client(session.client)
            + sum(map(_text, session.revoked))
            + 20 * len(session.limits)
        )
        return size if session.will is None else size + weight_of_message(session.will.message)
    if isinstance(record, PutState):
        return 12 + _text(record.space) + _text(record.key) + len(record.value)
    if isinstance(record, PutPublisher):
        return 11 + _client(record.client)
    if isinstance(record, PutReceived):
        return 8 + _text(record.client_id)
    if isinstance(record, Enqueue):
        return weight_of_entry(record)
    return weight_of_message(record.message) if isinstance(record, PutMessage) else 0
