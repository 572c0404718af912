"""Fills the log of a cluster without a broker: for imports and restores.

A mark in the log comes first. While it is there, no node joins. Another attempt first deletes the entries of the one
before. Each entry requires that the mark is unchanged, so two tools cannot mix their contents. At the end, the writer
removes the mark if no node has taken a lane meanwhile.

    mark -> no node is alive -> take all lanes -> delete the old contents -> fill -> remove the mark
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from hookmq.plugin import Runtime, StoreError

from hookmq_cluster.engine import TOMBSTONE, Appended, Engine, Entry, Refused, Stored, Unavailable
from hookmq_cluster.filling import ask, encode_mark, read_mark
from hookmq_cluster.lanes import decode_owner, encode_owner
from hookmq_cluster.log_reader import contents
from hookmq_cluster.membership import Member, decode_member
from hookmq_cluster.names import Names
from hookmq_cluster.waiting import answer

BATCH_SIZE: Final = 4 << 20
"""Bytes in one commit, if it has more than one entry."""


async def read_members(engine: Engine, runtime: Runtime, names: Names) -> list[Member]:
    """Return the nodes that are alive, or were until a lease ago, in the order of their names."""
    page: list[Stored] = await ask(runtime, partial(engine.read, (names.leases,), 0))
    members = (decode_member(stored.data) for stored in page if stored.data)
    return sorted(member for member in members if member is not None)


async def refuse_live_nodes(engine: Engine, runtime: Runtime, names: Names) -> None:
    """Raise StoreError if a node is alive, or was until a lease ago."""
    nodes = [member.node for member in await read_members(engine, runtime, names)]
    if nodes:
        raise StoreError(
            f"these nodes of cluster {names.cluster!r} are running, or were until a lease ago: {', '.join(nodes)}; "
            "stop all nodes"
        )


class LogWriter:
    """Fills a cluster. `what` is the command, for messages. Every method raises StoreError if the log refuses a change or
    does not answer.
    """

    def __init__(self, engine: Engine, names: Names, runtime: Runtime, what: str) -> None:
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._what = what
        self.token = runtime.token(8)
        """A name for this attempt, in place of the boot of a node."""
        self.last = 0
        """The sequence of the last entry that was appended."""
        self._mark = 0
        self._fences: dict[str, int] = {}
        self._entries: list[Entry] = []
        self._size = 0
        self._replaced: set[str] = set()
        self._commits = 0

    async def begin(self) -> str:
        """Set the mark. Return the command of an earlier attempt that did not finish, or ''.

        Raises StoreError, without a mark, if a node is alive.
        """
        earlier, sequence = await read_mark(self._engine, self._runtime, self._names)
        mark = self._names.filling
        entry = Entry(mark, encode_mark(self._what), (mark, sequence), replace=True)
        self._mark = await self._commit([entry])
        try:
            await refuse_live_nodes(self._engine, self._runtime, self._names)
        except StoreError:
            if not earlier:
                await self.abandon()
            raise
        return earlier

    async def abandon(self) -> None:
        """Remove the mark. Nothing may be written yet."""
        await self._commit([self._unmark()])

    async def clear(self, lanes: Iterable[str]) -> None:
        """Take `lanes` and all that exist, and delete the contents of the cluster."""
        names = self._names
        found = await self._owners()
        for lane in sorted({*found, *lanes}):
            own = names.own(lane)
            entry = Entry(
                own, encode_owner(lane, "", self.token), (own, found.get(lane, 0)), replace=True
            )
            self._fences[lane] = await self._commit([entry])
        for subject in contents(names):
            if subject == names.owners:
                continue
            trim = partial(self._engine.trim, subject, self.last + 1)
            await ask(self._runtime, trim)

    async def _owners(self) -> dict[str, int]:
        found: dict[str, int] = {}
        after = 0
        while True:
            read = partial(self._engine.read, (self._names.owners,), after)
            page: list[Stored] = await ask(self._runtime, read)
            if not page:
                return found
            after = page[-1].sequence
            for stored in page:
                known = decode_owner(stored)
                if known is None:
                    raise StoreError(f"{stored.subject} is damaged, or of a newer version")
                found[known[0]] = stored.sequence

    async def add(self, entries: Sequence[Entry]) -> None:
        """Append `entries` in one commit, together with others. They may wait until `flush`."""
        size = sum(len(entry.data) for entry in entries)
        if self._entries and (
            len(self._entries) + len(entries) > self._engine.max_batch
            or self._size + size > BATCH_SIZE
            or any(entry.replace and entry.subject in self._replaced for entry in entries)
        ):
            await self.flush()
        self._entries += entries
        self._size += size
        self._replaced.update(entry.subject for entry in entries)

    async def flush(self) -> None:
        """Append everything that was added."""
        entries, self._entries = self._entries, []
        self._size = 0
        self._replaced.clear()
        if entries:
            entries[0] = entries[0]._replace(expect=(self._names.filling, self._mark))
            await self._commit(entries)

    async def finish(self) -> None:
        """Append the rest, leave all lanes without an owner, and remove the mark."""
        await self.flush()
        entries = [self._unmark()]
        for lane, fence in self._fences.items():
            own = self._names.own(lane)
            entries.append(Entry(own, encode_owner(lane, "", ""), (own, fence), replace=True))
        await self._commit(entries)

    def _unmark(self) -> Entry:
        mark = self._names.filling
        return Entry(mark, b"", (mark, self._mark), replace=True, ttl=TOMBSTONE)

    async def _commit(self, entries: list[Entry]) -> int:
        self._commits += 1
        key = f"fill/{self.token}/{self._commits}"
        commit = partial(self._engine.commit, entries, key=key)
        result: Appended | Refused | Unavailable = await answer(self._runtime, commit)
        if isinstance(result, Appended):
            self.last = result.last
            return result.last
        if isinstance(result, Refused):
            raise StoreError(
                f"another command or a node has changed cluster {self._names.cluster!r} meanwhile "
                f"({result.reason}); repeat the command"
            )
        raise StoreError(f"the cluster's log does not answer ({result.reason}); repeat the command")
