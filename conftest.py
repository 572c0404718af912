"""Configure all tests: set the Hypothesis profiles, and a folder for brokers' state.

The environment variable HYPOTHESIS_PROFILE chooses a profile. With ``dev``, the default, the inputs of property tests
are new in every run. With ``ci``, there are fewer inputs, and they are the same in every run. Failures are then caused
by the change under test. `make fuzz` runs ``dev`` repeatedly.

A broker that is given no folder keeps its state in a temporary folder.
"""

import gc
import os
import socket
from collections.abc import Generator, Iterator
from time import monotonic
from typing import Any

import pytest
from deadlines import Deadlines
from grouping import GroupScheduling
from hypothesis import settings
from pytest_timeout import Settings  # type: ignore[import-untyped]

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile(
    "ci", parent=settings.get_profile("dev"), derandomize=True, max_examples=50
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let the workers of pytest-xdist report to pytest-rerunfailures (``--reruns``) without a delay.

    Each worker writes twice per test and reads once. The second write waits until the kernel acknowledges the first,
    which takes 40 ms: eight times as long as a short test.
    """
    link = getattr(getattr(config, "failures_db", None), "sock", None)
    if isinstance(link, socket.socket):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Return the scheduler for ``--dist loadgroup``, in place of pytest-xdist's own."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


_deadlines = Deadlines()


def pytest_sessionstart() -> None:
    """Start watching test deadlines."""
    _deadlines.watch()


def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool | None:
    """Set a test's deadline without pytest-timeout's extra thread for each test."""
    if settings.method != "thread":
        return None
    _deadlines.begin(item, settings, monotonic())
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """Forget a test's deadline."""
    _deadlines.end()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Stop the garbage collector from repeatedly visiting the collected tests, which exist until the end."""
    gc.disable()
    try:
        result = yield
        gc.collect()
        gc.freeze()
        return result
    finally:
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the state of brokers, including those in child processes, out of the checkout and the
    user's home.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("STATE_DIRECTORY", raising=False)
        yield
