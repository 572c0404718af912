"""Test the names of log levels."""

from hookmq.model.log_events import LOG_LEVELS, LogEvent, LogLevels
from hookmq.server.logs import LEVELS


def test_the_levels_are_those_of_the_log_in_order() -> None:
    assert list(LOG_LEVELS) == sorted(LEVELS, key=lambda name: LEVELS[name])


def test_events_and_levels_are_values() -> None:
    assert LogEvent(1.0, "info", "a.b", {}) == LogEvent(1.0, "info", "a.b", {})
    assert LogLevels("debug", "info").configured == "info"
