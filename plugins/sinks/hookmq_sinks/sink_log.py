"""The broker's side of a sink: a journal that stores messages until they have been written to the target."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from hookmq.mqtt_api import compile_filter
from hookmq.plugin import Message, Runtime, StoreError
from hookmq.storage_api import CommitId, MessageColumns, Room, StoreFailed
from hookmq_toolkit.message_columns import encode_columns
from hookmq_toolkit.message_record import PER_RECORD
from hookmq_toolkit.segment_log import Fill, SegmentLog
from hookmq_toolkit.state_folder import make_folder

from hookmq_sinks.config import SinkConfig

LOG: Final = "log"
"""The folder of the segments, in a sink's folder."""
_NONE: Final = CommitId("", 0)
"""The commit of messages that need no commit of the store."""
_Done = Callable[[StoreFailed | None], None]
_BLOCK: Final = 1024
"""Maximum number of messages in a block."""


class SinkLog:
    """A sink's messages on disk. Implements `Journal`, `Bounded`, `Readable` and `Sealing` from
    `hookmq.storage_api`.

    `on_committed` is called when messages become readable.
    """

    def __init__(
        self,
        config: SinkConfig,
        path: Path,
        runtime: Runtime,
        *,
        sync: bool = True,
        plugin: str = "sinks",
    ) -> None:
        self.name = f"{plugin}: sink {config.name}"
        self.folder = path / config.name
        self.log = SegmentLog(
            self.folder / LOG,
            runtime.run_blocking,
            sync=sync,
            verify=False,
        )
        self.on_committed: Callable[[], None] = _nothing
        self.done = 0
        """The stored cursor: messages below it may be deleted."""
        self.dropped = 0
        """The number of messages that `drop_new` has dropped since the start. The sink's process counts those of
        `drop_oldest`."""
        self._runtime = runtime
        self._plugin = plugin
        self._low_disk = False
        self._stored = 0
        """The size of the segments and of all messages that were passed to the log."""
        self._room = Room(PER_RECORD)
        self._no_limit = self._room.limit
        self._columns = MessageColumns(self._room)
        self._commit: CommitId | None = None
        """The commit of the newest buffered message; None if no message is buffered."""
        self._groups: list[tuple[CommitId, MessageColumns]] = []
        self._fill = Fill(self._say_fill)
        self._trimming = False
        self._closed = False
        self.configure(config)

    def configure(self, config: SinkConfig) -> None:
        """Use other settings for the same sink. The caller has to invalidate the broker's routes."""
        self.config = config
        self._wanted = [compile_filter(one) for one in config.topics]
        self._excluded = [compile_filter(one) for one in config.exclude]
        self._drops_new = config.on_full == "drop_new"
        self._blocks = config.on_full == "block"
        self._max = config.max_bytes
        self.log.segment_size = max(1 << 14, min(64 << 20, config.max_bytes // 8))
        self._settle()

    def retire(self) -> None:
        """Store no more messages. Those that were appended are still written."""
        self._closed = True

    # Journal ---------------------------------------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Return whether the sink stores messages published to `topic`. A sink that is closing stores none."""
        if self._closed or not any(matches(topic) for matches in self._wanted):
            return False
        return not any(matches(topic) for matches in self._excluded)

    @property
    def full(self) -> bool:
        """Whether messages must be refused."""
        if not self._blocks or self._closed or self._room.used < self._room.limit:
            return False
        self._fill.look(1.0)
        return True

    @property
    def bytes(self) -> int:
        """The total size of the segments and of all messages that are not written yet."""
        return self._stored + self._room.used

    @property
    def filled(self) -> bool:
        """Whether the log is full."""
        return self.bytes >= self._max or self._low_disk

    @property
    def low_disk(self) -> bool:
        """Whether the disk has too little free space. If so, the log counts as full."""
        return self._low_disk

    @low_disk.setter
    def low_disk(self, low: bool) -> None:
        self._low_disk = low
        self._settle()

    def _settle(self) -> None:
        """Compute how large the buffered messages may get before the log is full."""
        if self._blocks or self._drops_new:
            self._room.limit = 0 if self._low_disk else self._max - self._stored
        else:
            self._room.limit = self._no_limit

    def columns(self, topic: str) -> MessageColumns:
        """Return the columns that buffer messages. All topics share them."""
        return self._columns

    def append(self, commit: CommitId, message: Message) -> None:
        """Add a message to the batch for `commit`."""
        if self._drops_new and self.filled:
            self.dropped += 1
            self._fill.look(1.0)
            return
        if commit is not self._commit:
            if self._commit is not None and commit != self._commit:
                self._end_commit(self._commit)
            self._commit = commit  # the caller usually passes the same object again
        self._columns.add_message(message)

    def _end_commit(self, commit: CommitId) -> None:
        """Move the buffered messages from the columns to a group for `commit`."""
        if len(self._columns):
            self._groups.append((commit, self._columns.take()))

    def flush(self, commit: CommitId, done: _Done) -> None:
        """Write the buffered messages with a single fsync."""
        self._encode(commit)
        self._store(self.log.flush, done)

    def seal(self, done: _Done) -> bool:
        """Write the buffered messages, and make them readable, without a commit of the broker's store."""
        if not self.log.sealable:
            return False
        self._encode(_NONE)

        def sealed(failed: StoreFailed | None) -> None:
            if failed is None:
                self.on_committed()
            done(failed)

        self._store(self.log.seal, sealed)
        return True

    def _encode(self, commit: CommitId) -> None:
        """Append the buffered messages to the log. `commit` is that of messages that are only in the columns."""
        self._end_commit(commit if self._commit is None else self._commit)
        groups, self._groups, self._commit = self._groups, [], None
        for one, columns in groups:
            count = len(columns)
            for start in range(0, count, _BLOCK):
                run = columns if count <= _BLOCK else columns.part(start, start + _BLOCK)
                self.log.append(one, encode_columns(run), len(run))
        self._stored += self._room.used
        self._room.used = 0
        self._settle()

    def _store(
        self,
        store: Callable[[_Done], None],
        done: _Done,
    ) -> None:
        """Write the log with `store`, and look at its size."""
        added = self.log.buffered > 0

        def written(failed: StoreFailed | None) -> None:
            if failed is None and added:
                self._measure()
            done(failed)

        store(written)

    def _measure(self) -> None:
        """Replace the estimated size with the actual one. Trim the log if it is too large, and report how full it is."""
        self._stored = self.log.size + self.log.buffered
        self._settle()
        if self.bytes >= self._max and self.config.on_full == "drop_oldest":
            self._trim()
        self._fill.look(1.0 if self.low_disk else self.bytes / self._max)

    def committed(self, commit: CommitId) -> None:
        """Make the messages of `commit` readable."""
        before = self.log.readable
        self.log.committed(commit)
        if self.log.readable != before:
            self.on_committed()

    def recover(self, last: CommitId) -> None:
        """Open the folder, creating it if necessary, and drop messages that the store did not commit. This call blocks.

        Raises StoreError if the folder is damaged or in use by another process.
        """
        try:
            make_folder(self.folder)
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror}") from error
        self.log.open()
        try:
            self.log.recover(last)
        except StoreError:
            self.log.close()
            raise
        self._stored = self.log.size
        self._settle()

    # deletion --------------------------------------------------------------------------------------------------------

    def move_done(self, offset: int) -> None:
        """Record that all messages below `offset` are done. Delete the segments that contain only such messages.

        The sender has already stored this cursor.
        """
        self.done = offset
        last = self.log.segments[-1]
        if self.bytes * 2 >= self._max and last.base < last.end <= offset:
            # All messages are done, but the last segment can only be deleted once another one has begun.
            self.log.roll = True
            self.log.flush(lambda failed: self._trim())
        else:
            self._trim()

    def _trim(self) -> None:
        segments = self.log.segments
        if self._trimming or self._closed or len(segments) < 2:
            return
        floor = min(self.done, self.log.readable)
        forced = self.config.on_full == "drop_oldest" and (self.bytes >= self._max or self.low_disk)
        if forced:
            floor = max(floor, min(segments[1].base, self.log.readable))
        if segments[1].base > floor:
            return
        self._trimming = True

        def trimmed(_: object, error: BaseException | None) -> None:
            self._trimming = False
            if self._closed:
                return
            if error is not None:
                self.tell("error", "sinks.trim_failed", reason=str(error))
                return
            self._measure()

        self._runtime.run_blocking(lambda: self.log.trim(floor), trimmed)

    # state -----------------------------------------------------------------------------------------------------------

    def _say_fill(self, word: str, share: float) -> None:
        fields = {
            "share": round(share, 2), "bytes": self.bytes, "max_bytes": self._max, "on_full": self.config.on_full,
        }  # fmt: skip
        if word == "filling":
            self.tell("warning", "sinks.log_filling", **fields)
        elif word == "full":
            self.tell("warning", "sinks.log_full", **fields)
        else:
            self.tell("info", "sinks.log_has_room", **fields)

    def tell(self, level: str, event: str, **fields: object) -> None:
        """Log an event about this sink."""
        self._runtime.log(level, event, plugin=self._plugin, sink=self.config.name, **fields)

    def close(self) -> None:
        """Release the folder."""
        self._closed = True
        self.log.close()


def _nothing() -> None:
    """Do nothing, because no sender is running yet."""
