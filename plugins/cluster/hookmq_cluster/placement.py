"""Which lane each record of a commit belongs to."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from hookmq.storage_api import (
    Dequeue,
    DropPublisher,
    DropReceived,
    DropRetained,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    Record,
    SetPacket,
)

from hookmq_cluster.lane_log import LaneLog
from hookmq_cluster.lane_state import LaneState

Retained: TypeAlias = PutRetained | DropRetained | PutPublisher | DropPublisher


class Split:
    """The records of one commit, by lane.

    - `lanes`: the records of each lane. A message is in each lane that has a queue entry for it.
    - `retained`: records of retained messages and their publishers, in order.
    - `ended`: the clients whose sessions have ended, and their lanes.
    - `begun`: the clients with sessions that are new in the lane and were not claimed, and their lanes.
    - `claimed`: the clients with sessions that are new in the lane and were claimed.
    """

    __slots__ = ("begun", "claimed", "ended", "lanes", "retained")

    def __init__(self) -> None:
        self.lanes: dict[str, list[Record]] = {}
        self.retained: list[Retained] = []
        self.ended: dict[str, str] = {}
        self.begun: dict[str, str] = {}
        self.claimed: list[str] = []


class Placement:
    """The lanes of clients and of shared subscriptions on this node.

    A session stays in its lane for ever. The queue of a shared subscription is in the home lane. Only if an adopted lane
    has such a queue and the home lane does not, it stays in the adopted lane until it is empty.
    """

    def __init__(self, home: str, lanes: Mapping[str, LaneLog]) -> None:
        self.home = home
        self._lanes = lanes
        self._clients: dict[str, str] = {}
        self._claimed: set[str] = set()
        """Clients that were claimed for a session in the home lane that no commit contains yet."""
        self._groups: dict[str, str] = {}
        """The lanes of queues of shared subscriptions that are not in the home lane."""
        self._kept: dict[str, None] = {}
        """Queues of shared subscriptions that move to the home lane with the next commit."""

    def of_client(self, client_id: str) -> str | None:
        """Return the lane of a session, or None if it is not known."""
        return self._clients.get(client_id)

    def place(self, client_id: str, lane: str, claimed: bool = False) -> None:
        """Note the lane of a session. If it was `claimed`, this node has just written its entry. Otherwise, the entry was
        read from the log, and the session may have ended meanwhile."""
        self._clients[client_id] = lane
        if claimed:
            self._claimed.add(client_id)

    def clients(self, lane: str) -> list[str]:
        """Return the clients whose sessions are in `lane`, also if these are not committed yet."""
        return [client_id for client_id, one in self._clients.items() if one == lane]

    def queues(self, lane: str) -> "Queues":
        """Return the queues of shared subscriptions that are served from `lane`."""
        return Queues(self, lane)

    def of_owner(self, owner: str) -> str:
        """Return the lane of a queue."""
        if owner.startswith("c/"):
            return self._clients.get(owner[2:], self.home)
        return self._groups.get(owner, self.home)

    def add_lane(self, log: LaneLog) -> None:
        """A lane was opened. Its sessions that end with their connection follow with `add_volatile`."""
        lane, state = log.lane, log.state
        for client_id in state.clients:
            if not state.is_volatile(client_id):
                self._clients[client_id] = lane
        if lane == self.home:
            for owner in log.state.groups:
                self._groups.pop(owner, None)

    def add_volatile(self, lane: str, state: LaneState) -> list[str]:
        """Add the sessions of `lane` that end with their connection, directly before the core adopts the lane. Return the
        clients that have another session on this node, or had one until the last commit. The core must not add theirs."""
        return [
            client_id
            for client_id in state.clients
            if state.is_volatile(client_id) and self._clients.setdefault(client_id, lane) != lane
        ]

    def add_groups(self, lane: str, members: Container[str]) -> list[str]:
        """Serve the queues of shared subscriptions in an adopted lane from there, when the core adopts its sessions.

        Return the owners of the others, which exist on this node already: in another lane, or as shared subscriptions in
        `members`.
        """
        log, home = self._lanes.get(lane), self._lanes.get(self.home)
        others: list[str] = []
        for owner in () if log is None or lane == self.home else log.state.groups:
            if owner in members or owner in self._groups or (home and home.state.has_queue(owner)):
                others.append(owner)
            else:
                self._groups[owner] = lane
        return others

    def keep_groups(self, owners: Iterable[str]) -> None:
        """Move queues of shared subscriptions to the home lane with the next commit, because another node gets their
        lane, and members are still here."""
        self._kept.update(dict.fromkeys(owners))

    def drop(self, client_id: str, lane: str) -> None:
        """Remove a former session from `lane` with the next commit. The client has another one here."""
        if self._clients.get(client_id) == lane:
            del self._clients[client_id]
        self._lanes[lane].append([DropSession(client_id)])

    def remove_lane(self, lane: str) -> None:
        """A lane was closed."""
        self._clients = {client: one for client, one in self._clients.items() if one != lane}
        if lane == self.home:
            self._claimed.clear()
        self._groups = {owner: one for owner, one in self._groups.items() if one != lane}

    def release_groups(self) -> None:
        """Move empty queues of shared subscriptions to the home lane."""
        for owner, lane in list(self._groups.items()):
            log = self._lanes.get(lane)
            if log is None or not log.state.has_queue(owner):
                del self._groups[owner]

    def split(self, records: Sequence[Record]) -> Split:
        """Return the records by lane. Raises KeyError with its id if a message is missing."""
        splitting = _Splitting(self, self._lanes, self._clients, self._claimed)
        if self._kept and self.home in self._lanes:
            for owner in self._kept:
                lane = self._groups.pop(owner, self.home)
                if lane != self.home and lane in self._lanes:
                    splitting.move(lane, self._lanes[lane].state.entries(owner))
            self._kept.clear()
        return splitting.split(records)

    def needs_home(self, records: Sequence[Record]) -> bool:
        """Return whether a commit has records of the home lane, which is not open, other than the state of plugins."""
        try:
            found = self.split(records).lanes.get(self.home, ())
            return not all(isinstance(record, PutState | DropState) for record in found)
        except KeyError:  # that lane has the message
            return True

    def settle(self, split: Split) -> None:
        """Note which sessions a commit begins and ends, when it starts."""
        for client_id in split.ended:
            self._clients.pop(client_id, None)
        self._clients.update(split.begun)
        self._claimed.difference_update(split.claimed, split.ended)


class Queues:
    """The queues of shared subscriptions in a lane, also if no commit has stored a message of them yet."""

    def __init__(self, placement: Placement, lane: str) -> None:
        self._placement = placement
        self._lane = lane

    def __contains__(self, owner: object) -> bool:
        return isinstance(owner, str) and self._placement.of_owner(owner) == self._lane


class _Splitting:
    """The state of one call of `Placement.split`."""

    def __init__(
        self,
        placement: Placement,
        logs: Mapping[str, LaneLog],
        clients: Mapping[str, str],
        claimed: Container[str],
    ) -> None:
        self._placement = placement
        self._logs = logs
        self._clients = clients
        self._claimed = claimed
        self._split = Split()
        self._messages: dict[int, PutMessage] = {}
        self._present: set[tuple[str, int]] = set()
        """The messages, as (lane, id), that the frames contain already."""

    def move(self, lane: str, entries: Sequence[Enqueue]) -> None:
        """Move queue entries from `lane` to the home lane."""
        home = self._placement.home
        for entry in entries:
            self._need(home, entry.message_ref)
            self._add(home, entry)
            self._add(lane, Dequeue(entry.owner, entry.seq))

    def split(self, records: Sequence[Record]) -> Split:
        split, of_owner, add = self._split, self._placement.of_owner, self._add
        home = self._placement.home
        for record in records:
            # The most frequent records come first.
            if type(record) is PutMessage:
                self._messages[record.id] = record
            elif type(record) is Enqueue:
                lane = of_owner(record.owner)
                self._need(lane, record.message_ref)
                add(lane, record)
            elif type(record) is Dequeue or type(record) is SetPacket:
                add(of_owner(record.owner), record)
            elif isinstance(record, PutSession):
                client_id = record.session.client_id
                lane = self._clients.get(client_id, home)
                split.ended.pop(client_id, None)
                log = self._logs.get(lane)
                if log is not None and client_id not in log.state.clients:
                    if client_id in self._claimed:
                        split.claimed.append(client_id)
                    else:
                        split.begun[client_id] = lane
                add(lane, record)
            elif isinstance(record, DropSession):
                client_id = record.client_id
                lane = self._clients.get(client_id, home)
                if split.begun.pop(client_id, None) is not None or client_id in self._clients:
                    split.ended[client_id] = lane
                add(lane, record)
            elif isinstance(
                record, PutReceived | DropReceived | PutSubscription | DropSubscription
            ):
                add(self._clients.get(record.client_id, home), record)
            elif isinstance(record, PutState | DropState):
                add(home, record)
            elif isinstance(record, Retained):
                split.retained.append(record)
        return split

    def _add(self, lane: str, record: Record) -> None:
        records = self._split.lanes.get(lane)
        if records is None:
            records = self._split.lanes[lane] = []
        records.append(record)

    def _need(self, lane: str, id: int) -> None:
        """Make sure that the lane has the message."""
        if (lane, id) in self._present:
            return
        put = self._messages.get(id)
        if put is None:
            log = self._logs.get(lane)
            if log is not None and log.state.message(id) is not None:
                return
            # It moves here from the queue of another lane.
            put = next(
                (found for log in self._logs.values() if (found := log.state.message(id))), None
            )
            if put is None:
                raise KeyError(id)
        self._present.add((lane, id))
        self._add(lane, put)
