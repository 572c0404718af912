"""Plugin state: keys with values, and timers. All of it is in memory, with a copy in the store."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from hookmq.model.errors import PluginError
from hookmq.model.settings import BrokerSettings
from hookmq.storage.records import DropState, PutState, Record, state_space, timer_space

_FEW: Final = 64
"""A heap is not rebuilt for this many replaced and cancelled timers or fewer."""


class PluginTimer:
    """A timer. `when` is the time of the next call in epoch seconds: `at`, or later after failures."""

    __slots__ = ("at", "data", "failures", "in_heap", "key", "order", "when")

    def __init__(self, key: str, at: float, data: bytes, order: int) -> None:
        self.key = key
        self.at = at
        self.data = data
        self.when = at
        self.order = order
        self.failures = 0
        self.in_heap = False

    def __lt__(self, other: "PluginTimer") -> bool:
        return self.when < other.when or (self.when == other.when and self.order < other.order)


class PluginSpace:
    """The keys and timers of one plugin id.

    Limits are taken from the settings at the time of the call. A change that would exceed a limit raises PluginError
    and changes nothing.
    """

    __slots__ = (
        "_heap", "_sorted", "newest", "plugin", "running", "size", "timers", "values", "warned",
    )  # fmt: skip

    def __init__(self, plugin: str) -> None:
        self.plugin = plugin
        self.values: dict[str, bytes] = {}
        self.timers: dict[str, PluginTimer] = {}
        self.size = 0
        """Bytes of all keys, values and timers."""
        self.running: set[str] = set()
        """Keys of the timers whose hook is running."""
        self._sorted: list[str] | None = None
        """The keys of `values` in order, once they have been listed."""
        self._heap: list[PluginTimer] = []
        self.warned = False
        """Whether the log already contains a warning that this plugin's state is not durable."""
        self.newest = 0
        """The number of the most recently set timer."""

    @property
    def keys(self) -> int:
        """The number of keys and timers."""
        return len(self.values) + len(self.timers)

    # --- values -----------------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, bounds: BrokerSettings | None) -> None:
        """Set the value of a key. `bounds` is None for state loaded from the store."""
        values = self.values
        old = values.get(key)
        if old is None:
            size = len(key.encode()) + len(value)
            self._admit(size, 1, bounds)
            if self._sorted is not None:
                insort(self._sorted, key)
        else:
            size = len(value) - len(old)
            self._admit(size, 0, bounds)
        values[key] = value
        self.size += size

    def delete(self, key: str) -> bool:
        """Delete a key, and return whether it existed."""
        value = self.values.pop(key, None)
        if value is None:
            return False
        self.size -= len(key.encode()) + len(value)
        ordered = self._sorted
        if ordered is not None:
            del ordered[bisect_left(ordered, key)]
        return True

    def page(self, prefix: str, after: str | None, limit: int) -> tuple[list[str], bool]:
        """Return, in order, up to `limit` keys after `after` that have the prefix, and whether there are more."""
        ordered = self._sorted
        if ordered is None:
            ordered = self._sorted = sorted(self.values)
        start = bisect_left(ordered, prefix) if after is None else bisect_right(ordered, after)
        found: list[str] = []
        for index in range(start, len(ordered)):
            key = ordered[index]
            if not key.startswith(prefix):
                break
            if len(found) == limit:
                return found, True
            found.append(key)
        return found, False

    # --- timers -----------------------------------------------------------------------------------------------------

    def set_timer(self, key: str, at: float, data: bytes, bounds: BrokerSettings | None) -> None:
        """Set a timer, or replace the one with the same key."""
        old = self.timers.get(key)
        if old is None:
            size = len(key.encode()) + len(data)
            self._admit(size, 1, bounds)
        else:
            size = len(data) - len(old.data)
            self._admit(size, 0, bounds)
        self.newest += 1
        timer = self.timers[key] = PluginTimer(key, at, data, self.newest)
        self.size += size
        if key not in self.running:  # else it is pushed when the call ends
            self.push(timer)

    def drop_timer(self, key: str) -> bool:
        """Delete a timer, and return whether it existed."""
        timer = self.timers.pop(key, None)
        if timer is None:
            return False
        self.size -= len(key.encode()) + len(timer.data)
        return True

    def push(self, timer: PluginTimer) -> None:
        """Add a timer to the heap."""
        heap = self._heap
        if len(heap) > _FEW and len(heap) > 2 * len(self.timers):
            heap = self._heap = [one for one in heap if self.timers.get(one.key) is one]
            heapify(heap)
        timer.in_heap = True
        heappush(heap, timer)

    def next_timer(self) -> PluginTimer | None:
        """Return the timer that is due first. Return None if there are no timers, or if all of them are running."""
        heap = self._heap
        while heap:
            timer = heap[0]
            if self.timers.get(timer.key) is timer and timer.key not in self.running:
                return timer
            heappop(heap)  # it was replaced or cancelled, or its predecessor is running
            timer.in_heap = False
        return None

    def take(self, timer: PluginTimer) -> None:
        """Remove `next_timer` from the heap, because its hook is being called."""
        heappop(self._heap)
        timer.in_heap = False
        self.running.add(timer.key)

    # --- bounds -----------------------------------------------------------------------------------------------------

    def _admit(self, size: int, keys: int, bounds: BrokerSettings | None) -> None:
        """Raise PluginError if `size` more bytes or `keys` more keys would exceed a limit. Changes that reduce the
        state are always allowed.
        """
        if bounds is None:
            return
        if keys and self.keys + keys > bounds.plugin_state_keys:
            raise PluginError(
                self.plugin,
                f"the state would have {self.keys + keys} keys and timers: broker.plugin_state_keys allows"
                f" {bounds.plugin_state_keys}",
            )
        if size > 0 and self.size + size > bounds.plugin_state_bytes:
            raise PluginError(
                self.plugin,
                f"the state would have {self.size + size} bytes: broker.plugin_state_bytes allows"
                f" {bounds.plugin_state_bytes}",
            )


class PluginStates:
    """The spaces of all plugins, configured or not. `record` adds a record to the batch."""

    __slots__ = ("_record", "changes", "loaded", "spaces")

    def __init__(self, record: Callable[[Record], None]) -> None:
        self._record = record
        self.spaces: dict[str, PluginSpace] = {}
        self.changes = 0
        """The number of changes since startup."""
        self.loaded = False
        """Whether the stored state of all plugins has been loaded."""

    def space(self, plugin: str) -> PluginSpace:
        """Return a plugin's space, creating it if necessary."""
        space = self.spaces.get(plugin)
        if space is None:
            space = self.spaces[plugin] = PluginSpace(plugin)
        return space

    def load(self, kept: PutState) -> None:
        """Add state loaded from the store."""
        space = self.space(kept.space[2:])
        if kept.due is None:
            space.put(kept.key, kept.value, None)
        else:
            space.set_timer(kept.key, kept.due, kept.value, None)

    def put(self, space: PluginSpace, key: str, value: bytes, bounds: BrokerSettings) -> None:
        """Set the value of a key and record it."""
        space.put(key, value, bounds)
        self.changes += 1
        self._record(PutState(state_space(space.plugin), key, value))

    def delete(self, space: PluginSpace, key: str) -> bool:
        """Delete a key and record the deletion. Return whether the key existed."""
        if not space.delete(key):
            return False
        self.changes += 1
        self._record(DropState(state_space(space.plugin), key))
        return True

    def set_timer(
        self, space: PluginSpace, key: str, at: float, data: bytes, bounds: BrokerSettings
    ) -> None:
        """Set a timer and record it."""
        space.set_timer(key, at, data, bounds)
        self.changes += 1
        self._record(PutState(timer_space(space.plugin), key, data, at))

    def drop_timer(self, space: PluginSpace, key: str) -> bool:
        """Delete a timer and record the deletion. Return whether the timer existed."""
        if not space.drop_timer(key):
            return False
        self.changes += 1
        self._record(DropState(timer_space(space.plugin), key))
        return True
