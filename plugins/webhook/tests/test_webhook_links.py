"""Test when the broker tells the sending process about new events."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hookmq_testing.runtime import VirtualRuntime
from hookmq_webhook import links
from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.engine import Opening
from hookmq_webhook.links import RemoteLink


class Process:
    """Stands for the sending process, and keeps the places that it is told."""

    restarts = 0
    backlog = 0

    def __init__(self) -> None:
        self.child = self
        self.ends: list[int] = []

    def add(self, id: str, user: RemoteLink) -> None:
        user.open_again()

    def write(self, value: Any) -> None:
        _, method, values = value
        if method == "wake":
            self.ends.append(values[0])


Make = Callable[..., tuple[RemoteLink, Process, VirtualRuntime, list[int]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(**config: Any) -> tuple[RemoteLink, Process, VirtualRuntime, list[int]]:
        process, clock, end = Process(), VirtualRuntime(), [0]
        monkeypatch.setattr(links, "sender_process", lambda runtime: process)
        host: Any = SimpleNamespace()
        settings = WebhookConfig(url="http://h/", **config)
        link = RemoteLink(settings, "w", clock, host, None, lambda: None)
        link.open(lambda: Opening("f", "l", False, None, False), lambda: (end[0], 0, 0, False))
        return link, process, clock, end

    return made


def test_events_that_keep_coming_share_a_message(make: Make) -> None:
    link, process, clock, end = make(wake_interval=0.1)
    clock.advance(1)
    for _ in range(100):  # one in 10 ms
        end[0] += 1
        link.wake()
        clock.advance(0.01)
    clock.advance(1)
    assert 10 <= len(process.ends) - 1 <= 12
    assert process.ends[:2] == [0, 1]  # the first one is told at once
    assert process.ends[-1] == 100
    end[0] += 1
    link.wake()
    assert process.ends[-1] == 101  # after a pause


def test_nothing_is_told_twice(make: Make) -> None:
    link, process, clock, _ = make()
    for _ in range(5):
        clock.advance(1)
        link.wake()
    assert process.ends == [0]


def test_a_process_that_does_not_read_gets_the_newest_place_only(make: Make) -> None:
    link, process, clock, end = make(wake_interval=0.1)
    clock.advance(1)
    process.backlog = 1 << 20
    for _ in range(50):
        end[0] += 1
        link.wake()
        clock.advance(0.1)
    assert process.ends == [0]
    process.backlog = 0
    clock.advance(0.2)
    assert process.ends == [0, 50]
