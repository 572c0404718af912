"""End a test that takes too long, as pytest-timeout does with ``timeout_method = "thread"``, but with a single thread.

pytest-timeout starts and joins a thread for each test. For a short test, this takes a third of the run time.
"""

import threading
from time import monotonic, sleep

import pytest
from pytest_timeout import Settings, timeout_timer  # type: ignore[import-untyped]

EVERY = 5.0
"""Seconds between two checks. A test may exceed its timeout by that much."""


class Deadlines:
    """The deadline of the running test. Start a thread with `watch` to enforce it."""

    def __init__(self) -> None:
        self._running: tuple[float, pytest.Item, Settings] | None = None

    def begin(self, item: pytest.Item, settings: Settings, now: float) -> None:
        """Set the deadline for the test `item` to `settings.timeout` seconds after `now`."""
        self._running = (now + settings.timeout, item, settings)

    def end(self) -> None:
        """Forget the deadline, because the test has ended."""
        self._running = None

    def missed(self, now: float) -> tuple[pytest.Item, Settings] | None:
        """Return the running test and its settings if its deadline has passed."""
        running = self._running
        return running[1:] if running is not None and now > running[0] else None

    def watch(self) -> None:
        """Start a daemon thread that prints all stacks and ends the process when a deadline has passed."""
        threading.Thread(target=self._watch, name="deadlines of tests", daemon=True).start()

    def _watch(self) -> None:
        while True:
            sleep(EVERY)
            if missed := self.missed(monotonic()):
                timeout_timer(*missed)
