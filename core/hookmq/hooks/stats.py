"""Counters for one plugin's implementation of one hook."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Final

from hookmq.hooks.place import CodePlace, place_of
from hookmq.model.histogram import CALL_SECONDS, Histogram
from hookmq.plugin import no_log

LOG_EVERY: Final = 60.0
"""Shortest interval in seconds between log events about the same plugin and hook."""
PLACES: Final = 64
"""For one plugin and hook, the maximum number of code lines whose tracebacks are logged."""


def _no_clock() -> float:
    return 0.0


def _no_logs(level: str) -> bool:
    return False


@dataclass(slots=True, eq=False, repr=False)
class HookStats:
    """Plain counters, written on the event loop and read by exporters.

    `calls` counts started calls, and `pending` counts unfinished calls. The other counters count results by outcome.
    Every call is timed, or one in 64 for a hot hook. `seconds` is the total duration of the `timed` calls, and `ranges`
    has the number of timed calls in each range of `CALL_SECONDS`.
    """

    plugin_id: str
    hook: str
    hot: InitVar[bool] = False
    calls: int = 0
    pending: int = 0
    ok: int = 0
    allow: int = 0
    deny: int = 0
    abstain: int = 0
    accept: int = 0
    challenge: int = 0
    replace: int = 0
    drop: int = 0
    handled: int = 0
    error: int = 0
    timeout: int = 0
    seconds: float = 0.0
    timed: int = 0
    ranges: list[int] = field(default_factory=lambda: [0] * (len(CALL_SECONDS) + 1))
    unlogged: int = 0
    last_error: str = ""
    mask: int = 0
    clock: Callable[[], float] = _no_clock
    log: Callable[..., None] = no_log
    logs: Callable[[str], bool] = _no_logs
    _logged_at: float | None = None
    _places: set[CodePlace] = field(default_factory=set)

    def __post_init__(self, hot: bool) -> None:
        self.mask = 63 if hot else 0

    def bind(
        self,
        clock: Callable[[], float],
        log: Callable[..., None],
        logs: Callable[[str], bool] = _no_logs,
    ) -> None:
        """Set the clock, the log function, and the function that returns whether a level is logged."""
        self.clock, self.log, self.logs = clock, log, logs

    def begin(self) -> float:
        """Count a call and return its start time, or -1 if the call is not timed."""
        calls = self.calls
        self.calls = calls + 1
        return -1.0 if calls & self.mask else self.clock()

    def end(self, began: float) -> None:
        """Record the duration of a call that started at `began`. Does nothing if the call is not timed."""
        if began >= 0.0:
            seconds = self.clock() - began
            self.seconds += seconds
            self.timed += 1
            self.ranges[bisect_left(CALL_SECONDS, seconds)] += 1

    def timed_calls(self, count: int, seconds: float) -> None:
        """Count `count` calls that took `seconds` each."""
        self.calls += count
        self.seconds += seconds * count
        self.timed += count
        self.ranges[bisect_left(CALL_SECONDS, seconds)] += count

    def durations(self) -> Histogram:
        """Return the durations of the timed calls."""
        found = Histogram(CALL_SECONDS)
        found.counts = list(self.ranges)
        found.sum = self.seconds
        return found

    def failed(self, error: str, timeout: bool = False, cause: BaseException | None = None) -> None:
        """Count and log a failure. `error` describes it; `cause` is the exception, if any.

        The first failure at each line of the plugin is logged as ``plugin.failed`` with its traceback. Later failures
        are logged without a traceback, at most once a minute. At debug level, each of them is also logged as
        ``plugin.failed_again`` with its traceback.
        """
        if timeout:
            self.timeout += 1
        else:
            self.error += 1
        self.last_error = error
        now = self.clock()
        fields: dict[str, object] = {"plugin": self.plugin_id, "hook": self.hook, "error": error}
        place = place_of(cause) if cause is not None else None
        if place is not None:
            fields |= {"file": place.file, "line": place.line}
        fresh = place is not None and place not in self._places and len(self._places) < PLACES
        if not fresh and self._logged_at is not None and now - self._logged_at < LOG_EVERY:
            self.unlogged += 1
            if self.logs("debug"):
                self.log("debug", "plugin.failed_again", **fields, traceback=cause)
            return
        unlogged, self.unlogged, self._logged_at = self.unlogged, 0, now
        fields["unlogged"] = unlogged
        if fresh and place is not None:
            self._places.add(place)
            fields["traceback"] = cause
        elif cause is not None and self.logs("debug"):
            self.log("debug", "plugin.failed_again", **fields, traceback=cause)
        self.log("error", "plugin.failed", **fields)
