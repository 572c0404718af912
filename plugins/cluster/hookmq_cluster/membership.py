"""Which nodes of the cluster are alive.

Each node renews a lease in the log. The log deletes a lease that is not renewed in time, and the other nodes then treat
the node as dead. While the log itself does not answer, nobody can renew, so nobody is declared dead until one lease has
passed since it answered again.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
from hookmq.plugin import Runtime

from hookmq_cluster.engine import Appended, Engine, Entry, Refused, Stored, Unavailable
from hookmq_cluster.names import Names

_VERSION: Final = 1
_RENEWALS: Final = 3
"""Renewals in one lease."""
_LATE: Final = 0.75
"""The part of a lease after which a renewal is late. The log may have stored the one before earlier than it answered."""
_POLLS: Final = 6
"""Looks at the leases of the others in one lease, at least."""
_POLL: Final = 1.0
"""The longest pause between two looks at the leases of the others, in seconds."""
_AGAIN: Final = 0.25
"""Seconds until the next look if a lease has ended."""


class Member(NamedTuple):
    """A node. `boot` differs after each start. `address` is that of its relay listener, as ``host:port``, `clients` the
    one that clients should use, or empty. `frames` is the newest version of frames that the node reads."""

    node: str
    boot: str
    address: str
    frames: int = 1
    clients: str = ""


def encode_member(member: Member) -> bytes:
    """Return the stored form of a lease."""
    return bytes(msgpack.packb((_VERSION, *member)))


def decode_member(data: bytes) -> Member | None:
    """Return the node that a lease belongs to, or None if the lease has another version or is damaged."""
    try:
        version, node, boot, address, *more = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    member = Member(node, boot, address, *more[:2])
    texts = (node, boot, address, member.clients)
    if (
        version != _VERSION
        or type(member.frames) is not int
        or not all(type(one) is str for one in texts)
    ):
        return None
    return member


class Membership:
    """Renews this node's lease, and watches those of the others.

    `fence` returns the log entry that must be unchanged for this node to renew: the owner of its home lane. `joined` is
    called with each node that appears, `left` with each that has gone. A node that restarts leaves and joins. `expelled`
    is called once if the lease cannot be renewed because another process owns the home lane.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        me: Member,
        lease: float,
        fence: Callable[[], tuple[str, int]],
        joined: Callable[[Member], None],
        left: Callable[[Member], None],
        expelled: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self.me = me
        self.lease = lease
        self._fence = fence
        self._joined = joined
        self._left = left
        self._expelled = expelled
        self.others: dict[str, Member] = {}
        """The other live nodes, by name."""
        self._missing: dict[str, int] = {}
        """How often in a row a live node's lease was not found."""
        self._answering_since: float | None = None
        """When the log began to answer, or None while it does not."""
        self._renewed = 0.0
        self._lease = 0
        """The sequence of this node's last lease, or 0."""
        self.isolated = False
        """Whether the log did not confirm the last renewal: it has no majority, or cannot be reached."""
        self.owned: Callable[[Callable[[bool | None], None]], None] = lambda done: done(False)
        """Finds out whether this process owns the home lane. Passes None if that is not known."""
        self.lapsed: Callable[[], None] = _nothing
        """Called when the lease was renewed so late that the other nodes may have regarded this one as dead."""
        self._heard: dict[str, float] = {}
        self._renewing = False
        self._closed = False

    @property
    def renewed_ago(self) -> float:
        """Seconds since the last renewal that the log has confirmed."""
        return self._runtime.now() - self._renewed

    @property
    def trusts_leases(self) -> bool:
        """Whether the log has answered for long enough that a missing lease means a dead node. This also takes one lease
        after the start, because the log itself may have been down before.
        """
        since = self._answering_since
        return since is not None and self._runtime.now() - since >= self.lease

    def watch(self, done: Callable[[Unavailable | None], None]) -> None:
        """Read the leases of the others, now and regularly. Call `done` once after the first time."""

        def read(found: Unavailable | None) -> None:
            self._poll_later()
            done(found)

        self._look(read)

    def renew(self, done: Callable[[Unavailable | None], None]) -> None:
        """Put this node's lease into the log, and renew it regularly. Call `done` once after the first time. The home
        lane must be owned before."""
        if self._renewing:
            self._put_lease(done)
            return
        self._renewing = True

        def renewed(failed: Unavailable | None) -> None:
            self._runtime.call_later(self.lease / _RENEWALS, self._renew)
            done(failed)

        self._put_lease(renewed)

    def stop(self, done: Callable[[], None]) -> None:
        """Stop, and delete the lease, so that the other nodes need not wait for its end."""
        self._closed = True
        self._delete_lease(self._lease, done)

    def _delete_lease(self, sequence: int, done: Callable[[], None]) -> None:
        def answered(result: Appended | Refused | Unavailable) -> None:
            if isinstance(result, Refused) and self._lease != sequence:
                self._delete_lease(self._lease, done)  # a renewal was under way
            else:
                done()

        seconds = max(1, round(self.lease))
        subject = self._names.lease(self.me.node)
        # This may arrive late, and must not delete the lease of this node's next process.
        entry = Entry(subject, b"", (subject, sequence), replace=True, ttl=seconds)
        self._engine.commit((entry,), answered)

    def heard_from(self, node: str, boot: str) -> None:
        """Note a message from another node: it is alive, whatever its lease says. This says nothing about an earlier
        process of that node."""
        known = self.others.get(node)
        if known is not None and known.boot == boot:
            self._heard[node] = self._runtime.now()

    def is_live(self, node: str) -> bool:
        """Return whether the node is this one, or another one that is alive."""
        return node == self.me.node or node in self.others

    def _renew(self) -> None:
        if self._closed:
            return

        def renewed(failed: Unavailable | None) -> None:
            # After a failure, try again soon: the lease may end.
            pause = self.lease / _RENEWALS if failed is None else min(1.0, self.lease / _POLLS)
            self._runtime.call_later(pause, self._renew)

        self._put_lease(renewed)

    def _put_lease(self, done: Callable[[Unavailable | None], None]) -> None:
        seconds = max(1, round(self.lease))
        subject = self._names.lease(self.me.node)
        entry = Entry(subject, encode_member(self.me), self._fence(), replace=True, ttl=seconds)

        def answered(result: Appended | Refused | Unavailable) -> None:
            if isinstance(result, Appended):
                self._lease = result.last
            if self._closed:
                return
            if isinstance(result, Refused):
                self.owned(partial(self._refused, result, done))
            elif isinstance(result, Unavailable):
                self.isolated = True
                self._silent()
                done(result)
            else:
                self.isolated = False
                late = self._renewed and self.renewed_ago > self.lease * _LATE
                self._renewed = self._runtime.now()
                if late:
                    self.lapsed()
                done(None)

        self._engine.commit((entry,), answered)

    def _refused(
        self, result: Refused, done: Callable[[Unavailable | None], None], owned: bool | None
    ) -> None:
        """Try again later if this process still owns its lane, with a new fence, or if that is not known."""
        if self._closed:
            return
        if owned is False:
            self._closed = True
            self._expelled(result.reason)
        else:
            done(Unavailable("the home lane has a new fence"))

    def _silent(self) -> None:
        self._answering_since = None
        self._missing.clear()

    def look(self) -> None:
        """Read the leases of the others soon: a node has started."""
        if not self._closed:
            self._look(lambda _: None)

    def _poll(self) -> None:
        if self._closed:
            return

        self._look(lambda _: self._poll_later())

    def _poll_later(self) -> None:
        longest = _AGAIN if self._missing else _POLL
        self._runtime.call_later(min(longest, self.lease / _POLLS), self._poll)

    def _look(self, done: Callable[[Unavailable | None], None]) -> None:
        """Read all leases. The last page is empty, so that no follower that lags hides a lease."""
        leases: list[Stored] = []

        def read() -> None:
            after = leases[-1].sequence if leases else 0
            self._engine.read((self._names.leases,), after, found)

        def found(page: list[Stored] | Unavailable) -> None:
            if self._closed:
                return
            if isinstance(page, Unavailable):
                self._silent()
                done(page)
                return
            if self._answering_since is None:
                self._answering_since = self._runtime.now()
            if page:
                leases.extend(page)
                read()
                return
            self._update(leases)
            done(None)

        read()

    def _update(self, leases: list[Stored]) -> None:
        now = self._runtime.now()
        seen: set[str] = set()
        ended = {stored.subject for stored in leases if not stored.data}
        for stored in leases:
            member = decode_member(stored.data) if stored.data else None
            if member is None or member.node == self.me.node:
                continue
            seen.add(member.node)
            known = self.others.get(member.node)
            if known is not None and known.boot != member.boot:
                self._drop(known)
                known = None
            if known != member:
                self.others[member.node] = member
            if known is None:
                self._joined(member)
        for node, member in list(self.others.items()):
            if node in seen:
                self._missing.pop(node, None)
                continue
            missing = self._missing[node] = self._missing.get(node, 0) + 1
            silent = now - self._heard.get(node, -self.lease) > self.lease / 2
            if self._names.lease(node) in ended or (missing >= 2 and silent and self.trusts_leases):
                self._drop(member)

    def _drop(self, member: Member) -> None:
        del self.others[member.node]
        self._missing.pop(member.node, None)
        self._heard.pop(member.node, None)
        self._left(member)


def _nothing() -> None:
    """Do nothing."""
