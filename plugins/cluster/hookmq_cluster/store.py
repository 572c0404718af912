"""The store of a node in a cluster: sessions and queues of its lanes, in the log that all nodes share.

Each batch of the broker is one commit of the log: a frame for each lane that has changed, the entries of retained
messages and of sessions that have ended, and the messages for the lanes of other nodes. The log appends it only if this
process still owns the lanes.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from hookmq.plugin import Runtime
from hookmq.storage_api import (
    CommitId,
    Committed,
    ExpiredEntries,
    Loaded,
    Paged,
    Record,
    StoreFailed,
)

from hookmq_cluster.away_state import AwayState
from hookmq_cluster.commit_hold import CommitHold
from hookmq_cluster.engine import Appended, Engine, Entry, Refused, Unavailable
from hookmq_cluster.expired_search import ExpiredSearch
from hookmq_cluster.frames import Origin
from hookmq_cluster.lane_log import RETRY, LaneLog, Opened
from hookmq_cluster.lane_state import ID_BITS, LaneState
from hookmq_cluster.names import Names
from hookmq_cluster.pending_commit import (
    CommitCounters,
    PendingCommit,
    split_entries,
    split_off,
)
from hookmq_cluster.placement import Placement, Retained
from hookmq_cluster.result_search import Renew, ResultSearch


class ClusterStore:
    """A `Store` and `ExpiringStore` on an `Engine`.

    - `home`: the lane of new sessions. It must be opened before the first commit.
    - `retained` returns the entries for a record about retained messages.
    - `outgoing` returns the entries with messages for other lanes, and whether some of these have QoS 2.
    - `committed` is called with the id of each commit and the sequence of its last entry, or 0 if nothing was appended.
    - `lost` is called with a lane that another process owns, and the reason. The store has failed then: the parts of a
      commit depend on each other, so nothing can be committed without a lane.
    - `renew` gives an own lane a new fence. Without it, the store fails if the result of a commit is unknown.

    The largest commit has ``engine.max_batch`` frames of ``engine.max_entry`` bytes in this node's lanes. A larger one
    fails.
    """

    durable = True

    def __init__(
        self,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        node: str,
        boot: str,
        home: str,
        retained: Callable[[Retained], list[Entry]],
        outgoing: Callable[[], tuple[list[Entry], bool]],
        committed: Callable[[CommitId, int], None],
        lost: Callable[[str, str], None],
        renew: Renew | None = None,
    ) -> None:
        self.identity = f"{names.cluster}/{node}/{boot}"
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._node = node
        self._boot = boot
        self._home = home
        self._retained = retained
        self._outgoing = outgoing
        self._notify = committed
        self._lost = lost
        self._renew = renew
        self._number = 0
        self._first_id = (int(runtime.token(4), 16) >> 1 << ID_BITS) + 1
        self._opening: dict[str, LaneLog] = {}
        self._closed = False
        """Whether this process has ever closed a lane. Any lane may contain its message ids then."""
        self._lanes: dict[str, LaneLog] = {}
        self._search = ResultSearch(engine, names, runtime, self._lanes, self.set_fence)
        self.placement = Placement(home, self._lanes)
        self._failure = ""
        self.hold = CommitHold()
        """Holds the end of a commit."""
        self.counters = CommitCounters()
        self.homeless = False
        """Whether this node has given its home lane away. Commits with sessions or messages of that lane wait for it."""
        self.away = AwayState(engine, names, node)
        self._parked: Callable[[], None] | None = None

    # lanes -----------------------------------------------------------------------------------------------------------

    def open_lane(self, lane: str, fence: int, done: Opened) -> None:
        """Read the log of a lane that this process owns since the sequence `fence`. Call `done` once with its state, or
        with the reason why it cannot be read. The inbox must follow the lane from ``LaneState.inbox``.
        """
        self.close_lane(lane)
        log = LaneLog(self._engine, self._names, self._runtime, lane, fence)
        self._opening[lane] = log

        def opened(state: LaneState | StoreFailed) -> None:
            if self._opening.get(lane) is log:
                del self._opening[lane]
                if isinstance(state, LaneState) and not self._mixes_ids(state):
                    self._lanes[lane] = log
                    self.placement.add_lane(log)
                elif isinstance(state, LaneState):
                    log.close()
                    state = StoreFailed(
                        f"lane {lane!r} has message ids of this process: restart it"
                    )
            done(state)

        log.open(opened)

    def _mixes_ids(self, state: LaneState) -> bool:
        """Return whether another process has drawn the same range of message ids as this one. This is not known once this
        process has closed a lane, because the next owner moves messages of shared subscriptions to other lanes.
        """
        return not self._closed and self._first_id >> ID_BITS in state.id_ranges()

    def close_lane(self, lane: str) -> None:
        """Forget a lane. Its records are no longer committed."""
        self._closed = self._closed or lane in self._lanes
        for logs in (self._opening, self._lanes):
            log = logs.pop(lane, None)
            if log is not None:
                log.close()
        self.placement.remove_lane(lane)

    def set_fence(self, lane: str, fence: int) -> None:
        """The entry about the owner of an own lane was written again, at the sequence `fence`."""
        log = self._lanes.get(lane) or self._opening.get(lane)
        if log is not None:
            log.fence = fence

    def lanes(self) -> dict[str, LaneState]:
        """Return the states of all open lanes."""
        return {lane: log.state for lane, log in self._lanes.items()}

    def lane_of(self, client_id: str) -> str | None:
        """Return the lane of a session that is stored here or was placed, or None."""
        return self.placement.of_client(client_id)

    def has_durable(self, client_id: str) -> bool:
        """Return whether a session is stored here or was placed, and does not end with its connection."""
        lane = self.lane_of(client_id)
        log = self._lanes.get(lane) if lane is not None else None
        return lane is not None and not (log is not None and log.state.is_volatile(client_id))

    def place(self, client_id: str, lane: str, claimed: bool = False) -> None:
        """Note the lane of a session; see `Placement.place`."""
        self.placement.place(client_id, lane, claimed)

    def received(self, lane: str, sequence: int, size: int = 0) -> None:
        """Frames of other nodes in `lane` up to `sequence` are delivered. They have `size` bytes since the last call. The
        next commit of the lane contains this, together with the records of these messages.
        """
        log = self._lanes.get(lane)
        if log is not None:
            log.received(sequence, size)

    def append(self, lane: str, records: Sequence[Record]) -> None:
        """Add `records` to the next commit, in `lane` wherever they belong otherwise."""
        log = self._lanes.get(lane)
        if log is not None:
            log.append(records)

    def passed(self, lane: str, sequence: int) -> None:
        """The inbox has read an own frame of `lane` at `sequence`, and all frames of other nodes before it are delivered.
        Without these calls, the log of a lane that receives nothing from other nodes is not trimmed.
        """
        log = self._lanes.get(lane)
        if log is not None:
            log.passed(sequence)

    # commits ---------------------------------------------------------------------------------------------------------

    def load(self) -> Iterable[Loaded]:
        """Return nothing: lanes are opened later; see `open_lane` and `LaneState.loaded`."""
        return ()

    def last_commit(self) -> CommitId:
        """Return the id of the newest commit of this process."""
        return CommitId(self.identity, self._number)

    def next_message_id(self) -> int:
        """Return an id that no stored message has: each process has a range of its own."""
        return self._first_id

    def seal(self) -> None:
        """The records of the next commit are complete. Messages received from now on belong to the commit after it.
        Without this call, `commit` includes everything received before it."""
        for log in self._lanes.values():
            log.seal()

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """Append the records, and everything else of the same turn; see `hookmq.storage_api.Store.commit`."""
        if self._failure:
            done(StoreFailed(self._failure))
            return
        if self.homeless and self.placement.needs_home(records):
            self._runtime.log("warning", "cluster.commit_waits", lane=self._home)
            self._parked = partial(self.commit, records, done)
            return
        id = CommitId(self.identity, self._number + 1)
        commit = PendingCommit(id, done, self._runtime.now())
        try:
            self._collect(commit, records)
        except (KeyError, ValueError) as error:
            self._fail(commit, f"the batch cannot be stored: {error}")
            return
        if not commit.frames and not commit.sessions and not commit.others:
            self._finish(commit, 0)
        elif self._home not in self._lanes and not self.homeless:
            self._fail(commit, f"the home lane {self._home!r} is not open")
        else:
            self._append(commit)

    def come_home(self) -> None:
        """The home lane is open. Store the changes that were made without it, and make the commit that waited for it."""
        self.homeless = False
        if self._home in self._lanes and (changes := self.away.take_back()):
            self.append(self._home, changes)
        parked, self._parked = self._parked, None
        if parked is not None:
            parked()

    def _collect(self, commit: PendingCommit, records: Sequence[Record]) -> None:
        split = self.placement.split(records)
        self.placement.settle(split)
        commit.add_sessions(self._names, split)
        newest: dict[str, Entry] = {}
        for record in split.retained:
            for entry in self._retained(record):
                newest.pop(entry.subject, None)
                newest[entry.subject] = entry
        outgoing, exactly_once = self._outgoing()
        commit.others = [*newest.values(), *outgoing]
        origin = Origin(self._node, self._boot, commit.id.number)
        if self.homeless:
            commit.others += self.away.entries(origin, split.lanes.pop(self._home, ()))
        for lane, log in self._lanes.items():
            # A commit with an unknown result is found by its frame. Without one, it is made again.
            needed = exactly_once and lane == self._home
            made = log.frame(origin, split.lanes.pop(lane, ()), needed)
            if made is not None:
                commit.frames[lane] = made
        if self._home in commit.frames:
            commit.sessions += [(self._home, entry) for entry in self.away.end()]
        if split.lanes:
            self._runtime.log("warning", "cluster.lane_closed", lanes=sorted(split.lanes))

    def _append(self, commit: PendingCommit) -> None:
        """Append the commit, in several parts if it has too many entries."""
        self._fence(commit)
        limit = self._engine.max_batch
        commit.trim(limit)
        last = commit.last_part()
        if len(last) > limit:
            reason = f"a commit has {len(last)} entries in this node's lanes"
            self._fail(commit, f"{reason}, at most {limit} are possible")
            return
        # Without an answer, publishers send the messages in `first` again. Those with QoS 2 may then arrive twice.
        first, others = split_off(commit.others, limit - len(last))
        parts = [self._fenced(part) for part in split_entries(first, limit)]
        parts += [[*last, *others]] if last or others else []
        self._append_part(commit, parts, 0)

    def _append_part(self, commit: PendingCommit, parts: list[list[Entry]], index: int) -> None:
        key = f"{self._boot}/{commit.id.number}"
        if commit.attempt or index < len(parts) - 1:
            key += f"/{commit.attempt}.{index}"

        def answered(result: Appended | Refused | Unavailable) -> None:
            if isinstance(result, Unavailable):
                self._unknown(commit, result.reason)
            elif isinstance(result, Refused):
                self._refused(commit, result)
            elif index < len(parts) - 1:
                commit.others = commit.others[len(parts[index]) :]
                self._append_part(commit, parts, index + 1)
            else:
                self._appended(commit, result.last - len(parts[index]) + 1, result.last)

        self._engine.commit(parts[index], answered, key)

    def _fence(self, commit: PendingCommit) -> None:
        """Make sure that the part with the frames is fenced."""
        if commit.frames:
            return
        if commit.sessions:
            lane, entry = commit.sessions[0]
            commit.sessions[0] = (lane, self._fenced([entry])[0])
        else:
            commit.others = self._fenced(commit.others)

    def _fenced(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries, on condition that this process owns the home lane, unless it has given that lane away."""
        if self.homeless:
            return entries
        home = self._lanes[self._home]
        expect = (self._names.own(self._home), home.fence)
        return [entries[0]._replace(expect=expect), *entries[1:]]

    def _appended(self, commit: PendingCommit, sequence: int, last: int) -> None:
        for lane, made in commit.frames.items():
            log = self._lanes.get(lane)
            if log is not None:
                log.applied(made, sequence)
            sequence += len(made.entries)
        self._append_late(commit)
        self.placement.release_groups()
        self._finish(commit, last)

    def _append_late(self, commit: PendingCommit) -> None:
        """Append the entries in `commit.late`. They precede every commit that starts later."""
        late = [entry._replace(expect=None) for lane, entry in commit.late if lane in self._lanes]
        for number, part in enumerate(split_entries(late, self._engine.max_batch)):
            key = f"{self._boot}/{commit.id.number}/late{number}"
            self._engine.commit(self._fenced(part), lambda _: None, key)

    def _finish(self, commit: PendingCommit, last: int) -> None:
        self._number = commit.id.number
        self.counters.durations.add(self._runtime.now() - commit.begun, min(last, 1))
        self._notify(commit.id, last)
        self.hold.finish(partial(commit.done, commit.id))

    def fail(self, reason: str) -> None:
        """Commit nothing more."""
        self._failure = self._failure or reason

    def _fail(self, commit: PendingCommit, reason: str) -> None:
        self.fail(reason)
        commit.done(StoreFailed(self._failure))

    # lost lanes ------------------------------------------------------------------------------------------------------

    def _refused(self, commit: PendingCommit, refused: Refused) -> None:
        self.counters.refused += 1
        lanes = self._fences_of(commit)
        self._search.lost_lanes(lanes, refused.reason, partial(self._lose, commit, refused))

    def _fences_of(self, commit: PendingCommit) -> set[str]:
        return set(commit.frames) | (set() if self.homeless else {self._home})

    def _lose(self, commit: PendingCommit, refused: Refused, found: dict[str, str]) -> None:
        """Fail if another process owns one of the lanes in `found`. Otherwise make the commit with the present fences."""
        if found:
            lane = self._home if self._home in found else next(iter(found))
            self._fail(commit, found[lane])
            self._lost(lane, found[lane])
            return
        before = {lane: made.fence for lane, made in commit.frames.items()}
        self._fence_again(commit)
        if before == {lane: made.fence for lane, made in commit.frames.items()}:
            self._fail(commit, f"the cluster's log refused a commit: {refused.reason}")
        else:
            self._again(commit)

    def _fence_again(self, commit: PendingCommit) -> None:
        """Give the frames the present fences. Leave out lanes that were given away: nothing depends on their frames."""
        for lane, made in list(commit.frames.items()):
            log = self._lanes.get(lane)
            if log is None:
                del commit.frames[lane]
            elif made.fence != log.fence:
                commit.frames[lane] = log.with_new_fence(made)
        commit.sessions = [one for one in commit.sessions if one[0] in self._lanes]

    def _again(self, commit: PendingCommit) -> None:
        """Append a commit that was not made, with other fences."""
        if self._home not in self._lanes:
            self.fail(f"the home lane {self._home!r} was given away during a commit")
        if self._failure:
            commit.done(StoreFailed(self._failure))
            return
        own = self._names.own(self._home)
        commit.sessions = [(lane, entry._replace(expect=None)) for lane, entry in commit.sessions]
        commit.others = [
            entry._replace(expect=None) if entry.expect and entry.expect[0] == own else entry
            for entry in commit.others
        ]
        commit.attempt += 1
        if commit.frames or commit.sessions or commit.others:
            self._append(commit)
        else:
            self._finish(commit, 0)

    # unknown results -------------------------------------------------------------------------------------------------

    def _unknown(self, commit: PendingCommit, reason: str) -> None:
        """Find out whether a commit was made, once the log answers again. Nothing is acknowledged until then.

        New fences come first: after them, the log refuses the commit if it is still on its way. A commit without frames
        cannot be found, so it is made again, and its messages with QoS 1 may arrive twice.
        """
        if (renew := self._renew) is None:
            self._fail(commit, f"the cluster's log cannot be written: {reason}")
            return
        self.counters.unknown += 1
        self._runtime.log("warning", "cluster.commit_unknown", reason=reason)
        lanes = self._fences_of(commit)
        if lanes:
            self._search.renew_fences(lanes, renew, partial(self._renewed, commit))
        else:
            self._runtime.call_later(RETRY, partial(self._again, commit))

    def _renewed(self, commit: PendingCommit, refused: Refused | None) -> None:
        if refused is not None:
            self._refused(commit, refused)
        else:
            origin = Origin(self._node, self._boot, commit.id.number)
            self._search.find(commit, origin, partial(self._found, commit))

    def _found(self, commit: PendingCommit, first: int) -> None:
        if first:
            size = len(commit.last_part()) + len(commit.others)
            self._appended(commit, first, first + size - 1)
        else:
            self._fence_again(commit)
            self._again(commit)

    # queues ----------------------------------------------------------------------------------------------------------

    def read(self, owner: str, after: int, max_count: int, max_size: int, done: Paged) -> None:
        """Read a page of a queue; see `hookmq.storage_api.Store.read`."""
        log = self._lanes.get(self.placement.of_owner(owner))
        if self._failure:
            done(StoreFailed(self._failure))
        elif log is None:
            done([])  # the lane was lost, and its sessions are being released
        else:
            done(log.state.read(owner, after, max_count, max_size))

    def expired(
        self,
        now: float,
        place: object,
        max_count: int,
        done: Callable[[ExpiredEntries | StoreFailed], None],
    ) -> None:
        """Find expired entries; see `hookmq.storage_api.ExpiringStore.expired`."""
        search = place if isinstance(place, ExpiredSearch) else ExpiredSearch(self._lanes, now)
        done(search.step(max_count))

    # end -------------------------------------------------------------------------------------------------------------

    def close(self, done: Callable[[], None]) -> None:
        """Forget all lanes. The engine stays open."""
        for lane in [*self._lanes, *self._opening]:
            self.close_lane(lane)
        done()
