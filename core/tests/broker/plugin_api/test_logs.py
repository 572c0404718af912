"""Test how plugins follow the log and change its level."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.plugin import LogEvent, LogLevel, LogLevels, PluginError
from hookmq_testing import Harness, HookRecorder


class Followed:
    """A log follower that receives no events."""

    def __init__(self, ending: Callable[[], None]) -> None:
        self.ended = ""
        self.skipped = 0
        self._ending = ending

    def stop(self, reason: str = "stopped") -> None:
        self.ended = reason
        self._ending()

    def __aiter__(self) -> "Followed":
        return self

    async def __anext__(self) -> LogEvent:
        raise StopAsyncIteration


class Log:
    """A log with a level."""

    def __init__(self) -> None:
        self.level: LogLevel = "info"
        self.followers: list[tuple[int, Followed]] = []

    def levels(self) -> LogLevels:
        return LogLevels(self.level, "info")

    def set_level(self, level: LogLevel) -> None:
        self.level = level

    def follow(self, recent: int, ending: Callable[[], None]) -> Followed:
        follower = Followed(ending)
        self.followers.append((recent, follower))
        return follower


@pytest.fixture
def harness(broker_harness: Any) -> Harness:
    made: Harness = broker_harness(plugins=[HookRecorder("on_event", id="p")])
    return made


def test_a_broker_without_a_log(harness: Harness) -> None:
    broker: Any = harness.handle("p")
    for call in (broker.log_levels, broker.follow_log, lambda: broker.set_log_level("debug")):
        with pytest.raises(PluginError, match="this broker has no log of its own"):
            call()


def test_the_level_is_changed_and_reported(harness: Harness) -> None:
    broker: Any = harness.handle("p")
    log = harness.broker.event_log = Log()
    with pytest.raises(
        PluginError, match="expected one of debug, info, warning, error, found 'all'"
    ):
        broker.set_log_level("all")
    assert log.level == "info"
    broker.set_log_level("debug")
    assert broker.log_levels() == LogLevels("debug", "info")
    assert harness.logs[-1] == (
        "warning", "broker.log_level_set", {"plugin": "p", "client_id": None, "old": "info", "new": "debug"},
    )  # fmt: skip


def test_a_level_that_hides_the_change_is_set_after_it_is_logged(harness: Harness) -> None:
    broker: Any = harness.handle("p")
    events: list[object] = []

    class Noting(Log):
        def set_level(self, level: LogLevel) -> None:
            self.level = level
            events.append((level, [event for _, event, _ in harness.logs]))

    harness.broker.event_log = Noting()
    broker.set_log_level("error")
    assert events == [("error", ["broker.log_level_set"])]
    broker.set_log_level("debug")
    assert events[1] == ("debug", ["broker.log_level_set"])
    assert len(harness.logs) == 2


def test_following_ends_with_the_plugin(harness: Harness) -> None:
    broker: Any = harness.handle("p")
    log = harness.broker.event_log = Log()
    with pytest.raises(PluginError, match="recent is str"):
        broker.follow_log("1")
    kept = broker._instance.kept
    before = len(kept.farewells)
    first, second, third = broker.follow_log(5), broker.follow_log(), broker.follow_log()
    assert [recent for recent, _ in log.followers] == [5, 0, 0]
    first.stop()
    assert len(kept.farewells) == before + 2
    kept.leave()
    assert [one.ended for one in (first, second, third)] == [
        "stopped",
        *["the plugin has ended"] * 2,
    ]
    with pytest.raises(PluginError, match="the plugin has ended"):
        broker.follow_log()
