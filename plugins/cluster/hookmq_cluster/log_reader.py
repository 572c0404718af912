"""Reads the contents of a cluster's log as they were at one position, while nodes may go on writing.

Pages are read until there are no more. Whatever was deleted before it could be read was replaced by an entry that was
written before the last page was read, so it belongs to an earlier position. Only the trimming of lanes is different: it
can leave a gap between two pages, so the beginning of each lane is compared at the end.
"""

from collections.abc import Callable, Iterable
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
"""The beginning of a lane without entries."""


class LogPosition(NamedTuple):
    """Where a copy of the log ends.

    - `last`: the sequence of the last entry.
    - `beginnings`: by the subject of each lane, the first sequence that belongs to it. What precedes it was deleted, and
      may be incomplete.
    """

    last: int
    beginnings: dict[str, int]


def contents(names: Names) -> tuple[str, ...]:
    """Return the subjects of everything that a copy contains. Leases and the secret of the nodes are left out."""
    return (names.owners, names.lanes, names.sessions, names.retained_messages, names.facts)


async def copy_log(
    engine: Engine, names: Names, runtime: Runtime, put: Callable[[Stored], None]
) -> LogPosition:
    """Pass the entries of the log to `put`, in order, and return the position at which they are consistent.

    Of the entries of one subject, except those of lanes, only the last one counts. Raises StoreError if the log does not
    answer.
    """
    incomplete: set[str] = set()
    """Lanes with a frame of which some parts have not been read."""
    lanes: set[str] = set()
    prefix = names.lane("")

    async def read_all(after: int) -> int:
        filters = contents(names)
        waited = 0
        while True:
            page: list[Stored] = await ask(runtime, partial(engine.read, filters, after))
            for stored in page:
                subject = stored.subject
                if subject.startswith(prefix):
                    lanes.add(subject)
                    (incomplete.add if is_incomplete(stored.data) else incomplete.discard)(subject)
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
        beginnings = await _beginnings(engine, runtime, lanes)
        read = last
        last = await read_all(read)
        again = await _beginnings(engine, runtime, lanes)
        if all(begin <= read or begin == beginnings.get(lane) for lane, begin in again.items()):
            return LogPosition(last, {lane: beginnings.get(lane, 0) for lane in lanes})


async def _beginnings(engine: Engine, runtime: Runtime, lanes: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for lane in lanes:
        page: list[Stored] = await ask(runtime, partial(engine.read, (lane,), 0))
        found[lane] = page[0].sequence if page else _NEVER
    return found
