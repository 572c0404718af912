"""Counts of subscriptions that other nodes need not distinguish."""

from collections.abc import Container

from hookmq_cluster.announcements import NODE, Drop, Put

Key = tuple[str | None, str]
"""A share name and a topic filter."""


class Counted:
    """The subscriptions of one target, share name and topic filter, counted per QoS."""

    __slots__ = ("_one", "_two", "_zero", "group", "key", "position", "target")

    def __init__(self, target: str, key: Key, group: "LocalGroup | None") -> None:
        self.target = target
        self.key = key
        self.group = group
        self._zero = self._one = self._two = 0
        self.position = -1
        """Where the entry was last logged."""

    @property
    def qos(self) -> int:
        """The highest QoS, or -1 if there is no subscription."""
        return 2 if self._two else 1 if self._one else 0 if self._zero else -1

    def count(self, qos: int, step: int) -> None:
        """Count one subscription more, or one less."""
        if qos == 1:
            self._one += step
        elif qos:
            self._two += step
        else:
            self._zero += step

    @property
    def announced(self) -> bool:
        """Whether other nodes must know the entry."""
        return self.qos >= 0 and (self.group is None or self.group.announces(self))

    def change(self) -> Put | Drop:
        """Return the value to announce."""
        return self.put() if self.announced else Drop(self.target, *self.key)

    def put(self) -> Put:
        """Return the value to announce while there are subscriptions."""
        group = self.group
        online = group.online if group is not None and group.main() is self else 0
        return Put(self.target, *self.key, self.qos, online)


class LocalGroup:
    """A shared subscription with members on this node.

    It is one group here, but other nodes can reach it through several targets. If one of `lanes`, the lanes that this
    node announces, has a member, the node itself is not announced, because a lane stores messages.
    """

    __slots__ = ("_lanes", "entries", "online")

    def __init__(self, lanes: Container[str]) -> None:
        self.entries: dict[str, Counted] = {}
        self.online = 0
        self._lanes = lanes

    def main(self) -> Counted | None:
        """Return the entry that announces the online members."""
        lanes = [target for target in self.entries if target in self._lanes]
        return self.entries.get(min(lanes, default=NODE))

    def announces(self, entry: Counted) -> bool:
        """Return whether an entry of this group is announced."""
        return entry.target != NODE or not any(lane in self._lanes for lane in self.entries)
