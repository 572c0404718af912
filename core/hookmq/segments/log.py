"""A segmented log: records numbered from 0, appended in commits, read by number, forgotten from its beginning.

What a journal that keeps messages itself is built on (`hookmq.store.Journal`). The order of its life:

    log = SegmentLog(folder, runtime.run_blocking)
    log.open()                        # takes the folder, mends a torn tail; raises StoreError for damage
    log.recover(last)                 # drops what the broker's store never committed
    log.append(commit, payload, n)    # buffers
    log.flush(done)                   # write and fsync, in a thread
    log.committed(commit)             # from now on readers see it
    log.read(offset, size)            # frames; blocks, so in a thread
    log.trim(offset)                  # whole segments that end there or before are deleted

Calls are made on the loop's thread, but `read` and `trim`, which block and may be made anywhere. A failed write or fsync
is final: what the disk holds then nobody knows. So is a file that was removed, moved or replaced: who opens the log next
would not find what is written into it.
"""

import errno
import fcntl
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from hookmq.errors import StoreError
from hookmq.runtime import Cancel, Done
from hookmq.segments.frame import Frame, encode
from hookmq.segments.segment import (
    SUFFIX,
    UNNAMED,
    Segment,
    create,
    log_of,
    next_good,
    read,
    sync_folder,
    truncate,
    write,
)
from hookmq.store import CommitId, StoreFailed

RunBlocking = Callable[[Callable[[], Any], Done], Cancel]
"""`hookmq.runtime.Runtime.run_blocking`."""
Flushed = Callable[[StoreFailed | None], None]
LOCK: Final = "lock"
_IGNORED: Final = frozenset({LOCK, "lost+found"})


class Trimmed(LookupError):
    """The record asked for was deleted; `earliest` is the first that is left."""

    def __init__(self, earliest: int) -> None:
        super().__init__(f"records before {earliest} were deleted")
        self.earliest = earliest


class SegmentLog:
    """See the module. `segment_size`: bytes after which a new segment is begun. `sync`: False leaves it to the operating
    system when a flush reaches the disk, so that it survives the end of the process but no power cut. `verify`: False
    leaves the checksums of all but the last segment for when they are read. `salvage`: what is damaged, which no crash
    does, is passed over, where else `open` refuses all of it; `read` still stops there, and `next_good` tells where to go
    on."""

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
        """Made up when the log was created: another log has another."""
        self.segments: list[Segment] = []
        self.failure: str | None = None
        self.next = 0
        """The number that the next record gets."""
        self.flushed = 0
        """The number after the last record that was written (and synced, with `sync`)."""
        self.readable = 0
        """The number after the last record that readers may see: flushed, and committed by the store."""
        self.syncs = 0
        """How often the file was synced since the start."""
        self.roll = False
        """Set it to have the next flush begin a new segment, however small this one is, if there is anything in it."""
        self._run_blocking = run_blocking
        self._lock = -1
        self._file = -1
        self._identity = (0, 0)
        """Device and inode of what `_file` writes to."""
        self._store = ""
        self._commit = 0
        self._committed = 0
        self._pending: list[Frame] = []
        self._waiting: list[Flushed] = []
        self._writing = False
        self._unread: deque[tuple[int, int]] = deque()

    # at start -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the folder, which is made if need be, and read what is in it; a torn tail is cut off. Blocks. Raises
        StoreError: damage, files of something else, another process that has it, a failing disk."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take()
            self._load()
        except (OSError, StoreError) as error:
            self.close()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error

    def _take(self) -> None:
        self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise
            raise StoreError(f"{self.folder} is in use by another process") from None

    def _load(self) -> None:
        for unnamed in self.folder.glob(f"*{SUFFIX}{UNNAMED}"):
            unnamed.unlink()
        names = sorted(os.listdir(self.folder))
        strange = [n for n in names if not n.endswith(SUFFIX) and n not in _IGNORED]
        if strange:
            raise StoreError(
                f"{self.folder} holds files of something else: {', '.join(strange[:3])}"
            )
        paths = [self.folder / name for name in names if name.endswith(SUFFIX)]
        # Only where one of them shows whose they are: what nobody can read may be anybody's.
        salvage = next(filter(None, map(log_of, paths)), "") if self.salvage else ""
        for path in paths:
            segment = read(path, path is paths[-1], self.verify, salvage=salvage)
            before = self.segments[-1] if self.segments else segment
            if salvage and segment.base > before.end:
                before.end = segment.base
            if segment.log != before.log:
                raise StoreError(f"{path} belongs to another log than {before.path.name}")
            if segment is not before and segment.base != before.end:
                raise StoreError(f"{path}: the records {before.end} to {segment.base} are missing")
            self.segments.append(segment)
        if self.segments:
            truncate(self.segments[-1])
            self.id = self.segments[-1].log
            self.next = self.segments[-1].end
        else:
            self.id = os.urandom(16).hex()
        self.flushed = self.readable = self.next

    def recover(self, last: CommitId) -> int:
        """Drop what lies above `last` if that is of the store that this log was last used with, and tell how many records
        that were; with another store everything stays and a new segment begins. Blocks. Raises StoreError."""
        try:
            dropped = self._drop(last) if self.segments else 0
            if not self.segments or self.segments[-1].store != last.store:
                self._begin(last.store)
            else:
                self._open_last()
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error
        self._store, self._commit, self._committed = last.store, last.number, last.number
        return dropped

    def skip(self, number: int) -> None:
        """Give out no number below `number`: of those between, somebody knows more than the disk does any more. After
        `recover`, with `salvage`. Blocks. Raises StoreError."""
        if number <= self.next:
            return
        self.segments[-1].end = number
        self.next = self.flushed = self.readable = number
        try:
            self._begin(self._store)
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error

    def _drop(self, last: CommitId) -> int:
        """A segment goes whole or up to a frame; commits only grow within one store's segments."""
        before = self.next
        while self.segments[-1].store == last.store and self.segments[-1].commit > last.number:
            segment = self.segments[-1]
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
        """A new last segment. An empty last one is replaced: its name is the same."""
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
        """Raise StoreError if the file of that name is not the one that is written to, OSError if there is none."""
        found = path.stat()
        if (found.st_dev, found.st_ino) != self._identity:
            raise StoreError(f"{path.name} was replaced while it was in use")

    # at work --------------------------------------------------------------------------------------------------------

    def append(self, commit: CommitId | None, payload: bytes, count: int = 1) -> int:
        """Buffer `count` records that `payload` holds and give the number of the first. `commit` None: they belong to no
        commit of their own and share the fate of what was appended before them. Raises ValueError for no records."""
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
        """Make safe what was appended, then tell `done`, at once if there is nothing to do."""
        if self.failure is not None:
            done(StoreFailed(self.failure))
        elif not self._pending and not self._writing:
            done(None)
        else:
            self._waiting.append(done)
            if not self._writing:
                self._write()

    def _write(self) -> None:
        frames, self._pending = self._pending, []
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

    def _store_frames(self, frames: list[Frame], synced: int) -> None:
        """In a thread, one call at a time."""
        if not frames:
            return
        segment = self.segments[-1]
        if segment.size >= self.segment_size or (self.roll and segment.end > segment.base):
            self.roll = False
            os.fsync(
                self._file
            )  # with `sync` there is nothing left to do; without, what is closed is safe
            segment = create(self.folder, self.id, self._store, frames[0].offset)
            self.segments.append(segment)
            self._open_last()
        salt = segment.salt
        parts: list[bytes] = []
        places: list[tuple[Frame, int, int]] = []
        at = segment.size
        for frame in frames:
            data = encode(frame._replace(synced=synced if self.sync else 0), salt)
            places.append((frame, at, at + len(data)))
            at += len(data)
            parts.append(data)
        write(self._file, b"".join(parts))
        if self.sync:
            os.fdatasync(self._file)
            self.syncs += 1
        self._still_there(segment.path)
        for place in places:
            segment.grown(*place)

    def committed(self, commit: CommitId) -> None:
        """The broker's store made `commit`: what belongs to it becomes readable."""
        self._committed = max(self._committed, commit.number)
        self._advance()

    def _advance(self) -> None:
        while self._unread and self._unread[0][0] <= self._committed:
            self.readable = self._unread.popleft()[1]

    # readers --------------------------------------------------------------------------------------------------------

    @property
    def earliest(self) -> int:
        """The number of the first record that is left."""
        return self.segments[0].base if self.segments else 0

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def buffered(self) -> int:
        """Bytes appended and not yet being written."""
        return sum(len(frame.payload) for frame in self._pending)

    def read(self, offset: int, size: int) -> list[Frame]:
        """Readable frames from the one that holds record `offset` on, up to what is damaged, of about `size` bytes of
        payload, at least one if there is any. Blocks; may be called in any thread. Raises Trimmed; StoreError where that
        one itself is damaged."""
        return read_frames(list(self.segments), offset, self.readable, size)

    def next_good(self, offset: int) -> int:
        """Where to go on after `read` of `offset` raised StoreError: the number of the next record that can be read, at
        most `readable`. Blocks; may be called in any thread. Raises OSError."""
        for segment in list(self.segments):
            if segment.base <= offset < segment.end:
                return min(next_good(segment, offset), self.readable)
        return min((one.base for one in self.segments if one.base > offset), default=self.readable)

    def trim(self, offset: int) -> int:
        """Delete the segments all of whose records are below `offset`, but the last; how many that were. Blocks; may be
        called in any thread, one at a time. Raises StoreError."""
        count = 0
        while len(self.segments) > 1 and self.segments[1].base <= offset:
            try:
                self.segments[0].path.unlink(missing_ok=True)
                sync_folder(
                    self.folder
                )  # one after another: a later one gone and this one not would be a gap
            except OSError as error:
                raise StoreError(f"{self.segments[0].path}: {error.strerror}") from error
            del self.segments[0]
            count += 1
        return count

    def replace(self, base: int, path: Path) -> bool:
        """Put the file `path`, in the log's folder and with a name that ends in ``.segment.new``, in the place of the
        segment that begins with `base`: the same records, framed otherwise, all of them committed for good. Whoever
        reads the old file goes on with it. False, and the file is deleted, if no such segment is left, or it is the last.
        Blocks; may be called in any thread, but not beside `trim`. Raises StoreError if it is not that segment."""
        try:
            old = next((one for one in self.segments[:-1] if one.base == base), None)
            if old is None:
                path.unlink()
                return False
            new = read(path, False, name=old.path.name)
            if (new.log, new.store, new.base, new.end) != (old.log, old.store, old.base, old.end):
                raise StoreError(f"{path} does not hold what {old.path.name} does")
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(file)
            finally:
                os.close(file)
            path.replace(old.path)
            sync_folder(self.folder)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        new.path = old.path
        self.segments[self.segments.index(old)] = new
        return True

    def free(self) -> int:
        """Bytes that the disk has left."""
        return shutil.disk_usage(self.folder).free

    def close(self) -> None:
        """Let go of the folder. What was not flushed is lost."""
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._file = self._lock = -1


def read_frames(segments: list[Segment], offset: int, end: int, size: int) -> list[Frame]:
    """As `SegmentLog.read`, frames that end at `end` or before."""
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
