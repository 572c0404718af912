"""Call `on_timer` when plugins' timers are due.

A plugin has at most `PARALLEL` calls in progress, and at most one for each key. After a failure, a timer is called
again after a pause, which doubles with each failure. No timer is called before the plugin's `on_ready` has returned, or
while the broker is stopping.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from hookmq.broker.plugin_state import PluginSpace, PluginStates, PluginTimer
from hookmq.broker.timers import Deadline, TimerQueue
from hookmq.hooks.async_calls import run_alone
from hookmq.hooks.manager import Hooks
from hookmq.hooks.recursion import at_depth
from hookmq.model.runtime import Runtime

PARALLEL: Final = 16
"""Maximum number of calls in progress for one plugin."""
SLICE: Final = 64
"""Maximum number of calls to start in one turn."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0
"""Shortest and longest pause in seconds before a failed timer is called again."""
LOOK_AGAIN: Final = 60.0
"""Longest time in seconds between checks, because the wall clock may be changed."""


class TimerHost(Protocol):
    """The parts of the broker's state that timers need."""

    runtime: Runtime
    hooks: Hooks
    deadlines: TimerQueue
    plugin_states: PluginStates
    draining: bool


class PluginTimers:
    """Calls the timers of all plugins. `schedule` ends the turn, which commits the records of a call."""

    __slots__ = ("_armed", "_deadline", "_host", "_schedule")

    def __init__(self, host: TimerHost, schedule: Callable[[], None]) -> None:
        self._host = host
        self._schedule = schedule
        self._deadline: Deadline | None = None
        self._armed = 0.0
        """The time that `_deadline` is set for, in epoch seconds."""

    def wake(self) -> None:
        """Check for due timers in a later turn. Call this after setting a timer, and when a plugin becomes ready."""
        host = self._host
        if host.draining:
            return
        first = -1.0
        waits = False
        for space in host.plugin_states.spaces.values():
            timer = self._callable(space)
            if timer is not None and (not waits or timer.when < first):
                first, waits = timer.when, True
        if not waits:
            self._disarm()
        elif self._deadline is None or first < self._armed:
            self._disarm()
            self._armed = first
            pause = min(max(0.0, first - host.runtime.time()), LOOK_AGAIN)
            self._deadline = host.deadlines.after(pause, self._look)

    def _disarm(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.cancel()

    def _callable(self, space: PluginSpace) -> PluginTimer | None:
        """Return the plugin's next timer, or None if the plugin cannot be called now."""
        if not space.timers or len(space.running) >= PARALLEL:
            return None
        timer = space.next_timer()
        if timer is None or self._host.hooks.timer_call(space.plugin) is None:
            return None
        return timer

    def _look(self) -> None:
        self._deadline = None
        host = self._host
        now = host.runtime.time()
        left = SLICE
        for space in list(host.plugin_states.spaces.values()):
            newest = space.newest
            while left and not host.draining:
                timer = self._callable(space)
                if timer is None or timer.when > now or timer.order > newest:
                    break  # or it was set by one of these calls: run it in a later turn
                left -= 1
                self._call(space, timer)
        self.wake()

    def _call(self, space: PluginSpace, timer: PluginTimer) -> None:
        host = self._host
        call = host.hooks.timer_call(space.plugin)
        if call is None:
            return
        space.take(timer)
        done = partial(self._called, space, timer)
        # No other hook caused this call, so the depth starts at 0.
        at_depth(0, run_alone, host.runtime, call, (timer.key, timer.data), done)

    def _called(self, space: PluginSpace, timer: PluginTimer, worked: bool) -> None:
        """Delete the timer, or schedule another call. If the hook has replaced the timer, the new timer remains."""
        key = timer.key
        space.running.discard(key)
        current = space.timers.get(key)
        if current is timer:
            if worked:
                self._host.plugin_states.drop_timer(space, key)
            else:
                pause = min(FIRST_PAUSE * 2.0 ** min(timer.failures, 30), LONGEST_PAUSE)
                timer.failures += 1
                timer.when = self._host.runtime.time() + pause
                space.push(timer)
        elif current is not None and not current.in_heap:
            space.push(current)
        self._schedule()
        self.wake()
