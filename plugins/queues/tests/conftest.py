"""Start brokers with queues in a test's folder."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Plugin
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import DurableStore, Harness, make_plugin

Make = Callable[..., Harness]


class Brokers:
    """Starts brokers with the queue `jobs`, or with the given queues. All of them use the same folder and store, one
    after the other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = DurableStore()
        self.made: list[Harness] = []

    def __call__(
        self, *others: Plugin, queues: Any = ({"name": "jobs"},), **config: Any
    ) -> Harness:
        """Start a broker."""
        plugin = make_plugin(
            QueuesPlugin, {"path": str(self.path), "queues": list(queues), **config}, "queues", use="queues"
        )  # fmt: skip
        harness = Harness([plugin, *others], store=self.store)
        self.made.append(harness)
        return harness

    def crash(self, harness: Harness) -> None:
        """End a broker as SIGKILL does, so that all uncommitted changes are lost."""
        for log in plugin_of(harness).journals:
            log.close()
        self.made.remove(harness)


def plugin_of(harness: Harness) -> QueuesPlugin:
    """Return a broker's queues plugin."""
    instance = harness.hooks.instance("queues")
    assert instance is not None
    plugin = instance.plugin
    assert isinstance(plugin, QueuesPlugin)
    return plugin


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Brokers]:
    """Return a function that starts brokers."""
    brokers = Brokers(tmp_path / "queues")
    yield brokers
    for harness in brokers.made:
        harness.close()


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Yield a new folder for each plugin object, because two objects cannot share one."""
    return (tmp_path / str(number) for number in itertools.count())
