"""Detect when another address takes over a session, and when a session is taken over repeatedly."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Session:
    host: str = ""
    """The address of a connection that was taken over, until its successor is known."""
    times: deque[float] = field(default_factory=deque)


class Takeovers:
    """The recent takeovers of up to `most` sessions. If there are more, the oldest are forgotten.

    A session flaps if it is taken over more than `count` times within `period` seconds.
    """

    def __init__(self, count: int, period: float, most: int) -> None:
        self._count = count
        self._period = period
        self._most = most
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def taken(self, client_id: str, host: str, now: float) -> bool:
        """Record that a connection from `host` lost its session. Return whether the session has just started to flap."""
        found = self._sessions.pop(client_id, None) or _Session()
        if len(self._sessions) >= self._most:
            self._sessions.popitem(last=False)
        self._sessions[client_id] = found
        found.host = host
        while found.times and found.times[0] <= now - self._period:
            found.times.popleft()
        found.times.append(now)
        if len(found.times) <= self._count:
            return False
        found.times.clear()
        return True

    def opened(self, client_id: str, host: str) -> str:
        """Record that a connection from `host` now has the session. Return the address of the connection that lost it,
        or '' if the address is the same or unknown.
        """
        found = self._sessions.get(client_id)
        if found is None:
            return ""
        before, found.host = found.host, ""
        return before if before != host else ""
