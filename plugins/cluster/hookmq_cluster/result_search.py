"""Finds out what became of a commit that the log refused, or whose result is unknown."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from hookmq.plugin import Runtime

from hookmq_cluster.engine import Engine, Refused, Stored, Unavailable
from hookmq_cluster.frames import Frames, Origin
from hookmq_cluster.lane_log import ATTEMPTS, RETRY, LaneLog
from hookmq_cluster.names import Names
from hookmq_cluster.pending_commit import PendingCommit, origin_of

Renew = Callable[[str, Callable[[int | Refused | Unavailable], None]], None]
"""Gives an own lane a new fence, and passes it on."""


class ResultSearch:
    """Asks the log about commits of one process.

    `lanes` are the lanes that it has open. `set_fence` is called with each lane that has a new fence, and the fence.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        lanes: Mapping[str, LaneLog],
        set_fence: Callable[[str, int], None],
    ) -> None:
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._lanes = lanes
        self._set_fence = set_fence

    def lost_lanes(
        self, lanes: Collection[str], reason: str, done: Callable[[dict[str, str]], None]
    ) -> None:
        """Find out which of `lanes` this process does not own any more, whatever `reason` the engine gave: it may be more
        than one. Call `done` once, with the reason for each of them.
        """
        waiting = set(lanes)
        found: dict[str, str] = {}
        if not waiting:
            done(found)

        def ask(lane: str, attempts: int) -> None:
            self._engine.last(self._names.own(lane), partial(seen, lane, attempts), exact=True)

        def seen(lane: str, attempts: int, stored: Stored | None | Unavailable) -> None:
            if isinstance(stored, Unavailable) and attempts < ATTEMPTS:
                self._runtime.call_later(RETRY, partial(ask, lane, attempts + 1))
                return
            waiting.discard(lane)
            log = self._lanes.get(lane)
            if isinstance(stored, Unavailable):
                found[lane] = f"the owner of lane {lane!r} cannot be read: {stored.reason}"
            elif log is not None and stored is None:
                text = "the log was deleted, and another one was made"
                found[lane] = f"nobody owns lane {lane!r}: {text}"
            elif log is not None and stored is not None and stored.sequence != log.fence:
                found[lane] = f"another process owns lane {lane!r}: {reason}"
            if not waiting:
                done(found)

        for lane in list(waiting):
            ask(lane, 1)

    def renew_fences(
        self, lanes: Collection[str], renew: Renew, done: Callable[[Refused | None], None]
    ) -> None:
        """Give `lanes`, at least one, new fences. After that, the log refuses a commit that is still on its way. Call
        `done` once, with the log's answer if it refused.
        """
        waiting = set(lanes)

        def ask(lane: str) -> None:
            renew(lane, partial(renewed, lane))

        def renewed(lane: str, result: int | Refused | Unavailable) -> None:
            if isinstance(result, Unavailable):
                self._runtime.call_later(RETRY, partial(ask, lane))
            elif lane not in waiting:
                return
            elif isinstance(result, Refused):
                waiting.clear()
                done(result)
            else:
                self._set_fence(lane, result)
                waiting.discard(lane)
                if not waiting:
                    done(None)

        for lane in list(waiting):
            ask(lane)

    def find(self, commit: PendingCommit, origin: Origin, done: Callable[[int], None]) -> None:
        """Look for the first frame of `commit`, which `origin` has made, behind the newest known frame of its lane. Call
        `done` once, with the sequence of the frame or, if the log does not have it, 0. A commit without frames cannot be
        found.
        """
        lane = next(iter(commit.frames), None)
        log = self._lanes.get(lane) if lane is not None else None
        if lane is None or log is None:
            done(0)
            return
        parts = len(commit.frames[lane].entries)
        frames = Frames()
        subject = self._names.lane(lane)

        def read(after: int) -> None:
            self._engine.read([subject], after, partial(found, after))

        def found(after: int, page: list[Stored] | Unavailable) -> None:
            if isinstance(page, Unavailable):
                self._runtime.call_later(RETRY, partial(read, after))
                return
            for stored in page:
                if origin_of(frames, stored) == origin:
                    done(stored.sequence - parts + 1)
                    return
            if page:
                read(page[-1].sequence)
            else:
                done(0)

        read(log.state.newest)
