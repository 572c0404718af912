"""Test draining observers' queues. The drain ends when all queues are idle, or at its deadline."""

import pytest
from hookmq.hooks.manager import Hooks
from hookmq.hooks.observer_queue import FAILURES
from hookmq_testing.runtime import VirtualRuntime
from observing import Watcher, bind, publish


@pytest.fixture
def runtime() -> VirtualRuntime:
    return VirtualRuntime(blocking=0.0)  # times are asserted to the hundredth


def test_drain_waits_for_all(runtime: VirtualRuntime) -> None:
    slow = Watcher(runtime, "async", seconds=1.0, plugin_id="slow")
    quick = Watcher(runtime, "sync", plugin_id="quick")
    hooks = bind(runtime, slow, quick)
    publish(hooks, 1, 2, 3)
    told: list[tuple[float, int]] = []
    hooks.observers.drain(lambda left: told.append((runtime.now(), left)), 10.0)
    runtime.advance(20)
    assert told == [(3.0, 0)]
    assert slow.seen == quick.seen == [1, 2, 3]
    assert runtime.next_timer() is None


def test_drain_gives_up_at_its_deadline(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async", seconds=4.0)
    hooks = bind(runtime, watcher)
    publish(hooks, 1, 2, 3)
    told: list[tuple[float, int]] = []
    hooks.observers.drain(lambda left: told.append((runtime.now(), left)), 5.0)
    runtime.advance(100)
    assert told == [(5.0, 2)]
    assert (watcher.seen, watcher.dropped()) == ([1], 2)
    assert not runtime.tasks


def test_drain_of_nothing_is_done_at_once(runtime: VirtualRuntime) -> None:
    told: list[int] = []
    bind(runtime).observers.drain(told.append, 5.0)
    bind(runtime, Watcher(runtime, "async")).observers.drain(told.append, 5.0)
    Hooks().observers.drain(told.append, 5.0)
    assert told == [0, 0, 0]
    assert runtime.next_timer() is None


def test_drain_does_not_wait_for_an_open_circuit(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async")
    watcher.failing = lambda value: True
    hooks = bind(runtime, watcher)
    publish(hooks, *range(FAILURES + 7))
    told: list[tuple[float, int]] = []
    hooks.observers.drain(lambda left: told.append((runtime.now(), left)), 60.0)
    runtime.advance(100)
    assert told == [(0.0, 7)]
    assert watcher.dropped() == 7
    assert runtime.next_timer() is None
