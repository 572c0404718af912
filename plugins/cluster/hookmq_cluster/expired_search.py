"""Finds expired messages in the queues of all lanes of a process, step by step."""

from collections.abc import Iterator, Mapping
from typing import Final

from hookmq.storage_api import Enqueue, ExpiredEntries

from hookmq_cluster.lane_log import LaneLog

EXAMINED: Final = 10_000
"""The largest number of queue entries to examine in one step."""


class ExpiredSearch:
    """A search in `lanes` for the entries of messages that have expired by `now`. Lanes may come and go meanwhile."""

    def __init__(self, lanes: Mapping[str, LaneLog], now: float) -> None:
        self._lanes = lanes
        self._entries = self._examine(now)

    def step(self, max_count: int) -> ExpiredEntries:
        """Find at most `max_count` entries. The result has this search if it is not finished."""
        found: list[tuple[str, int, int, int]] = []
        for _ in range(EXAMINED):
            try:
                entry = next(self._entries)
            except StopIteration:
                return ExpiredEntries(found, None)
            if entry is not None:
                found.append((entry.owner, entry.seq, entry.size, entry.message_ref))
                if len(found) >= max_count:
                    break
        return ExpiredEntries(found, self)

    def _examine(self, now: float) -> Iterator[Enqueue | None]:
        """Yield each expired entry, and None for each other one."""
        for lane, log in list(self._lanes.items()):
            for entry in log.state.expired(now):
                if self._lanes.get(lane) is not log:
                    break
                yield entry
