"""The stored state of plugins that changes while their node does not have its home lane.

A drained node has no lane to store it in. It appends the changes to a subject of its own. Once the node has its home lane
again, now or after a restart, one commit adds them there and deletes that subject.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from hookmq.plugin import Runtime, StoreError
from hookmq.storage_api import DropState, Loaded, PutState, Record

from hookmq_cluster.engine import Engine, Entry, Stored, Unavailable
from hookmq_cluster.frames import FrameError, Frames, Origin, OwnerFrame, encode_owner
from hookmq_cluster.names import Names
from hookmq_cluster.waiting import answer, pause

_RETRY: Final = 1.0
"""Seconds until a page is read again after the engine did not answer."""
_TOMBSTONE: Final = 60
"""Seconds for which the log keeps the entry that deletes the subject."""

Change: TypeAlias = PutState | DropState


class AwayState:
    """The newest change of each key."""

    def __init__(self, engine: Engine, names: Names, node: str) -> None:
        self._engine = engine
        self._subject = names.away(node)
        self._changes: dict[tuple[str, str], Change] = {}
        self._frames = Frames()
        self._returning = False

    def entries(self, origin: Origin, records: Sequence[Record]) -> list[Entry]:
        """Return the entries of a commit for changes, and remember these."""
        if not records:
            return []
        self._remember(records)
        frame = OwnerFrame(origin, 0, tuple(records))
        return [Entry(self._subject, data) for data in encode_owner(frame, self._engine.max_entry)]

    async def read(self, runtime: Runtime) -> None:
        """Read the changes of an earlier process. Raises StoreError if they are damaged."""
        after = 0
        while True:
            page: list[Stored] | Unavailable
            page = await answer(runtime, partial(self._engine.read, (self._subject,), after))
            if isinstance(page, Unavailable):
                await pause(runtime, _RETRY)
                continue
            if not page:
                return
            for stored in page:
                after = stored.sequence
                self.add(stored)

    def add(self, stored: Stored) -> None:
        """Add the next entry of the subject. Raises StoreError if it is damaged."""
        if not stored.data:  # the subject was deleted
            self._changes.clear()
            return
        try:
            frame = self._frames.read(stored.data)
        except FrameError as error:
            raise StoreError(
                f"the state of plugins in {stored.subject} is damaged: sequence {stored.sequence}: {error}"
            ) from error
        if isinstance(frame, OwnerFrame):
            self._remember(frame.records)

    def _remember(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, Change):
                self._changes[record.space, record.key] = record

    def merged(self, loaded: Iterable[Loaded]) -> Iterator[Loaded]:
        """Yield the contents of the home lane, with the changes."""
        for item in loaded:
            if not isinstance(item, PutState) or (item.space, item.key) not in self._changes:
                yield item
        for change in self._changes.values():
            if isinstance(change, PutState):
                yield change

    def take_back(self) -> list[Record]:
        """Return the changes, for the next frame of the home lane. The commit must also contain `end`."""
        changes: list[Record] = [*self._changes.values()]
        self._changes.clear()
        self._returning = bool(changes)
        return changes

    def end(self) -> list[Entry]:
        """Return the entry that deletes the subject, if `take_back` has returned changes."""
        returning, self._returning = self._returning, False
        return [Entry(self._subject, b"", replace=True, ttl=_TOMBSTONE)] if returning else []
