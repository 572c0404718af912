"""Bans that apply to all nodes of a cluster. Without a cluster, nothing is shared."""

import json
from collections.abc import Callable
from typing import Final, Protocol

from hookmq.plugin import BrokerHandle
from hookmq_toolkit.shared_facts import SERVICE, SharedFacts

from hookmq_ratelimit.bans import Banned, Key

_PARTS: Final = 3
"""The number of parts of a key."""


class BanReceiver(Protocol):
    """Test how the plugin applies the bans of other nodes."""

    def banned_elsewhere(self, key: Key, seconds: float, why: str) -> None:
        """Another node, or this one, has banned `key` for `seconds` from now on."""

    def unbanned_elsewhere(self, key: Key) -> None:
        """Another node, or this one, has lifted the bans of `key`."""


class SharedBans:
    """Passes bans to the other nodes, and those of the other nodes to `receiver`. `space` is the plugin's id."""

    def __init__(self, space: str, receiver: BanReceiver) -> None:
        self._space = space
        self._receiver = receiver
        self._facts: SharedFacts | None = None
        self._end: Callable[[], None] | None = None

    def open(self, broker: BrokerHandle) -> None:
        """Receive the bans of the cluster, if the broker is in one."""
        if self._facts is not None:
            return
        for found in broker.services(SERVICE).values():
            if isinstance(found, SharedFacts):
                self._facts = found
                self._end = found.follow(self._space, self._changed)
                return

    def close(self) -> None:
        """Receive no more bans."""
        if self._end is not None:
            self._end()
            self._end = self._facts = None

    def add(self, ban: Banned, now: float) -> None:
        """Ban a key on all nodes."""
        if self._facts is not None:
            self._facts.put(self._space, _encode(ban.key), ban.why.encode(), ban.until - now)

    def lift(self, key: Key) -> None:
        """Lift the ban of a key on all nodes."""
        if self._facts is not None:
            self._facts.withdraw(self._space, _encode(key))

    def _changed(self, key: str, value: bytes | None, seconds: float) -> None:
        parts = json.loads(key)
        if len(parts) != _PARTS:
            raise ValueError(f"the key of a ban has {len(parts)} parts")
        kind, name, user = map(str, parts)
        if value is None:
            self._receiver.unbanned_elsewhere((kind, name, user))
        else:
            self._receiver.banned_elsewhere((kind, name, user), seconds, value.decode())


def _encode(key: Key) -> str:
    return json.dumps(key)
