"""Calls that plugins use to follow the log and to change its level."""

from functools import partial

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.model.log_events import LOG_LEVELS, EventLog, LogFollower, LogLevel, LogLevels


class Logs(HandleBase):
    """The methods of a plugin's handle for the process's log."""

    __slots__ = ()

    def log_levels(self) -> LogLevels:
        """Return the level in force and the configured level."""
        return self._event_log("log_levels()", "get the log level").levels()

    def set_log_level(self, level: LogLevel) -> None:
        """Change the level until the next reload or restart."""
        log = self._event_log("set_log_level()", "set the log level")
        if level not in LOG_LEVELS:
            wanted = ", ".join(LOG_LEVELS)
            raise self._refusal("set the log level", f"expected one of {wanted}, found {level!r}")
        before = log.levels().current
        if level != "error":
            log.set_level(level)
        self._tell("warning", "broker.log_level_set", None, old=before, new=level)
        log.set_level(level)  # only now if it hides this event

    def follow_log(self, recent: int = 0) -> LogFollower:
        """Follow the log until the plugin stops."""
        what = "follow the log"
        log = self._event_log("follow_log()", what)
        self._check_types(what, ("recent", recent, int))
        kept = self._instance.kept
        if kept.left:
            raise self._refusal(what, "the plugin has ended")

        def ending() -> None:
            if stop in kept.farewells:  # else the plugin is ending
                kept.farewells.remove(stop)

        follower = log.follow(recent, ending)
        stop = partial(follower.stop, "the plugin has ended")
        kept.farewells.append(stop)
        return follower

    def _event_log(self, name: str, what: str) -> EventLog:
        self._only_on_loop(name)
        log = self._state.event_log
        if log is None:
            raise self._refusal(what, "this broker has no log of its own")
        return log
