"""What the clients of this node want, and its announcements to other nodes.

Subscriptions are counted per target, share name and topic filter. Only changes of an entry's announced value are logged.
Each other node has a feed: it announces all entries first, and then follows the log. The log contains entries, not their
values, so that a slow feed announces the newest value.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hookmq.plugin import Subscription
from hookmq.storage_api import group_owner

from hookmq_cluster.announcements import (
    NODE,
    Begin,
    BeginAll,
    Change,
    Drop,
    End,
    EndAll,
    Leave,
    Put,
    encode_changes,
)
from hookmq_cluster.subscription_counts import Counted, Key, LocalGroup

SLICE: Final = 500
"""The largest number of entries in one announcement."""
_SLICE_BYTES: Final = 128 * 1024
"""Bytes of share names and topic filters after which an announcement ends. One entry can have another 64 KiB."""
_TRIM: Final = 1024


class Wait:
    """A call that waits for several feeds."""

    __slots__ = ("done", "feeds")

    def __init__(self, done: Callable[[], None]) -> None:
        self.done = done
        self.feeds = 0


class LocalInterest:
    """All subscriptions of this node.

    - `home`: the node's home lane.
    - `lane_of`: returns the lane of a durable session, or None for the home lane.
    - `changed`: called when there is something to announce.
    - `lane_changed`: called with each changed entry of a lane that this node prepares to leave.
    """

    def __init__(
        self, home: str, lane_of: Callable[[str], str | None], changed: Callable[[], None]
    ) -> None:
        self.lanes: dict[str, int] = {}
        """The lanes that this node announces, and their fences."""
        self.moving: set[str] = set()
        """Clients whose subscriptions moved from the node to a lane, as long as other nodes may not know it."""
        self.groups: dict[str, LocalGroup] = {}
        self.prepared: dict[str, Callable[[Put | Drop], None]] = {}
        """Called with each changed entry of a lane that this node prepares to leave."""
        self._moved_last: set[str] = set()
        self._moves_settle = False
        self._home = home
        self._lane_of = lane_of
        self._changed = changed
        self._held: dict[tuple[str, str], tuple[Counted, int]] = {}
        self._tables: dict[str, dict[Key, Counted]] = {NODE: {}}
        self._log: list[Counted | Change] = []
        self._start = 0
        """The position of the first item of `_log`."""
        self._taken = 0
        """Every feed may already have announced the items before this position."""
        self._feeds: list[LocalFeed] = []

    @property
    def end(self) -> int:
        """The position after the last item of the log."""
        return self._start + len(self._log)

    def subscribed(
        self, client_id: str, durable: bool, subscription: Subscription, added: bool
    ) -> None:
        """Count a new or changed subscription, or one less."""
        name = (client_id, subscription.filter)
        before = self._held.pop(name, None)
        if added:
            qos = subscription.qos
            target = NODE
            if durable and qos:
                target = self._lane_of(client_id) or self._home
            entry = self._entry(target, (subscription.share, subscription.topic_filter))
            self._held[name] = (entry, qos)
            self._count(entry, qos, 1)
            if before is not None and target != NODE and before[0].target == NODE:
                self._moved(client_id)
        if before is not None:
            self._count(*before, -1)

    def online(self, owner: str, members: int) -> None:
        """Note the number of online members of a shared subscription."""
        group = self.groups.get(owner)
        if group is None or group.online == members:
            return
        group.online = members
        main = group.main()
        if main is not None:
            self._mark(main)

    def _moved(self, client_id: str) -> None:
        """Note that a subscription moved from the node to a lane. Other nodes may not know it yet."""
        self.moving.add(client_id)
        self._moved_last.add(client_id)
        if not self._moves_settle:
            self._settle_moves()

    def _settle_moves(self) -> None:
        moved, self._moved_last = self._moved_last, set()

        def settled() -> None:
            self._moves_settle = False
            self.moving.difference_update(moved - self._moved_last)
            if self._moved_last:
                self._settle_moves()

        self._moves_settle = True
        if self.settled(settled):
            settled()

    def _entry(self, target: str, key: Key) -> Counted:
        table = self._tables.setdefault(target, {})
        entry = table.get(key)
        if entry is None:
            group = None
            share, topic_filter = key
            if share is not None:
                owner = group_owner(share, topic_filter)
                group = self.groups.get(owner)
                if group is None:
                    group = self.groups[owner] = LocalGroup(self.lanes)
            entry = table[key] = Counted(target, key, group)
            if group is not None:
                group.entries[target] = entry
        return entry

    def _count(self, entry: Counted, qos: int, step: int) -> None:
        before = entry.qos
        entry.count(qos, step)
        after = entry.qos
        if after == before:
            return
        if before < 0 and entry.group is not None:
            self._mark_group(entry.group)  # the node's own entry may not be announced any more
            return
        if after < 0:
            table = self._tables.get(entry.target)
            if table is not None and table.get(entry.key) is entry:
                del table[entry.key]
                group = entry.group
                if group is not None:
                    del group.entries[entry.target]
                    if group.entries:
                        self._mark_group(group)
                    else:
                        share, topic_filter = entry.key
                        self.groups.pop(group_owner(share or "", topic_filter), None)
        self._mark(entry)

    def _mark_group(self, group: LocalGroup) -> None:
        """Announce all entries of a group: first those that exist, so that the group never seems to have none."""
        for entry in sorted(group.entries.values(), key=lambda entry: not entry.announced):
            self._mark(entry)

    def _mark(self, entry: Counted) -> None:
        """Announce the newest value of `entry`."""
        target = entry.target
        if target != NODE:
            if target in self.prepared:
                self.prepared[target](entry.change())
            if target not in self.lanes:
                return
        # An entry that no feed has reached is announced with its newest value anyway. Only the end of an entry must not
        # be announced before the entries that replace it, which are logged already.
        if self._feeds and (entry.position < self._taken or not entry.announced):
            entry.position = self.end
            self._log.append(entry)
            self._changed()

    # --- lanes -------------------------------------------------------------------------------------------------------

    def entries(self, lane: str) -> Iterator[Counted]:
        """Yield the entries of `lane`."""
        return iter(list(self._tables.get(lane, {}).values()))

    def own(self, lane: str, fence: int) -> None:
        """Announce `lane` and all its entries."""
        self.lanes[lane] = fence
        if self._feeds:
            self._log.append(Begin(lane, fence))
            entries = self._tables.get(lane, {}).values()
            for position, entry in enumerate(entries, self.end):
                entry.position = position
            self._log.extend(entries)
            self._log.append(End(lane, fence))
            for group in {entry.group: None for entry in entries if entry.group is not None}:
                self._mark_group(group)
            self._changed()

    def leave(self, lane: str) -> None:
        """Do not announce `lane` any more. Forget its entries."""
        if self.lanes.pop(lane, None) is not None and self._feeds:
            self._log.append(Leave(lane))
            self._changed()
        self.prepared.pop(lane, None)
        for key, entry in self._tables.pop(lane, {}).items():
            group = entry.group
            if group is not None and group.entries.get(lane) is entry:
                del group.entries[lane]
                if group.entries:
                    self._mark_group(group)
                else:
                    self.groups.pop(group_owner(key[0] or "", key[1]), None)

    # --- feeds -------------------------------------------------------------------------------------------------------

    def feed(self) -> "LocalFeed":
        """Return a new feed."""
        feed = LocalFeed(self)
        if self._feeds:
            for wait in {wait for other in self._feeds for _, wait in other.waits}:
                feed.add(0, wait)
        self._feeds.append(feed)
        return feed

    def end_feed(self, feed: "LocalFeed") -> None:
        """Forget the feed of a node that has left. Nothing waits for it any more."""
        self._feeds.remove(feed)
        self._trim()
        feed.release()

    def settled(self, done: Callable[[], None]) -> bool:
        """Return True if all feeds have announced everything. Otherwise return False and call `done` later."""
        end = self.end
        behind = [feed for feed in self._feeds if feed.acked_position < end]
        if not behind:
            return True
        wait = Wait(done)
        for feed in behind:
            feed.add(end, wait)
        return False

    def everything(self) -> list[Counted]:
        """Return all entries to announce to a new node."""
        self._taken = self.end
        found = list(self._tables[NODE].values())
        for lane in self.lanes:
            found.extend(self._tables.get(lane, {}).values())
        return found

    def items(self, position: int, count: int) -> Iterable[Counted | Change]:
        """Return up to `count` items of the log from `position`."""
        skip = position - self._start
        return self._log[skip : skip + count]

    def took(self, position: int) -> None:
        """Note that a feed has announced the items before `position`."""
        self._taken = max(self._taken, position)
        self._trim()

    def _trim(self) -> None:
        first = min((feed.position for feed in self._feeds), default=self.end)
        if first - self._start >= _TRIM or first == self.end:
            del self._log[: first - self._start]
            self._start = first


def _size(key: Key) -> int:
    share, topic_filter = key
    size = len(topic_filter.encode(errors="surrogatepass"))
    return size if share is None else size + len(share.encode(errors="surrogatepass"))


class LocalFeed:
    """The announcements for one other node. See `hookmq_cluster.links.Feed`."""

    def __init__(self, interest: LocalInterest) -> None:
        self._interest = interest
        self._all: list[Counted] | None = []
        """Entries to announce before the log, or None."""
        self._suspended = False
        self._next = 0
        self._lanes: dict[str, int] = {}
        self._flight: deque[int] = deque()
        """For each announcement without acknowledgement, the position up to which the node then knows the log."""
        self.waits: deque[tuple[int, Wait]] = deque()
        self.position = interest.end
        """The position in the log of the next item to announce."""
        self.acked_position = -1
        """The position up to which the node knows the log; -1 if it does not know everything before the log."""

    def suspend(self) -> None:
        """See `Feed.suspend`."""
        self._suspended = True
        self.acked_position = -1

    def begin(self) -> None:
        """See `Feed.begin`."""
        self._suspended = False
        interest = self._interest
        self._all = interest.everything()
        self._next = 0
        self._lanes = dict(interest.lanes)
        self._flight.clear()
        self.position = interest.end
        self.acked_position = -1

    def next(self) -> bytes | None:
        """See `Feed.next`."""
        changes: list[Change] = []
        if self._all is not None:
            if not self._next:
                changes.append(BeginAll())
                changes.extend(Begin(lane, fence) for lane, fence in self._lanes.items())
            self._next += self._add(changes, self._all[self._next : self._next + SLICE], False)
            if self._next < len(self._all):
                self._flight.append(-1)
                return encode_changes(changes)
            self._all = None
            lanes = self._interest.lanes
            changes.extend(
                End(lane, fence) for lane, fence in self._lanes.items() if lanes.get(lane) == fence
            )
            changes.append(EndAll())
        else:
            items = self._interest.items(self.position, SLICE)
            if not items:
                return None
            self.position += self._add(changes, items, True)
            self._interest.took(self.position)
        self._flight.append(self.position)
        return encode_changes(changes)

    def _add(self, changes: list[Change], items: Iterable[Counted | Change], in_log: bool) -> int:
        """Add the changes of `items`, which are `in_log` at this feed's position, or before the log. Return their number,
        which is smaller if the announcement is full.

        The end of an entry is announced where it was logged last, and not before.
        """
        here = self.position - 1
        used = count = 0
        lanes = self._interest.lanes
        for item in items:
            count += 1
            here += in_log
            if not isinstance(item, Counted):
                # The next owner announces the entries of a lane that this node has left.
                if not isinstance(item, Begin | End) or lanes.get(item.lane) == item.fence:
                    changes.append(item)
                continue
            if item.target != NODE and item.target not in lanes:
                continue
            if item.announced or (item.qos >= 0 and item.position > here):
                changes.append(item.put())
            elif in_log and item.position == here:
                changes.append(Drop(item.target, *item.key))
            used += _size(item.key)
            if used >= _SLICE_BYTES:
                break
        return count

    def acked(self) -> None:
        """See `Feed.acked`."""
        position = self._flight.popleft()
        if position < 0 or self._suspended:
            return
        self.acked_position = position
        while self.waits and self.waits[0][0] <= position:
            self._finish(self.waits.popleft()[1])

    def add(self, position: int, wait: Wait) -> None:
        """Let `wait` wait until the node knows the log up to `position`."""
        wait.feeds += 1
        self.waits.append((position, wait))

    def release(self) -> None:
        """Let nothing wait any more."""
        while self.waits:
            self._finish(self.waits.popleft()[1])

    def _finish(self, wait: Wait) -> None:
        wait.feeds -= 1
        if not wait.feeds:
            wait.done()
