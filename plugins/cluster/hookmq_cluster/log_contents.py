"""The contents of a cluster's log as items, for export to another store, and to find out whether a cluster is empty."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from hookmq.plugin import Runtime, StoreError
from hookmq.storage_api import Paged, PutState, Queued

from hookmq_cluster.away_state import AwayState
from hookmq_cluster.engine import Engine, Stored
from hookmq_cluster.frames import FrameError, Frames, OwnerFrame, is_owner_frame
from hookmq_cluster.lane_state import LaneState
from hookmq_cluster.log_reader import copy_log
from hookmq_cluster.names import Names
from hookmq_cluster.retained import decode_retained
from hookmq_cluster.store_items import Item, QueueItem, RetainedItem, items_of


@dataclass
class LaneContents:
    """A lane: its state, what its node has stored without it, and the number of frames of other nodes that its owner
    has not delivered yet.
    """

    state: LaneState
    away: AwayState
    undelivered: int = 0


@dataclass
class LogContents:
    """Everything in a cluster's log, at one position. It is in memory."""

    lanes: dict[str, LaneContents] = field(default_factory=dict)
    retained: list[RetainedItem] = field(default_factory=list)
    position: int = 0

    @property
    def undelivered(self) -> dict[str, int]:
        """The lanes with frames that are not delivered yet, and the number of these frames."""
        return {name: lane.undelivered for name, lane in self.lanes.items() if lane.undelivered}

    async def items(self, runtime: Runtime, state_lane: str = "") -> AsyncIterator[Item]:
        """Yield everything that is stored, as one store has it. Take the state of plugins from `state_lane` if given.

        Raises StoreError if two lanes have the same session or the same key of a plugin's state, or if `state_lane` does
        not exist.
        """
        if state_lane and state_lane not in self.lanes:
            found = ", ".join(sorted(self.lanes)) or "none"
            raise StoreError(f"no lane {state_lane!r}; found: {found}")
        shared = self._shared()
        clients: dict[str, str] = {}
        keys: dict[tuple[str, str], str] = {}
        for name, lane in self.lanes.items():
            for client_id in lane.state.clients:
                if clients.setdefault(client_id, name) != name:
                    raise StoreError(
                        f"session {client_id!r} is in the lanes {clients[client_id]!r} and {name!r}"
                    )
            async for item in self.lane_items(runtime, name):
                if isinstance(item, PutState):
                    if state_lane and name != state_lane:
                        continue
                    if keys.setdefault((item.space, item.key), name) != name:
                        raise StoreError(
                            f"{item.space!r} has the key {item.key!r} in the lanes "
                            f"{keys[item.space, item.key]!r} and {name!r}; choose one of them with --state-lane"
                        )
                elif isinstance(item, QueueItem) and item.entry.owner in shared:
                    continue
                yield item
        for entries in shared.values():
            for seq, (entry, message) in enumerate(entries, 1):
                yield QueueItem(entry._replace(seq=seq), message)
        for retained in self.retained:
            yield retained

    def lane_items(self, runtime: Runtime, lane: str) -> AsyncIterator[Item]:
        """Yield the contents of one lane."""
        state, away = self.lanes[lane].state, self.lanes[lane].away

        def read(owner: str, after: int, max_count: int, max_size: int, done: Paged) -> None:
            done(state.read(owner, after, max_count, max_size))

        return items_of(runtime, away.merged(state.loaded()), read)

    def _shared(self) -> dict[str, list[Queued]]:
        """Return the queues of shared subscriptions that are in several lanes, in the order of their messages."""
        lanes: dict[str, list[LaneState]] = {}
        for lane in self.lanes.values():
            for owner in lane.state.groups:
                lanes.setdefault(owner, []).append(lane.state)
        return {
            owner: sorted(
                (one for state in states for one in state.queue(owner)),
                key=lambda one: one[1].received_at,
            )
            for owner, states in lanes.items()
            if len(states) > 1
        }


async def read_contents(engine: Engine, names: Names, runtime: Runtime) -> LogContents:
    """Read everything in a cluster's log. Raises StoreError if it is damaged, or if the log does not answer."""
    frames: dict[str, list[Stored]] = {}
    retained: dict[str, Stored] = {}
    away: dict[str, list[Stored]] = {}
    lane_prefix, retained_prefix = names.lane(""), names.retained_messages[:-1]
    away_prefix = names.away("")

    def put(stored: Stored) -> None:
        if stored.subject.startswith(lane_prefix):
            frames.setdefault(stored.subject.removeprefix(lane_prefix), []).append(stored)
        elif stored.subject.startswith(away_prefix):
            away.setdefault(stored.subject.removeprefix(away_prefix), []).append(stored)
        elif stored.subject.startswith(retained_prefix):
            retained.pop(stored.subject, None)
            retained[stored.subject] = stored

    position = await copy_log(engine, names, runtime, put)
    found = LogContents(position=position.last)
    for name in sorted({*frames, *away}):
        changes = AwayState(engine, names, name)
        for stored in position.valid(away.pop(name, [])):
            changes.add(stored)
        found.lanes[name] = _lane(name, position.valid(frames.pop(name, [])), changes)
    now = runtime.time()
    for stored in retained.values():
        try:
            entry = decode_retained(stored.data)
        except FrameError as error:
            raise StoreError(f"retained message at sequence {stored.sequence}: {error}") from None
        message = entry.message
        if message is not None and (message.expires_at is None or message.expires_at > now):
            found.retained.append(RetainedItem(message, entry.publisher))
    return found


def _lane(name: str, frames: Iterable[Stored], away: AwayState) -> LaneContents:
    """Build the state of a lane from its frames."""
    state = LaneState(name)
    reader = Frames()
    others: list[int] = []
    first = size = 0
    for stored in frames:
        if not is_owner_frame(stored.data):
            others.append(stored.sequence)
            continue
        if not reader.incomplete:
            first, size = stored.sequence, 0
        size += len(stored.data)
        try:
            frame = reader.read(stored.data)
        except FrameError as error:
            raise StoreError(
                f"lane {name!r} is damaged: sequence {stored.sequence}: {error}"
            ) from None
        if isinstance(frame, OwnerFrame):
            state.apply(first, frame, size)
    problem = state.complete()
    if problem:
        raise StoreError(f"lane {name!r} is damaged: {problem}")
    return LaneContents(state, away, sum(sequence > state.inbox for sequence in others))
