"""A commit that is being appended to the log."""

from hookmq.storage_api import CommitId, Committed

from hookmq_cluster.engine import Entry, Stored
from hookmq_cluster.frames import FrameError, Frames, Origin, OwnerFrame
from hookmq_cluster.lane_log import LaneFrame


class PendingCommit:
    """The commit that is being appended.

    `frames` are the frames of this node's lanes, `sessions` the entries about sessions with the lane they belong to, and
    `others` all other entries. If there are too many entries for one commit of the log, `others` are appended before.
    """

    __slots__ = ("attempt", "done", "frames", "id", "others", "sessions")

    def __init__(self, id: CommitId, done: Committed) -> None:
        self.id = id
        self.done = done
        self.attempt = 0
        self.frames: dict[str, LaneFrame] = {}
        self.sessions: list[tuple[str, Entry]] = []
        self.others: list[Entry] = []

    def last_part(self) -> list[Entry]:
        """Return the entries that must be appended together."""
        entries = [entry for made in self.frames.values() for entry in made.entries]
        entries += [entry for _, entry in self.sessions]
        return entries


def origin_of(frames: Frames, stored: Stored) -> Origin | None:
    """Return the origin of an owner's frame that `stored` completes, or None."""
    try:
        frame = frames.read(stored.data)
    except FrameError:
        return None
    return frame.origin if isinstance(frame, OwnerFrame) else None
