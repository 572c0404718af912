"""Log events, in the form that plugins receive. See `BrokerHandle.follow_log`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

LogLevel = Literal["debug", "info", "warning", "error"]
"""The level of a log event."""
LOG_LEVELS: Final[tuple[LogLevel, ...]] = get_args(LogLevel)
"""The levels of log events, from the least to the most severe."""
RECENT: Final = 500
"""The number of events that the broker keeps for plugins that start following its log."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event of the log. `time` is in epoch seconds, and `fields` holds JSON values without secrets.

    Strings are cut after 1,000 characters. The values of an event have at most 65,536 characters in total; further values
    are left out. The field ``traceback`` is only the last line of a traceback.
    """

    time: float
    level: LogLevel
    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LogLevels:
    """The log level in force, and ``log.level`` in the configuration."""

    current: LogLevel
    configured: LogLevel


class LogFollower(Protocol):
    """Follows the log. Iterate over the events with ``async for``; the iteration ends after `stop`.

    At most 1,000 events can wait to be read. Further events are skipped.
    """

    @property
    def ended(self) -> str:
        """Why following ended; empty while it continues."""

    @property
    def skipped(self) -> int:
        """The number of events that were skipped."""

    def stop(self, reason: str = "stopped") -> None:
        """Stop following. Waiting events can still be read."""

    def __aiter__(self) -> "LogFollower": ...

    async def __anext__(self) -> LogEvent: ...


class EventLog(Protocol):
    """The log of a broker process. Call its methods on the event loop."""

    def levels(self) -> LogLevels:
        """Return the level in force and the configured level."""

    def set_level(self, level: LogLevel) -> None:
        """Log events at `level` and above until the log is next configured."""

    def follow(self, recent: int, ending: Callable[[], None]) -> LogFollower:
        """Follow the log, starting with the latest `recent` events. `ending` is called once, after `stop`."""
