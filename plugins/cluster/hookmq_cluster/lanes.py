"""Who owns which lane, and how lanes change hands.

A lane is a part of the log with the sessions that a node has created. Its owner is named by the last entry of a subject,
whose sequence fences the owner: every commit of the owner requires that entry to be unchanged. A lane therefore has one
owner at a time, however long the former one was stopped.

    claimed at start -> owned -> given to another node, or adopted by another node after its owner has died
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
from hookmq.plugin import Runtime

from hookmq_cluster.engine import Appended, Engine, Entry, Refused, Stored, Unavailable
from hookmq_cluster.membership import Member
from hookmq_cluster.names import Names

_VERSION: Final = 1


class Owner(NamedTuple):
    """The owner of a lane. `sequence` is the fence. Without an owner, `node` and `boot` are empty. `by` is the boot that
    has written the entry, or empty."""

    node: str
    boot: str
    sequence: int
    by: str = ""


def encode_owner(lane: str, node: str, boot: str, by: str = "") -> bytes:
    """Return the stored form of a lane's owner."""
    return bytes(msgpack.packb((_VERSION, lane, node, boot, by)))


def decode_owner(stored: Stored) -> tuple[str, Owner] | None:
    """Return a lane and its owner, or None if the entry has another version or is damaged."""
    try:
        version, lane, node, boot, *more = msgpack.unpackb(stored.data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    by = more[0] if more else ""
    if version != _VERSION or not all(isinstance(text, str) for text in (lane, node, boot, by)):
        return None
    return lane, Owner(node, boot, stored.sequence, by)


class OtherOwner(NamedTuple):
    """Another node owns a lane."""

    node: str
    reason: str


Won = Callable[[int | Refused | Unavailable], None]
"""Called with the fence of a lane that this node owns now, or with the reason why it does not."""


class Lanes:
    """The owners of all lanes, as far as this node has read them.

    `changed` is called with the lane and its new owner, also if that is this node.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        me: Member,
        changed: Callable[[str, Owner], None],
    ) -> None:
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._me = me
        self._changed = changed
        self.owners: dict[str, Owner] = {}
        """Every lane's owner, by lane."""
        self._since: dict[str, float] = {}
        self.fences: dict[str, int] = {}
        """The lanes that this process owns, and their fences."""
        self._end: Callable[[], None] | None = None

    def watch(self) -> None:
        """Follow all changes of ownership from now on, beginning with the present owners."""
        self._end = self._engine.follow((self._names.owners,), 0, self._receive)

    def read(self, done: Callable[[Unavailable | None], None]) -> None:
        """Read the present owners of all lanes, and call `done`. `watch` alone does not say when it knows them."""
        self._read_after(0, done)

    def _read_after(self, after: int, done: Callable[[Unavailable | None], None]) -> None:
        def found(page: list[Stored] | Unavailable) -> None:
            if isinstance(page, Unavailable):
                done(page)
            elif page:
                for stored in page:
                    self._receive(stored)
                self._read_after(page[-1].sequence, done)
            else:
                done(None)

        self._engine.read((self._names.owners,), after, found)

    def close(self) -> None:
        """Stop following."""
        if self._end is not None:
            self._end()
            self._end = None

    def owned_for(self, lane: str) -> float:
        """Return for how many seconds this node has known the present owner of a lane. A new owner may not have a lease
        yet."""
        return self._runtime.now() - self._since.get(lane, self._runtime.now())

    def of(self, node: str) -> list[str]:
        """Return the lanes of a node."""
        return [lane for lane, owner in self.owners.items() if owner.node == node]

    def keeps(self, lane: str, owner: Owner) -> bool:
        """Return whether `owner` is this process, and no other process has owned the lane since its fence in `fences`."""
        if (owner.node, owner.boot) != (self._me.node, self._me.boot):
            return False
        return owner.by == self._me.boot or owner.sequence == self.fences.get(lane)

    def take(self, lane: str, expected: Owner | None, done: Won) -> None:
        """Become the owner of `lane`, if its owner is still `expected`; None means that it has never had one."""
        self._put(lane, self._me.node, self._me.boot, expected.sequence if expected else 0, done)

    def take_own(
        self, lane: str, done: Callable[[int | OtherOwner | Refused | Unavailable], None]
    ) -> None:
        """Become the owner of `lane` if its owner is an earlier process of this node, or if it has none. Call `done` with
        the fence, or with the reason why this process is not the owner.
        """

        def found(stored: Stored | None | Unavailable) -> None:
            if isinstance(stored, Unavailable):
                done(stored)
                return
            known = decode_owner(stored) if stored is not None else None
            if stored is not None and known is None:
                reason = f"the owner of lane {lane!r} is damaged, or of a newer version"
                done(Refused("", reason))
            elif known is not None and known[1].node not in ("", self._me.node):
                self.owners[lane] = known[1]
                node = known[1].node
                done(OtherOwner(node, f"node {node!r} owns lane {lane!r}"))
            else:
                self.take(lane, known[1] if known else None, done)

        self._engine.last(self._names.own(lane), found, exact=True)

    def check(self, lane: str, done: Callable[[bool | None], None]) -> None:
        """Read whether this process owns `lane`. Pass None to `done` if the log does not answer."""

        def found(stored: Stored | None | Unavailable) -> None:
            if isinstance(stored, Unavailable):
                done(None)
                return
            known = decode_owner(stored) if stored is not None else None
            done(known is not None and self.keeps(lane, known[1]))

        self._engine.last(self._names.own(lane), found, exact=True)

    def renew(self, lane: str, done: Won) -> None:
        """Give an own lane a new fence, so that the log refuses everything that is on its way with the old one. If
        another process owns the lane, call `done` with Refused.
        """

        def found(stored: Stored | None | Unavailable) -> None:
            known = decode_owner(stored) if isinstance(stored, Stored) else None
            if isinstance(stored, Unavailable):
                done(stored)
            elif known is None or not self.keeps(lane, known[1]):
                done(Refused(self._names.own(lane), f"another process owns lane {lane!r}"))
            else:
                self._put(lane, self._me.node, self._me.boot, known[1].sequence, done)

        self._engine.last(self._names.own(lane), found, exact=True)

    def give(self, lane: str, to: Member | None, done: Won) -> None:
        """Make another node the owner of a lane that this process owns, or none. Commit everything of the lane before."""
        node, boot = (to.node, to.boot) if to is not None else ("", "")
        fence = self.fences.get(lane)
        if fence is None:  # another process took it a moment ago
            done(Refused(self._names.own(lane), f"another process owns lane {lane!r}"))
            return
        self._put(lane, node, boot, fence, done)

    def _put(self, lane: str, node: str, boot: str, expected: int, done: Won) -> None:
        subject = self._names.own(lane)
        data = encode_owner(lane, node, boot, self._me.boot)
        entry = Entry(subject, data, (subject, expected), replace=True)
        key = f"own/{lane}/{self._me.node}/{self._me.boot}/{expected}/{node}/{boot}"

        def answered(result: Appended | Refused | Unavailable) -> None:
            if not isinstance(result, Appended):
                done(result)
                return
            if node == self._me.node:
                known = self.owners.get(lane)
                if known is not None and known.sequence > result.last:
                    done(Refused(subject, f"another process owns lane {lane!r}"))
                    return
                self.fences[lane] = result.last
            else:
                self.fences.pop(lane, None)
            self._note(lane, Owner(node, boot, result.last, self._me.boot))
            done(result.last)

        self._engine.commit((entry,), answered, key)

    def _receive(self, stored: Stored) -> None:
        known = decode_owner(stored)
        if known is None:
            self._runtime.log("error", "cluster.owner_unreadable", subject=stored.subject)
            return
        self._note(*known)

    def _note(self, lane: str, owner: Owner) -> None:
        known = self.owners.get(lane)
        if known is not None and known.sequence >= owner.sequence:
            return
        self.owners[lane] = owner
        self._since[lane] = self._runtime.now()
        if owner.node != self._me.node or owner.boot != self._me.boot:
            self.fences.pop(lane, None)
        self._changed(lane, owner)
