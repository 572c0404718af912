"""Where a client's session is, and how a node gets the only right to it.

A durable session has an entry in the log that names its lane. A node creates the entry before the session, on condition
that there is none. Sessions that end with their connection have no entry: the node that opens one tells all others to
disconnect the client.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import msgpack  # type: ignore[import-untyped]
from hookmq.cluster_api import Here, Place, Redirect, Refused, Relaying, Transfer
from hookmq.plugin import ClientInfo, ReasonCode, Runtime

from hookmq_cluster.engine import Appended, Engine, Entry, Stored, Unavailable
from hookmq_cluster.engine import Refused as NotAppended
from hookmq_cluster.membership import Member
from hookmq_cluster.names import Names

Claimed: TypeAlias = Callable[[Refused | None], None]
_VERSION: Final = 1
_SEEN: Final = 10_000
"""How many lookups are remembered until the client is claimed."""
_CREATING: Final = 16
"""The largest number of new entries that are under way. Commits, and renewals of the lease, wait behind them."""
_PATIENCE: Final = 10.0
"""Seconds after which a client is refused if its entry is still waiting to be written."""
_UNAVAILABLE: Final = Refused(ReasonCode.SERVER_UNAVAILABLE, "the cluster does not answer")
_LOST: Final = Refused(ReasonCode.SERVER_BUSY, "the client is connecting to another node as well")
MOVING: Final = Refused(ReasonCode.SERVER_BUSY, "the session is moving to another node")


def encode_session(client_id: str, lane: str) -> bytes:
    """Return the stored form of the entry that names a session's lane."""
    return bytes(msgpack.packb((_VERSION, client_id, lane)))


def decode_session(data: bytes) -> tuple[str, str] | None:
    """Return a client id and a lane, or None if the entry has another version or is damaged."""
    try:
        version, client_id, lane = msgpack.unpackb(data)[:3]
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if version != _VERSION or not isinstance(client_id, str) or not isinstance(lane, str):
        return None
    return client_id, lane


class Claims:
    """Finds and claims clients.

    `home` is the lane for new sessions. `lane_of` returns the lane of a session on this node, `place` gets the lane
    of another one, and whether it was claimed. `owner` returns the live owner of a lane, or None. `relaying` returns how
    a client reaches a node that has a lane. `kick` tells all other nodes to disconnect a client, because it has a new
    connection here.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        node: str,
        home: str,
        lane_of: Callable[[str], str | None],
        place: Callable[[str, str, bool], None],
        owner: Callable[[str], Member | None],
        relaying: Callable[[Member, str], Relaying | Redirect | Transfer],
        kick: Callable[[str], None],
    ) -> None:
        self.newcomer: Callable[[str], Here | Transfer] = _here
        """Returns where a client belongs that has no session."""
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._node = node
        self._home = home
        self._lane_of = lane_of
        self._place = place
        self._owner = owner
        self._relaying = relaying
        self._kick = kick
        self._seen: dict[str, int] = {}
        """The sequence of the entry of clients that have no session, from the last lookup."""
        self._creating = 0
        self._waiting: deque[tuple[float, str, int, Claimed]] = deque()
        """New entries that are not under way: when the client is refused, its id, the entry's sequence, and `done`."""

    def locate(self, client_id: str, done: Callable[[Place], None]) -> None:
        """Find the node that has the client's session, or the one for a client without; see
        `hookmq.cluster_api.Cluster.locate`."""

        def located(place: Place) -> None:
            new = isinstance(place, Here) and self._lane_of(client_id) is None
            done(self.newcomer(client_id) if new else place)

        self._look(client_id, located, exact=False)

    def _look(self, client_id: str, done: Callable[[Place], None], exact: bool) -> None:
        def found(stored: Stored | None | Unavailable) -> None:
            if isinstance(stored, Unavailable):
                done(_UNAVAILABLE)
                return
            if stored is None or not stored.data:
                self._remember(client_id, stored.sequence if stored is not None else 0)
                done(Here())
                return
            entry = decode_session(stored.data)
            if entry is None or entry[0] != client_id:
                self._runtime.log("error", "cluster.session_unreadable", subject=stored.subject)
                done(Refused(ReasonCode.SERVER_UNAVAILABLE, "the session's node is not known"))
                return
            lane = entry[1]
            owner = self._owner(lane)
            if owner is None:
                reason = "the node with the session is down, and no other one has taken over yet"
                done(Refused(ReasonCode.SERVER_UNAVAILABLE, reason))
            elif owner.node == self._node:
                self._place(client_id, lane, False)
                done(Here())
            else:
                done(self._relaying(owner, lane))

        self._engine.last(self._names.session(client_id), found, exact)

    def _remember(self, client_id: str, sequence: int) -> None:
        seen = self._seen
        seen[client_id] = sequence
        if len(seen) > _SEEN:
            del seen[next(iter(seen))]

    def claim(self, client: ClientInfo, durable: bool, done: Claimed) -> None:
        """Make this node the only one that has the client; see `hookmq.cluster_api.Cluster.claim`."""
        client_id = client.client_id
        sequence = self._seen.pop(client_id, None)
        self._kick(client_id)
        lane = self._lane_of(client_id)
        if lane is not None and not self._is_here(lane):
            done(MOVING)
        elif not durable or lane is not None:
            done(None)
        elif sequence is not None:
            self._create(client_id, sequence, done)
        else:
            # It was not looked up, because a session here has ended meanwhile.
            def located(place: Place) -> None:
                if isinstance(place, Refused):
                    done(place)
                elif not isinstance(place, Here):
                    done(_LOST)
                elif self._lane_of(client_id) is not None:
                    done(None)
                else:
                    self._create(client_id, self._seen.pop(client_id, 0), done)

            self._look(client_id, located, exact=True)

    def _is_here(self, lane: str) -> bool:
        owner = self._owner(lane)
        return owner is not None and owner.node == self._node

    def _create(self, client_id: str, sequence: int, done: Claimed) -> None:
        if self._creating == _CREATING:
            refused_at = self._runtime.now() + _PATIENCE
            self._waiting.append((refused_at, client_id, sequence, done))
            return
        self._creating += 1
        subject = self._names.session(client_id)
        data = encode_session(client_id, self._home)
        entry = Entry(subject, data, (subject, sequence), replace=True)

        def answered(result: Appended | NotAppended | Unavailable) -> None:
            self._creating -= 1
            self._create_waiting()
            if isinstance(result, Appended):
                self._place(client_id, self._home, True)
                done(None)
            else:
                done(_LOST if isinstance(result, NotAppended) else _UNAVAILABLE)

        self._engine.commit((entry,), answered)

    def _create_waiting(self) -> None:
        while self._waiting and self._creating < _CREATING:
            refused_at, client_id, sequence, done = self._waiting.popleft()
            if self._runtime.now() < refused_at:
                self._create(client_id, sequence, done)
            else:
                done(_UNAVAILABLE)


def _here(client_id: str) -> Here:
    return Here()
