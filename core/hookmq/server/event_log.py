"""The log, for plugins that follow it or change its level.

It keeps the latest events in a bounded list, at the cost of one object per event, and passes new events to followers.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from hookmq.model.log_events import RECENT, LogEvent, LogLevel, LogLevels
from hookmq.model.runtime import Promise, Runtime
from hookmq.server.logs import LEVELS, DropSecrets, cut_text, record_parts

BUFFER: Final = 1000
"""Maximum number of events waiting to be read by one follower."""


class ServerLog:
    """Implements `hookmq.model.log_events.EventLog` for this process's log. `configured` returns ``log.level``. The
    caller must call `close` at the end.
    """

    def __init__(self, runtime: Runtime, configured: Callable[[], LogLevel]) -> None:
        self._runtime = runtime
        self._configured = configured
        self._logger = logging.getLogger("hookmq")
        self._recorder = _Recorder()
        logging.getLogger().addHandler(self._recorder)

    def levels(self) -> LogLevels:
        """Return the level in force and the configured level."""
        return LogLevels(_name(self._logger.getEffectiveLevel()), self._configured())

    def set_level(self, level: LogLevel) -> None:
        """Log events at `level` and above. `hookmq.server.logs.configure`, which a reload calls, replaces the level."""
        self._logger.setLevel(LEVELS[level])

    def follow(self, recent: int, ending: Callable[[], None]) -> "Follower":
        """Follow the log, starting with the latest `recent` events."""
        follower = Follower(self._runtime, self._recorder, ending)
        self._recorder.add(follower, recent)
        return follower

    def close(self) -> None:
        """Stop recording, and end all followers."""
        logging.getLogger().removeHandler(self._recorder)
        self._recorder.close()
        for follower in self._recorder.followers:
            follower.stop("the broker has ended")


class Follower:
    """Implements `hookmq.model.log_events.LogFollower`."""

    def __init__(self, runtime: Runtime, recorder: "_Recorder", ending: Callable[[], None]) -> None:
        self.ended = ""
        self.skipped = 0
        self._runtime = runtime
        self._recorder = recorder
        self._ending = ending
        self._events: deque[LogEvent] = deque()
        self._reader: Promise | None = None
        self._waking = False

    def offer(self, event: LogEvent) -> None:
        """Add an event, or count it as skipped. Any thread may call this, but only one at a time."""
        if len(self._events) >= BUFFER:
            self.skipped += 1
            return
        self._events.append(event)
        if not self._waking:
            self._waking = True
            with suppress(RuntimeError):  # the loop has closed
                self._runtime.call_threadsafe(self._wake)

    def _wake(self) -> None:
        # An event that is added after this line wakes the reader again.
        self._waking = False
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def stop(self, reason: str = "stopped") -> None:
        """Stop following."""
        if self.ended:
            return
        self.ended = reason or "stopped"
        self._recorder.remove(self)
        self._ending()
        self._wake()

    def __aiter__(self) -> "Follower":
        return self

    async def __anext__(self) -> LogEvent:
        while not self._events:
            if self.ended:
                raise StopAsyncIteration
            self._reader = self._runtime.promise()
            await self._reader
        return self._events.popleft()


class _Recorder(logging.Handler):
    """Keeps the latest events and offers each new event to the followers."""

    def __init__(self) -> None:
        super().__init__()
        self.followers: tuple[Follower, ...] = ()
        self._recent: deque[LogEvent] = deque(maxlen=RECENT)
        self.addFilter(DropSecrets())

    def add(self, follower: Follower, recent: int) -> None:
        """Offer the latest `recent` events and all new events to `follower`."""
        self.acquire()  # as `emit` does
        try:
            for event in tuple(self._recent)[-recent:] if recent > 0 else ():
                follower.offer(event)
            self.followers = (*self.followers, follower)
        finally:
            self.release()

    def remove(self, follower: Follower) -> None:
        """Stop offering events to `follower`."""
        self.acquire()
        try:
            self.followers = tuple(one for one in self.followers if one is not follower)
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record's event. Called while the handler's lock is held."""
        try:
            event = _event(record)
        except Exception:
            self.handleError(record)
            return
        self._recent.append(event)
        for follower in self.followers:
            follower.offer(event)


def _event(record: logging.LogRecord) -> LogEvent:
    name, fields = record_parts(record)
    found = dict(fields)  # JSON values of bounded size, because of `DropSecrets`
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        # Not the exception itself, which would keep everything alive that its traceback refers to.
        found["traceback"] = cut_text(f"{type(error).__name__}: {error}")
    return LogEvent(record.created, _name(record.levelno), cut_text(name), found)


def _name(number: int) -> LogLevel:
    """Return the name of a standard library level. CRITICAL becomes ``error``."""
    for name, least in reversed(LEVELS.items()):
        if number >= least:
            return cast(LogLevel, name)
    return "debug"
