"""A segmented log: records numbered from 0, appended in commits, read by number and deleted from the beginning.

Journals that store messages are built on it (`hookmq.storage_api.Journal`). The calls, in order:

    log = SegmentLog(folder, runtime.run_blocking)
    log.open()                        # locks the folder, cuts off a torn tail; raises StoreError if damaged
    log.recover(last)                 # drops records that the broker's store never committed
    log.append(commit, payload, n)    # buffers
    log.flush(done)                   # writes and fsyncs in a thread
    log.committed(commit)             # makes the records readable
    log.seal(done)                    # instead of both: writes records that need no commit of the store
    log.read(offset, size)            # returns frames; blocks, so call it in a thread
    log.trim(offset)                  # deletes whole segments that end at or before `offset`

Call the methods on the event loop's thread, except `read`, `next_good`, `trim` and `replace`: these block, and may be
called in any thread. A failed write or fsync is final, because the state of the disk is then unknown. The same is true
if a file is removed, moved or replaced: the next process that opens the log would not find data written to the old
file.
"""

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hookmq.plugin import Cancel, Done, StoreError
from hookmq.storage_api import CommitId, StoreFailed

from hookmq_toolkit.durable_files import move_into_place, sync_folder, write_all
from hookmq_toolkit.segment_log.frame import Frame, encode
from hookmq_toolkit.segment_log.segment import (
    SUFFIX,
    UNNAMED,
    Segment,
    create,
    log_of,
    next_good,
    read,
    truncate,
)
from hookmq_toolkit.state_folder import LOCK, make_folder, refuse_foreign, try_lock

RunBlocking = Callable[[Callable[[], Any], Done], Cancel]
"""`hookmq.plugin.Runtime.run_blocking`."""
Flushed = Callable[[StoreFailed | None], None]


class Trimmed(LookupError):
    """The record was deleted. `earliest` is the first remaining record."""

    def __init__(self, earliest: int) -> None:
        super().__init__(f"records before {earliest} were deleted")
        self.earliest = earliest


class SegmentLog:
    """A segmented log in a folder; see the module docstring.

    A new segment begins after `segment_size` bytes. Without `sync`, a flush writes without fsync: the records survive a
    crash of the process but not a power cut. Without `verify`, `open` checks payloads only in the last segment; other
    payloads are checked when they are read. With `salvage`, `open` skips damage that no crash can cause, instead of
    refusing the log. `read` still stops at damage, and `next_good` returns the record to continue from.
    """

    def __init__(
        self,
        folder: Path,
        run_blocking: RunBlocking,
        *,
        segment_size: int = 64 << 20,
        sync: bool = True,
        verify: bool = True,
        salvage: bool = False,
    ) -> None:
        self.folder = folder
        self.segment_size = segment_size
        self.sync = sync
        self.verify = verify
        self.salvage = salvage
        self.id = ""
        """A random id, generated when the log is created."""
        self.segments: list[Segment] = []
        self.failure: str | None = None
        self.next = 0
        """The number of the next record."""
        self.flushed = 0
        """The number that follows the last record written and, with `sync`, also synced."""
        self.readable = 0
        """The number that follows the last record flushed and committed by the store. Readers see only the records
        below this number."""
        self.syncs = 0
        """Number of syncs since startup."""
        self.changes = 0
        """How often files were deleted or replaced since startup."""
        self.roll = False
        """Set this to True to begin a new segment at the next flush, unless the last segment is empty. The flush may be
        one without records."""
        self._run_blocking = run_blocking
        self._lock = -1
        self._file = -1
        self._changing = threading.Lock()
        """Held while `trim` and `replace` change files and `segments`."""
        self._identity = (0, 0)
        """Device and inode of the file that `_file` writes to."""
        self._store = ""
        self._commit = 0
        self._committed = 0
        self._written = 0
        """The newest commit with records that were passed to a write."""
        self._pending: list[Frame] = []
        self._waiting: list[Flushed] = []
        self._writing = False
        self._unread: deque[tuple[int, int]] = deque()

    # opening --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the folder if it is missing, lock it and read the segments. Cut off a torn tail. This call blocks.
        Raises StoreError for damage, unknown files, a folder in use by another process, or a failing disk.
        """
        try:
            make_folder(self.folder)
            self._take()
            self._load()
        except (OSError, StoreError) as error:
            self.close()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error

    def _take(self) -> None:
        self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(self._lock):
            raise StoreError(f"{self.folder} is in use by another process")

    def _load(self) -> None:
        for unnamed in self.folder.glob(f"*{SUFFIX}{UNNAMED}"):
            unnamed.unlink()
        names = sorted(os.listdir(self.folder))
        refuse_foreign(self.folder, names, lambda name: name == LOCK or name.endswith(SUFFIX))
        paths = [self.folder / name for name in names if name.endswith(SUFFIX)]
        # Salvage only if a readable segment shows the log's id: unreadable files may belong to another log.
        salvage = next(filter(None, map(log_of, paths)), "") if self.salvage else ""
        for path in paths:
            segment = read(path, path is paths[-1], self.verify, salvage=salvage)
            before = self.segments[-1] if self.segments else segment
            if salvage and segment.base > before.end:
                before.end = segment.base
            if segment.log != before.log:
                raise StoreError(f"{path} belongs to another log than {before.path.name}")
            if segment is not before and segment.base != before.end:
                raise StoreError(f"{path}: records {before.end} to {segment.base} are missing")
            self.segments.append(segment)
        if self.segments:
            truncate(self.segments[-1])
            self.id = self.segments[-1].log
            self.next = self.segments[-1].end
        else:
            self.id = os.urandom(16).hex()
        self.flushed = self.readable = self.next

    def recover(self, last: CommitId) -> int:
        """Drop the records after commit `last` and return their number. If the log was last used with another store,
        keep everything and begin a new segment. This call blocks. Raises StoreError.
        """
        try:
            dropped = self._drop(last) if self.segments else 0
            if not self.segments or self.segments[-1].store != last.store:
                self._begin(last.store)
            else:
                self._open_last()
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error
        self._store, self._commit, self._committed = last.store, last.number, last.number
        self._written = 0
        return dropped

    def skip(self, number: int) -> None:
        """Never assign numbers below `number`. Use this if you know that the disk has lost records. Call it after
        `recover`, on a log with `salvage`. This call blocks. Raises StoreError.
        """
        if number <= self.next:
            return
        self.segments[-1].end = number
        self.next = self.flushed = self.readable = number
        try:
            self._begin(self._store)
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error

    def _drop(self, last: CommitId) -> int:
        """Drop whole segments, and then frames of what is now the last segment. Commit numbers only increase within the
        segments of one store.
        """
        before = self.next
        while self.segments[-1].store == last.store:
            segment = self.segments[-1]
            empty = segment.end == segment.base and len(self.segments) > 1
            newest = self.segments[-2].commit if empty else segment.commit
            if newest <= last.number:
                break
            kept = Segment(
                segment.path, segment.log, segment.store, segment.base, segment.head, segment.base,
                segment.head,
            )  # fmt: skip
            at = segment.head
            for after, frame in segment.frames(segment.head):
                if frame.commit > last.number:
                    break
                kept.grown(frame, at, after)
                at = after
            if kept.end == kept.base and len(self.segments) > 1:
                segment.path.unlink()
                sync_folder(self.folder)
                self.segments.pop()
            else:
                truncate(kept)
                self.segments[-1] = kept
                break
        self.next = self.flushed = self.readable = self.segments[-1].end
        return before - self.next

    def _begin(self, store: str) -> None:
        """Begin a new last segment. An empty last segment has the same name and is replaced."""
        if self.segments and self.segments[-1].base == self.next:
            self.segments.pop()
        self.segments.append(create(self.folder, self.id, store, self.next))
        self._open_last()

    def _open_last(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self.segments[-1].path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        found = os.fstat(self._file)
        self._identity = (found.st_dev, found.st_ino)

    def _still_there(self, path: Path) -> None:
        """Raise StoreError if `path` is not the file being written, or OSError if `path` does not exist."""
        found = os.stat(path)  # called for each flush: `Path.stat` takes twice as long
        if (found.st_dev, found.st_ino) != self._identity:
            raise StoreError(f"{path.name} was replaced while it was in use")

    # writing --------------------------------------------------------------------------------------------------------

    def append(self, commit: CommitId | None, payload: bytes, count: int = 1) -> int:
        """Buffer `payload`, which holds `count` records, and return the number of the first record. If `commit` is
        None, the records belong to the same commit as the records before them. Raises ValueError if `count` is 0."""
        if commit is not None:
            self._commit = commit.number
        offset = self.next
        frame = Frame(offset, count, self._commit, 0, payload)
        if count < 1:
            raise ValueError("a frame without records")
        self._pending.append(frame)
        self.next = frame.end
        return offset

    def flush(self, done: Flushed) -> None:
        """Make the appended records safe, then call `done`. If there is nothing to write, call `done` at once."""
        if self.failure is not None:
            done(StoreFailed(self.failure))
        elif not self._pending and not self._writing and not self._rolls(self.segments[-1]):
            done(None)
        else:
            self._waiting.append(done)
            if not self._writing:
                self._write()

    @property
    def sealable(self) -> bool:
        """Whether `seal` is possible: no record that was written belongs to a commit that the store has yet to make."""
        return self._written <= self._committed

    def seal(self, done: Flushed) -> None:
        """Make the appended records safe like `flush`, for which the store makes no commit. They are readable before
        `done` is called, and `recover` keeps them. Call this only if the log is `sealable`.
        """
        # They become part of the last commit that the store has made.
        known = self._commit = self._committed
        self._pending = [frame._replace(commit=known) for frame in self._pending]
        self.flush(done)

    def _write(self) -> None:
        frames, self._pending = self._pending, []
        if frames:
            self._written = frames[-1].commit
        waiting, self._waiting = self._waiting, []
        self._writing = True

        def written(_: object, error: BaseException | None) -> None:
            self._writing = False
            if error is not None:
                self.failure = f"{self.folder}: {getattr(error, 'strerror', None) or error}"
                waiting.extend(self._waiting)
                self._waiting = []
                for call in waiting:
                    call(StoreFailed(self.failure))
                return
            if frames:
                self.flushed = frames[-1].end
                self._unread.extend((frame.commit, frame.end) for frame in frames)
                self._advance()
            for call in waiting:
                call(None)
            if self._waiting and not self._writing:
                self._write()

        self._run_blocking(partial(self._store_frames, frames, self.flushed), written)

    def _rolls(self, segment: Segment) -> bool:
        """Return whether the next flush starts a new segment after `segment`, regardless of its size."""
        return self.roll and segment.end > segment.base

    def _store_frames(self, frames: list[Frame], synced: int) -> None:
        """Write frames. This runs in a thread, one call at a time."""
        segment = self.segments[-1]
        full = bool(frames) and segment.size >= self.segment_size
        if full or self._rolls(segment):
            self.roll = False
            os.fsync(self._file)  # a no-op with `sync`; without it, closed segments are safe
            segment = create(self.folder, self.id, self._store, segment.end)
            self.segments.append(segment)
            self._open_last()
        if not frames:
            return
        salt = segment.salt
        parts: list[bytes] = []
        places: list[tuple[Frame, int, int]] = []
        at = segment.size
        for frame in frames:
            data = encode(frame._replace(synced=synced if self.sync else 0), salt)
            places.append((frame, at, at + len(data)))
            at += len(data)
            parts.append(data)
        write_all(self._file, b"".join(parts))
        if self.sync:
            os.fdatasync(self._file)
            self.syncs += 1
        self._still_there(segment.path)
        for place in places:
            segment.grown(*place)

    def committed(self, commit: CommitId) -> None:
        """Make the records of `commit` readable. Call this once the broker's store has committed it."""
        self._committed = max(self._committed, commit.number)
        self._advance()

    def _advance(self) -> None:
        while self._unread and self._unread[0][0] <= self._committed:
            self.readable = self._unread.popleft()[1]

    # reading --------------------------------------------------------------------------------------------------------

    @property
    def earliest(self) -> int:
        """Return the number of the first remaining record."""
        return self.segments[0].base if self.segments else 0

    @property
    def size(self) -> int:
        """Return the total size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def buffered(self) -> int:
        """Return the number of bytes that have been appended but not yet passed to a write."""
        return sum(len(frame.payload) for frame in self._pending)

    def read(self, offset: int, size: int) -> list[Frame]:
        """Return readable frames with about `size` bytes of payload, starting with the frame that holds record `offset`
        and stopping at damage. Returns at least one frame if any is readable. This call blocks, and may be made in any
        thread. Raises Trimmed, or StoreError if the first frame is damaged.
        """
        return read_frames(list(self.segments), offset, self.readable, size)

    def next_good(self, offset: int) -> int:
        """Return the number of the next readable record, at most `readable`. Use it after `read` raised StoreError for
        `offset`. This call blocks, and may be made in any thread. Raises OSError.
        """
        for segment in list(self.segments):
            if segment.base <= offset < segment.end:
                return min(next_good(segment, offset), self.readable)
        return min((one.base for one in self.segments if one.base > offset), default=self.readable)

    def trim(self, offset: int) -> int:
        """Delete segments whose records are all below `offset`, except the last segment. Return how many were deleted.
        This call blocks, and may be made in any thread. Raises StoreError.
        """
        with self._changing:
            return self._trim(offset)

    def _trim(self, offset: int) -> int:
        count = 0
        while len(self.segments) > 1 and self.segments[1].base <= offset:
            try:
                self.segments[0].path.unlink(missing_ok=True)
                sync_folder(
                    self.folder
                )  # oldest first: deleting a later one first could leave a gap after a crash
            except OSError as error:
                raise StoreError(f"{self.segments[0].path}: {error.strerror}") from error
            del self.segments[0]
            self.changes += 1
            count += 1
        return count

    def replace(self, base: int, path: Path) -> bool:
        """Replace the segment that begins with record `base` with the file `path`. If that segment is the last or was
        deleted, delete `path` and return False.

        `path` must be in the log's folder, and its name must end in ``.segment.new``. It must hold the same records,
        divided into frames in any way, and all of them must be committed. Current readers continue with the old file.
        This call blocks, and may be made in any thread. Raises StoreError if `path` does not hold that segment.
        """
        with self._changing:
            return self._replace(base, path)

    def _replace(self, base: int, path: Path) -> bool:
        try:
            old = next((one for one in self.segments[:-1] if one.base == base), None)
            if old is None:
                path.unlink()
                return False
            new = read(path, False, name=old.path.name)
            if (new.log, new.store, new.base, new.end) != (old.log, old.store, old.base, old.end):
                raise StoreError(f"{path} does not have the same records as {old.path.name}")
            move_into_place(path, old.path)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        new.path = old.path
        self.segments[self.segments.index(old)] = new
        self.changes += 1
        return True

    def free(self) -> int:
        """Return the free disk space in bytes."""
        return shutil.disk_usage(self.folder).free

    def close(self) -> None:
        """Release the folder. Records that were not flushed are lost."""
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._file = self._lock = -1


def read_frames(segments: list[Segment], offset: int, end: int, size: int) -> list[Frame]:
    """Return frames as `SegmentLog.read` does, up to record `end`."""
    if segments and offset < segments[0].base:
        raise Trimmed(segments[0].base)
    found: list[Frame] = []
    for segment in segments:
        if segment.end <= offset or segment.base >= end:
            continue
        try:
            for frame in _from(segment, max(offset, segment.base)):
                if frame.end > end or (found and size <= 0):
                    return found
                if frame.offset > (found[-1].end if found else offset):
                    break
                found.append(frame)
                size -= len(frame.payload)
            else:
                continue
            raise StoreError(f"{segment.path}: record {offset} is missing")
        except StoreError:
            if found:
                return found
            raise
    return found


def _from(segment: Segment, offset: int) -> Iterator[Frame]:
    try:
        for _, frame in segment.frames(segment.find(offset)):
            if frame.end > offset:
                yield frame
    except FileNotFoundError:
        raise Trimmed(segment.end) from None
