"""Which of two connections of one client is newer, if they are on two nodes.

The clocks of nodes differ, so each connection gets a stamp: the node's clock, or slightly more than the latest stamp that
the node has heard of. A connection that follows the report of another one is therefore newer, whatever the clocks say.
"""

from typing import Final, NamedTuple

from hookmq.plugin import Runtime

_OLD: Final = 2.0
"""Seconds after which a connection is older than one that another node reports now."""
_STEP: Final = 1e-6
"""Seconds between two stamps, if the clock does not say more."""


class _Stamped(NamedTuple):
    time: float
    stamp: float


class ConnectionOrder:
    """The stamps of connections to `node` that were made in the last seconds."""

    def __init__(self, runtime: Runtime, node: str) -> None:
        self._runtime = runtime
        self._node = node
        self._latest = 0.0
        """The latest stamp of any node."""
        self._recent: dict[str, _Stamped] = {}
        self._before: dict[str, _Stamped] = {}
        """Those before `_recent`, which may be needed still."""
        self._begun = 0.0
        """When `_recent` was empty."""

    def stamp(self, client_id: str) -> float:
        """Return the stamp of a new connection of a client to this node. Report it to all other nodes."""
        now = self._runtime.now()
        if now - self._begun > _OLD:
            self._before, self._recent, self._begun = self._recent, {}, now
        self._latest = max(self._runtime.time(), self._latest + _STEP)
        self._recent[client_id] = _Stamped(now, self._latest)
        return self._latest

    def is_older(self, client_id: str, stamp: float, node: str) -> bool:
        """Return whether a client's connection to this node is older than one that another node reports now."""
        self._latest = max(self._latest, stamp)
        own = self._recent.get(client_id) or self._before.get(client_id)
        if own is None or self._runtime.now() - own.time > _OLD:
            return True
        return (own.stamp, self._node) < (stamp, node)
