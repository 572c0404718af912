"""What is counted of one plugin's implementation of one hook."""

from collections.abc import Callable
from typing import Final

from hookmq.hooks.place import Place, place_of

LOG_EVERY: Final = 60.0
"""Seconds between two log lines about the same plugin and hook."""
PLACES: Final = 64
"""Places in its code whose traceback is logged for one plugin and hook."""


def _no_clock() -> float:
    return 0.0


def _no_logs(level: str) -> bool:
    return False


def _no_log(level: str, event: str, /, **fields: object) -> None:
    """Where failures go before there is a runtime."""


class Stats:
    """Counters: plain numbers, written on the event loop and read by exporters.

    `calls` counts calls begun, `pending` those that wait for an answer; the others count answers by outcome. Every call,
    or on a hot hook one in 64, is timed: `seconds` is the sum of `timed` durations.
    """

    __slots__ = (
        "_logged_at", "_places", "abstain", "accept", "allow", "calls", "challenge", "clock", "deny", "drop", "error",
        "hook", "last_error", "log", "logs", "mask", "ok", "pending", "plugin_id", "replace", "seconds", "timed",
        "timeout", "unlogged",
    )  # fmt: skip

    def __init__(self, plugin_id: str, hook: str, hot: bool = False) -> None:
        self.plugin_id = plugin_id
        self.hook = hook
        self.calls = 0
        self.pending = 0
        self.ok = 0
        self.allow = 0
        self.deny = 0
        self.abstain = 0
        self.accept = 0
        self.challenge = 0
        self.replace = 0
        self.drop = 0
        self.error = 0
        self.timeout = 0
        self.seconds = 0.0
        self.timed = 0
        self.unlogged = 0
        self.last_error = ""
        self.mask = 63 if hot else 0
        self.clock: Callable[[], float] = _no_clock
        self.log: Callable[..., None] = _no_log
        self.logs: Callable[[str], bool] = _no_logs
        self._logged_at: float | None = None
        self._places: set[Place] = set()

    def bind(
        self,
        clock: Callable[[], float],
        log: Callable[..., None],
        logs: Callable[[str], bool] = _no_logs,
    ) -> None:
        """Give it the runtime's clock and log, and what says whether a level is logged."""
        self.clock = clock
        self.log = log
        self.logs = logs

    def begin(self) -> float:
        """Count a call; the time it began, or -1 if it is not to be timed."""
        calls = self.calls
        self.calls = calls + 1
        return -1.0 if calls & self.mask else self.clock()

    def end(self, began: float) -> None:
        """Time the call that began then."""
        if began >= 0.0:
            self.seconds += self.clock() - began
            self.timed += 1

    def failed(self, error: str, timeout: bool = False, cause: BaseException | None = None) -> None:
        """Count a failure and log it. `error` says it in words, `cause` is the exception behind it.

        ``plugin.failed`` is logged at error level: with the traceback for the first failure at each line of the plugin,
        otherwise at most once a minute and without. What is left out is ``plugin.failed_again`` at debug level, always
        with the traceback.
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
