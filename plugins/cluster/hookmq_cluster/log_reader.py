"""Reads the contents of a cluster's log as they were at one position, while nodes may go on writing.

Pages are read until there are no more. Whatever was deleted before it could be read was replaced by an entry that was
written before the last page was read, so it belongs to an earlier position. Subjects with several valid entries are
different: trimming a lane can leave a gap between two pages. So the beginnings of these are compared at the end.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from hookmq.plugin import Runtime, StoreError

from hookmq_cluster.engine import Engine, Stored
from hookmq_cluster.filling import ask
from hookmq_cluster.frames import is_incomplete
from hookmq_cluster.names import Names
from hookmq_cluster.waiting import pause

_GLANCE: Final = 0.05
"""Seconds between two looks for the rest of a frame."""
_LOOKS: Final = 200
"""Looks for the rest of a frame."""
_NEVER: Final = 1 << 62
"""The beginning of a subject without entries."""


class LogPosition(NamedTuple):
    """Where a copy of the log ends.

    - `last`: the sequence of the last entry.
    - `beginnings`: by the subject of each lane, and of the state that each node has stored without its lane, the first
      sequence that belongs to it. Anything before it was deleted, and may be incomplete.
    """

    last: int
    beginnings: dict[str, int]

    def valid(self, entries: Iterable[Stored]) -> Iterator[Stored]:
        """Yield those of `entries` that do not precede the beginning of their subject."""
        return (one for one in entries if one.sequence >= self.beginnings.get(one.subject, 0))


def contents(names: Names) -> tuple[str, ...]:
    """Return the subjects of everything that a copy contains. Leases and the secret of the nodes are left out."""
    return (
        names.owners,
        names.lanes,
        names.sessions,
        names.retained_messages,
        names.facts,
        names.all_away,
    )


async def copy_log(
    engine: Engine, names: Names, runtime: Runtime, put: Callable[[Stored], None]
) -> LogPosition:
    """Pass the entries of the log to `put`, in order, and return the position at which they are consistent.

    Of the entries of one subject, only the last one counts, unless `LogPosition.beginnings` names the subject. Raises
    StoreError if the log does not answer.
    """
    incomplete: set[str] = set()
    """Subjects with a frame of which some parts have not been read."""
    framed: set[str] = set()
    prefixes = (names.lane(""), names.away(""))

    async def read_all(after: int) -> int:
        filters = contents(names)
        waited = 0
        while True:
            page: list[Stored] = await ask(runtime, partial(engine.read, filters, after))
            for stored in page:
                subject = stored.subject
                if subject.startswith(prefixes):
                    framed.add(subject)
                    part = stored.data and is_incomplete(stored.data)
                    (incomplete.add if part else incomplete.discard)(subject)
                put(stored)
            if page:
                after = page[-1].sequence
                waited = 0
            elif not incomplete:
                return after
            elif waited == _LOOKS:
                raise StoreError(f"{min(incomplete)} ends with an incomplete frame")
            else:
                waited += 1
                await pause(runtime, _GLANCE)

    last = await read_all(0)
    while True:
        beginnings = await _beginnings(engine, runtime, framed)
        read = last
        last = await read_all(read)
        again = await _beginnings(engine, runtime, framed)
        if all(
            begin <= read or begin == beginnings.get(subject) for subject, begin in again.items()
        ):
            return LogPosition(last, {one: beginnings.get(one, 0) for one in framed})


async def _beginnings(engine: Engine, runtime: Runtime, subjects: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for subject in subjects:
        page: list[Stored] = await ask(runtime, partial(engine.read, (subject,), 0))
        found[subject] = page[0].sequence if page else _NEVER
    return found
