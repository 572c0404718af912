"""End each turn of the event loop: commit its changes as one batch, then write once to each connection.

Bytes for a client are appended to `Session.out`, and `mark` schedules them to be written at the end of the turn. If
many bytes wait for one client, they are written at once. The transport can then report a slow client in the same turn.
"""

from collections.abc import Callable
from typing import Final

from hookmq.broker.published_events import PublishedEvent
from hookmq.model.metrics import Metrics
from hookmq.model.runtime import Runtime
from hookmq.session.session import IDLE, PENDING, Session
from hookmq.storage.group_commit import GroupCommit

SAMPLED: Final = 16
"""Once `Metrics.delivery_seconds` has been read, one turn in this many is timed."""


class WriteScheduler:
    """Ends turns. `commit` starts committing the changes that `committer` collected; `tell` reports
    the events in `later`.
    """

    __slots__ = (
        "_began", "_delivered", "commit", "committer", "dirty", "later", "metrics", "room", "runtime", "sampling",
        "sampling_asked", "scheduled", "shared", "tell", "turn",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, metrics: Metrics, room: int) -> None:
        self.runtime = runtime
        self.metrics = metrics
        self.room = room
        """Bytes that may wait for one client between two writes."""
        self.committer: GroupCommit
        self.commit: Callable[[], None]
        self.tell: Callable[[], None]
        self.later: list[PublishedEvent] = []
        """`on_published` events that wait until the packets of this turn have been written."""
        self.dirty: list[Session] = []
        """Sessions with bytes to write."""
        self.scheduled = False
        """Whether `end_turn` will run at the end of this turn."""
        self.sampling_asked = False
        """Whether one turn in `SAMPLED` is timed, because something reads `Metrics.delivery_seconds`."""
        self.sampling = False
        """Whether this turn is timed."""
        self._began = -1.0
        self._delivered = 0
        """When the timed turn received its first bytes, and how many messages had been delivered by then."""
        self.turn = 0
        """Turns ended so far."""
        self.shared = 0
        """Bytes received since the last write. Packets are forwarded as received, so no receiver can have more
        shared bytes than this waiting."""

    def schedule(self) -> None:
        """Schedule `end_turn` for the end of this turn."""
        if not self.scheduled:
            self.scheduled = True
            self.runtime.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Commit what this turn changed, then write once per connection."""
        self.scheduled = False
        self.turn += 1
        if self.committer.collecting:
            self.commit()
        self.flush()
        if self.sampling_asked:
            self._end_sample()
        if self.later:
            self.runtime.call_soon(self.tell)

    def begin_sample(self) -> None:
        """Time this turn from now on, if it is not timed already."""
        if self._began < 0.0:
            self._began = self.runtime.now()
            self._delivered = self.metrics.messages_delivered

    def count_queued(self, age: float) -> None:
        """Count a message that is sent in this timed turn, `age` seconds after it was received."""
        if self._began >= 0.0:
            self._delivered += 1
        self.metrics.delivery_seconds.add(max(0.0, age))

    def _end_sample(self) -> None:
        """Count the messages of a timed turn, or decide whether to time the next turn."""
        if not self.sampling:
            self.sampling = self.turn % SAMPLED == 0
        elif self._began >= 0.0:
            count = self.metrics.messages_delivered - self._delivered
            if count > 0:
                self.metrics.delivery_seconds.add(self.runtime.now() - self._began, count)
            self._began = -1.0
            self.sampling = False

    def mark(self, session: Session) -> None:
        """Schedule `session.out` to be written at the end of this turn."""
        if session.state == IDLE:
            session.state = PENDING
        elif session.state == PENDING:
            return
        self.dirty.append(session)
        if not self.scheduled:
            self.scheduled = True
            self.runtime.call_soon(self.end_turn)

    def put(self, session: Session, size: int) -> None:
        """Schedule `session.out` to be written at the end of this turn, or write it now if it is large. `session.out`
        has grown by `size` bytes.
        """
        self.mark(session)
        session.unsent += size
        if session.unsent > self.room:
            self.write(session)

    def share(self, size: int) -> None:
        """Count `size` bytes that were added for every receiver, and write now if too many are waiting. See `put`."""
        self.shared += size
        if self.shared > self.room:
            self.flush()

    def write(self, session: Session) -> None:
        """Write this turn's bytes for `session` now."""
        session.unsent = 0
        out = session.out
        connection = session.connection
        if connection is not None and out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            connection.traffic.bytes_sent += len(data)
            self.metrics.writes += 1
            connection.wire.write(data)

    def flush(self) -> None:
        """Write this turn's bytes for every session now, with one write per session."""
        self.shared = 0
        dirty = self.dirty
        if not dirty:
            return
        self.dirty = []
        for session in dirty:
            if session.state == PENDING:
                session.state = IDLE
            session.unsent = 0
            out = session.out
            connection = session.connection
            if connection is not None and out:
                data = out[0] if len(out) == 1 else b"".join(out)
                out.clear()
                connection.traffic.bytes_sent += len(data)
                connection.wire.write(data)
        self.metrics.writes += len(dirty)
