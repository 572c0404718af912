"""A plugin that keeps state and sets timers, and a ledger of the changes that were confirmed to the plugin.

After a crash, the broker must have the state after the last confirmed change, or after a later one. Changes that a hook
makes together are kept or lost together. A timer's hook is called when the timer is due. The call is repeated until the
hook has returned.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, NamedTuple

from hookmq.broker import Broker
from hookmq.plugin import BrokerHandle
from hookmq.storage.records import PutState, state_space, timer_space
from hookmq_testing.runtime import EPOCH, VirtualRuntime

from simulator.disk import Disk

PLUGIN: Final = "keeper"
KEYS: Final = ("a", "b", "c", "d")
_STATE: Final = state_space(PLUGIN)
_TIMERS: Final = timer_space(PLUGIN)
Place = tuple[str, str]
Kept = dict[Place, tuple[bytes, float | None]]


class Change(NamedTuple):
    """A change to a key: the new value, or None if the key is deleted."""

    space: str
    key: str
    value: bytes | None = None
    due: float | None = None


def _apply(kept: Kept, changes: tuple[Change, ...]) -> None:
    for space, key, value, due in changes:
        if value is None:
            kept.pop((space, key), None)
        else:
            kept[space, key] = (value, due)


class Keeper:
    """The ledger of one world. `act` makes a change, and `check_...` compare the broker and the disk with the ledger."""

    def __init__(self, random: Random, complain: Callable[[str, str], None]) -> None:
        self.random = random
        self.complain = complain
        self.sure: Kept = {}
        """The state after the first `known` changes, whose commit was confirmed."""
        self.known = 0
        self.made: list[tuple[Change, ...]] = []
        """The changes made since then, in groups. The changes of one hook are a group."""
        self.now: Kept = {}
        """The state after all changes."""
        self.number = 0
        self.calls = 0

    def _change(self, *changes: Change) -> int:
        """Record changes that belong together. Return the total number of changes so far."""
        self.made.append(changes)
        _apply(self.now, changes)
        return self.known + len(self.made)

    def _confirm(self, count: int) -> None:
        """Record that the first `count` changes are committed."""
        while self.known < count:
            _apply(self.sure, self.made.pop(0))
            self.known += 1

    def _value(self) -> bytes:
        self.number += 1
        return b"%d" % self.number + b"." * self.random.choice((0, 0, 10, 300))

    def act(self, broker: BrokerHandle, runtime: VirtualRuntime) -> None:
        """Make one change, and record when it is confirmed."""
        random = self.random
        key = random.choice(KEYS)
        kind = random.randrange(8)
        if kind < 4:
            value = self._value()
            count = self._change(Change(_STATE, key, value))
            done: Any = broker.state.put(key, value)
        elif kind == 4:
            count = self._change(Change(_STATE, key))
            done = broker.state.delete(key)
        elif kind < 7:
            value, at = self._value(), broker.time() + random.choice((-1.0, 0.0, 0.5, 3.0))
            count = self._change(Change(_TIMERS, key, value, at))
            done = broker.set_timer(key, at, value)
        else:
            count = self._change(Change(_TIMERS, key))
            done = broker.cancel_timer(key)

        async def wait() -> None:
            await done
            self._confirm(count)

        runtime.spawn(wait(), lambda result, error: None)

    def called(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        """Check a call to `on_timer` and note it in the plugin's state. The hook returns at once."""
        self.calls += 1
        found = self.now.get((_TIMERS, key))
        if found is None or found[0] != data:
            self.complain("13 timer", f"{key} is called with {data!r} instead of {found}")
            return
        if found[1] is not None and found[1] > broker.time() + 1e-6:
            self.complain("13 timer", f"{key} is called {found[1] - broker.time()} s early")
        value = self._value()
        last = Change(_STATE, "called", value)
        if self.random.random() < 0.2:
            at = broker.time() + 0.5
            self._change(last, Change(_TIMERS, key, value, at))
            broker.set_timer(key, at, value)
        else:
            self._change(last, Change(_TIMERS, key))
        broker.state.put("called", value)

    def check_started(self, broker: Broker) -> None:
        """Check that the state loaded by a new process contains every confirmed change."""
        loaded: Kept = {}
        space = broker.state.plugin_states.spaces.get(PLUGIN)
        if space is not None:
            loaded |= {(_STATE, key): (value, None) for key, value in space.values.items()}
            loaded |= {(_TIMERS, key): (one.data, one.at) for key, one in space.timers.items()}
        if not self._is_possible(loaded):
            self.complain(
                "13 state", f"loaded {_shown(loaded)}; it was promised {_shown(self.sure)}"
            )
        self.sure, self.now, self.made = dict(loaded), dict(loaded), []

    def _is_possible(self, loaded: Kept) -> bool:
        state = dict(self.sure)
        if state == loaded:
            return True
        for changes in self.made:
            _apply(state, changes)
            if state == loaded:
                return True
        return False

    def check_settled(self, broker: Broker, disk: Disk | None) -> None:
        """Check that memory, disk and ledger agree and that no timer is overdue."""
        overdue = [
            key
            for (space, key), (_, due) in self.now.items()
            if space == _TIMERS and due is not None and due < EPOCH + broker.state.runtime.now() - 1
        ]
        if overdue:
            self.complain("liveness", f"timers that were not called: {overdue}")
        if disk is not None:
            stored = _stored(disk.image.plugin_state)
            if stored != self.now:
                self.complain("13 disk", f"{_shown(stored)} on disk, not {_shown(self.now)}")

    def begin_anew(self) -> None:
        """Forget everything, because the broker now uses a different store."""
        self.sure, self.now, self.made = {}, {}, []


def _stored(records: Mapping[Place, PutState]) -> Kept:
    """Return the keeper's records, leaving out those of other plugins."""
    mine = (_STATE, _TIMERS)
    return {place: (one.value, one.due) for place, one in records.items() if place[0] in mine}


def _shown(kept: Kept) -> dict[Place, tuple[bytes, float | None]]:
    return {place: (value[:8], due) for place, (value, due) in sorted(kept.items())}
