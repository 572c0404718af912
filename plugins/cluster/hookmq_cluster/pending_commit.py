"""A commit that is being appended to the log."""

from hookmq.plugin import Histogram
from hookmq.storage_api import CommitId, Committed

from hookmq_cluster.claims import encode_session
from hookmq_cluster.engine import TOMBSTONE, Entry, Stored
from hookmq_cluster.frames import FrameError, Frames, Origin, OwnerFrame
from hookmq_cluster.lane_log import LaneFrame
from hookmq_cluster.names import Names
from hookmq_cluster.placement import Split


class CommitCounters:
    """The outcomes of commits: how long they took in seconds, how many the log refused because of a fence, and how many
    had an unknown result."""

    def __init__(self) -> None:
        self.durations = Histogram()
        self.refused = 0
        self.unknown = 0


class PendingCommit:
    """The commit that is being appended.

    `frames` are the frames of this node's lanes, `sessions` the entries about sessions with the lane they belong to, and
    `others` all other entries. If there are too many entries for one commit of the log, the first ones of `others` are
    appended before. Entries about new sessions may be among them, and those about ended sessions may follow, as `late`.
    In between, or after a crash, clients are sent to a lane without their session, where they get a new one.
    """

    __slots__ = ("attempt", "begun", "done", "frames", "id", "late", "others", "sessions")

    def __init__(self, id: CommitId, done: Committed, begun: float = 0.0) -> None:
        self.id = id
        self.begun = begun
        self.done = done
        self.attempt = 0
        self.frames: dict[str, LaneFrame] = {}
        self.sessions: list[tuple[str, Entry]] = []
        self.others: list[Entry] = []
        self.late: list[tuple[str, Entry]] = []

    def add_sessions(self, names: Names, split: Split) -> None:
        """Add the entries of sessions that begin or end."""
        for client_id, lane in split.begun.items():
            entry = Entry(names.session(client_id), encode_session(client_id, lane), replace=True)
            self.sessions.append((lane, entry))
        for client_id, lane in split.ended.items():
            entry = Entry(names.session(client_id), b"", replace=True, ttl=TOMBSTONE)
            self.sessions.append((lane, entry))

    def trim(self, limit: int) -> None:
        """Move entries about sessions to `late`, and to the beginning of `others`, until the others and all that must be
        appended together have at most `limit` entries."""
        excess = len(self.last_part()) + len(self.others) - limit
        early: list[Entry] = []
        for _ in range(min(excess, len(self.sessions))):
            lane, entry = self.sessions.pop()
            if entry.data:
                early.append(entry)
            else:
                self.late.append((lane, entry))
        self.others[:0] = early

    def last_part(self) -> list[Entry]:
        """Return the entries that must be appended together."""
        entries = [entry for made in self.frames.values() for entry in made.entries]
        entries += [entry for _, entry in self.sessions]
        return entries


def split_off(entries: list[Entry], room: int) -> tuple[list[Entry], list[Entry]]:
    """Return the first entries, and up to `room` last ones. The parts of one frame stay together; see `split_entries`."""
    cut = max(0, len(entries) - room)
    while 0 < cut < len(entries) and entries[cut].subject == entries[cut - 1].subject:
        cut += 1
    return entries[:cut], entries[cut:]


def split_entries(entries: list[Entry], limit: int) -> list[list[Entry]]:
    """Return the entries in several parts, of at most `limit` entries. The parts of one frame stay together, as long as
    the frame has no more entries than that: its reader must not note a position between them."""
    found: list[list[Entry]] = []
    start = 0
    while start < len(entries):
        end = min(start + limit, len(entries))
        cut = end
        while start < cut < len(entries) and entries[cut].subject == entries[cut - 1].subject:
            cut -= 1
        end = cut if cut > start else end
        found.append(entries[start:end])
        start = end
    return found


def origin_of(frames: Frames, stored: Stored) -> Origin | None:
    """Return the origin of an owner's frame that `stored` completes, or None."""
    try:
        frame = frames.read(stored.data)
    except FrameError:
        return None
    return frame.origin if isinstance(frame, OwnerFrame) else None
