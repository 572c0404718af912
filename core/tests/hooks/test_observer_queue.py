"""Test one observer plugin's queue: order, limits, failures and the circuit breaker."""

from typing import Any

import pytest
from hookmq.hooks.instance import HookOptions
from hookmq.hooks.manager import Hooks
from hookmq.hooks.observer_queue import BATCH, FAILURES, OPEN_FOR
from hookmq.hooks.specs import OBSERVERS, SPECS
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq_testing.runtime import VirtualRuntime
from hypothesis import given
from hypothesis import strategies as st
from observing import MESSAGE, WAYS, Watcher, bind, publish


@pytest.fixture
def runtime() -> VirtualRuntime:
    return VirtualRuntime(blocking=0.0)  # times are asserted to the hundredth


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize("blocking", [0.0, 0.02])
def test_order_is_kept(way: str, seconds: float, blocking: float) -> None:
    runtime = VirtualRuntime(blocking=blocking)
    watcher = Watcher(runtime, way, seconds=seconds)
    hooks = bind(runtime, watcher)
    publish(hooks, *range(300))
    assert watcher.seen == []  # never during the broker's call
    runtime.advance(200)
    assert watcher.seen == list(range(300))
    assert (watcher.count("ok"), watcher.count("calls")) == (300, 300)
    assert watcher.dropped() == watcher.queue.waiting == 0
    publish(hooks, "more")
    runtime.advance(1)
    assert watcher.seen[-1] == "more"


def test_clients_get_their_packets_before_observers_their_events(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "sync, awaited")
    hooks = bind(runtime, watcher)
    order: list[str] = []

    def told(_: Any) -> bool:
        order.append("told")
        return False

    watcher.failing = told
    for _ in range(2):
        publish(hooks, "x")
        # The broker, too, schedules its writes after it notifies observers.
        runtime.call_soon(lambda: order.append("written"))
        runtime.advance(1)
    assert order == ["written", "told"] * 2


@pytest.mark.parametrize("hook", sorted(OBSERVERS))
@pytest.mark.parametrize("way", WAYS)
def test_every_hook_is_told(runtime: VirtualRuntime, way: str, hook: str) -> None:
    watcher = Watcher(runtime, way, hook)
    hooks = bind(runtime, watcher)
    args = tuple(f"argument {name}" for name in SPECS[hook].given)
    hooks.observers.notify(hook, "tcp", *args)
    for other in OBSERVERS - {hook}:
        hooks.observers.notify(other, "tcp", *("x" for _ in SPECS[other].given))
    runtime.run_until_idle()
    assert len(watcher.seen) == 1
    assert watcher.seen[0] in args
    assert watcher.count("ok", hook) == 1


def test_events_of_all_hooks_come_in_their_order(runtime: VirtualRuntime) -> None:
    seen: list[Any] = []

    class Made(Plugin):
        @hookimpl
        async def on_published(self, matched: int) -> None:
            await runtime.sleep(0.01)
            seen.append(matched)

        @hookimpl
        def on_dropped(self, why: Any) -> None:
            seen.append(why)

        @hookimpl
        def on_retained(self, topic: str) -> Any:
            return self.later(topic)

        async def later(self, topic: str) -> None:
            await runtime.sleep(0.01)
            seen.append(topic)

    hooks = Hooks.of(Made(None, Context("p")))
    hooks.bind(runtime)
    for number in range(0, 150, 3):
        hooks.observers.notify("on_published", "x", None, MESSAGE, number)
        hooks.observers.notify("on_dropped", "x", None, MESSAGE, number + 1)
        hooks.observers.notify("on_retained", "x", number + 2, MESSAGE)
    runtime.advance(10)
    assert seen == list(range(150))


@given(st.lists(st.sampled_from(["on_published", "on_dropped", "on_retained"]), max_size=40))
def test_any_mixture_of_hooks_keeps_its_order(names: list[str]) -> None:
    runtime = VirtualRuntime()
    seen: list[int] = []

    class Made(Plugin):
        @hookimpl
        async def on_published(self, matched: int) -> None:
            await runtime.sleep(0.01)
            seen.append(matched)

        @hookimpl
        def on_dropped(self, why: int) -> None:
            seen.append(why)
            if why % 3 == 0:
                raise ValueError(why)

        @hookimpl
        async def on_retained(self, message: int) -> None:
            seen.append(message)

    hooks = Hooks.of(Made(None, Context("p")))
    hooks.bind(runtime)
    for number, name in enumerate(names):
        args = {"on_retained": ("t", number)}.get(name, (None, MESSAGE, number))
        hooks.observers.notify(name, "x", *args)
        if number % 7 == 0:
            runtime.turn()
    runtime.advance(10)
    assert seen == list(range(len(names)))


@pytest.mark.parametrize("way", WAYS)
def test_plugins_do_not_wait_for_each_other(runtime: VirtualRuntime, way: str) -> None:
    slow = Watcher(runtime, "async", seconds=10.0, plugin_id="slow")
    quick = Watcher(runtime, way, plugin_id="quick")
    publish(bind(runtime, slow, quick), 1, 2, 3)
    runtime.advance(1)
    assert (slow.seen, quick.seen) == ([], [1, 2, 3])


def test_the_loop_gets_its_turn(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async")
    publish(bind(runtime, watcher), *range(BATCH * 3))
    turns = 0
    while runtime.turn():
        turns += 1
    assert len(watcher.seen) == BATCH * 3
    assert turns >= 6


# bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_full_lane_drops_its_oldest(runtime: VirtualRuntime, way: str) -> None:
    watcher = Watcher(runtime, way, hooks={"on_published": HookOptions(queue=5)})
    hooks = bind(runtime, watcher)
    publish(hooks, *range(20))
    assert watcher.queue.waiting == 5
    runtime.run_until_idle()
    assert watcher.seen == [15, 16, 17, 18, 19]
    assert watcher.dropped() == 15
    labels = {"hook": "on_published", "plugin": "p"}
    assert ("hookmq_hook_dropped_total", labels, 15.0) in hooks.metrics()


def test_a_flood_of_one_hook_does_not_push_out_another(runtime: VirtualRuntime) -> None:
    watcher = Watcher(
        runtime,
        "async",
        "on_published",
        "on_disconnect",
        hooks={"on_published": HookOptions(queue=2)},
    )
    hooks = bind(runtime, watcher)
    hooks.observers.notify("on_disconnect", "x", "client 1", "reason")
    publish(hooks, *range(100))
    hooks.observers.notify("on_disconnect", "x", "client 2", "reason")
    runtime.run_until_idle()
    assert watcher.seen == ["client 1", 98, 99, "client 2"]


def test_the_default_bound(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async")
    publish(bind(runtime, watcher), *range(10_001))
    assert (watcher.queue.waiting, watcher.dropped()) == (10_000, 1)


def test_depth_is_reported(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async")
    hooks = bind(runtime, watcher)
    publish(hooks, 1, 2, 3)
    labels = {"hook": "on_published", "plugin": "p"}
    assert ("hookmq_hook_queue_depth", labels, 3.0) in hooks.metrics()


# failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_is_counted_and_the_rest_goes_on(runtime: VirtualRuntime, way: str) -> None:
    watcher = Watcher(runtime, way)
    watcher.failing = lambda value: value % 2 == 0
    publish(bind(runtime, watcher), *range(10))
    runtime.advance(1)
    assert watcher.seen == list(range(10))
    assert (watcher.count("ok"), watcher.count("error")) == (5, 5)
    ((level, event, fields),) = [one for one in runtime.logged if one[0] != "debug"]
    assert (level, event, fields["error"]) == ("error", "plugin.failed", "ValueError: no 0")


@pytest.mark.parametrize("way", ["async", "sync, awaited"])
def test_an_event_that_takes_too_long_is_given_up(runtime: VirtualRuntime, way: str) -> None:
    watcher = Watcher(runtime, way, hooks={"on_published": HookOptions(timeout=2.0)})
    watcher.seconds = 5.0
    hooks = bind(runtime, watcher)
    publish(hooks, 1, 2)
    runtime.advance(1.9)
    assert watcher.count("timeout") == 0
    runtime.advance(0.1)
    assert watcher.count("timeout") == 1
    watcher.seconds = 1.0
    publish(hooks, 3)
    runtime.advance(10)
    assert watcher.seen == [3]  # 2 was started while the plugin was still slow
    assert (watcher.count("timeout"), watcher.count("ok")) == (2, 1)
    assert not runtime.tasks


def test_each_event_has_the_whole_time(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async", seconds=20.0)
    publish(bind(runtime, watcher), *range(10))
    runtime.advance(200)
    assert watcher.seen == list(range(10))
    assert watcher.count("timeout") == 0
    assert watcher.at == [20.0 * n for n in range(1, 11)]


def test_a_plugin_that_will_not_be_cancelled_loses_its_turn(runtime: VirtualRuntime) -> None:
    seen: list[int] = []

    class Made(Plugin):
        @hookimpl
        async def on_published(self, matched: int) -> None:
            try:
                await runtime.sleep(31.0 if matched == 0 else 1.0)
            except BaseException:
                await runtime.sleep(0.5)
            seen.append(matched)

    hooks = Hooks.of(Made(None, Context("p")))
    hooks.bind(runtime)
    publish(hooks, *range(5))
    runtime.advance(100)
    assert seen == [0, 1, 2, 3, 4]
    stats = hooks.plugins[0].stats("on_published")
    assert (stats.timeout, stats.ok, stats.error) == (1, 4, 0)
    assert hooks.plugins[0].kept.queue.waiting == 0


def test_a_cancelled_error_of_its_own_making_is_a_failure(runtime: VirtualRuntime) -> None:
    import asyncio

    class Made(Plugin):
        @hookimpl
        async def on_published(self, matched: int) -> None:
            if matched == 1:
                raise asyncio.CancelledError

    hooks = Hooks.of(Made(None, Context("p")))
    hooks.bind(runtime)
    publish(hooks, 0, 1, 2)
    runtime.advance(1)
    stats = hooks.plugins[0].stats("on_published")
    assert (stats.ok, stats.error) == (2, 1)


def test_a_coroutine_that_answers_with_a_coroutine_fails(runtime: VirtualRuntime) -> None:
    async def inner() -> None:
        pytest.fail("it ran")

    class Made(Plugin):
        @hookimpl
        async def on_published(self) -> Any:
            return inner()

        @hookimpl
        def on_retained(self) -> Any:
            async def outer() -> Any:
                return inner()

            return outer()

    hooks = Hooks.of(Made(None, Context("p")))
    hooks.bind(runtime)
    publish(hooks, 0)
    hooks.observers.notify("on_retained", "x", "t", None)
    runtime.advance(1)
    plugin = hooks.plugins[0]
    assert [plugin.stats(name).error for name in ("on_published", "on_retained")] == [1, 1]


# the circuit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_circuit(runtime: VirtualRuntime, way: str) -> None:
    watcher = Watcher(runtime, way)
    hooks = bind(runtime, watcher)
    labels = {"plugin": "p"}
    watcher.failing = lambda value: True
    for value in range(FAILURES - 1):
        publish(hooks, value)
        runtime.advance(0.01)
    assert ("hookmq_hook_circuit_open", labels, 0.0) in hooks.metrics()
    publish(hooks, "last")
    runtime.advance(0.01)
    assert ("hookmq_hook_circuit_open", labels, 1.0) in hooks.metrics()
    assert "plugin.circuit_open" in [event for _, event, _ in runtime.logged]
    # open: new events are dropped and counted
    seen = len(watcher.seen)
    publish(hooks, "a", "b")
    runtime.advance(OPEN_FOR - 1)
    assert (len(watcher.seen), watcher.dropped()) == (seen, 2)
    # half open: one is tried, fails, and it opens again
    runtime.advance(1)
    assert ("hookmq_hook_circuit_open", labels, 0.0) in hooks.metrics()
    publish(hooks, "probe", "waits")
    runtime.advance(0.01)
    assert watcher.seen[seen:] == ["probe"]
    assert ("hookmq_hook_circuit_open", labels, 1.0) in hooks.metrics()
    # half open: a waiting event is tried and succeeds, so the circuit closes
    watcher.failing = lambda value: False
    runtime.advance(OPEN_FOR)
    assert watcher.seen[seen:] == ["probe", "waits"]
    publish(hooks, *range(5))
    runtime.advance(1)
    assert watcher.seen[seen + 2 :] == list(range(5))
    assert watcher.dropped() == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_success_closes_the_count(runtime: VirtualRuntime, way: str) -> None:
    watcher = Watcher(runtime, way)
    hooks = bind(runtime, watcher)
    watcher.failing = lambda value: value % FAILURES != 0
    publish(hooks, *range(FAILURES * 3))
    runtime.advance(1)
    assert watcher.seen == list(range(FAILURES * 3))
    assert watcher.queue.open_until is None
    assert watcher.dropped() == 0


@pytest.mark.parametrize("way", WAYS)
def test_events_that_waited_when_the_circuit_opened_are_not_lost(
    runtime: VirtualRuntime, way: str
) -> None:
    watcher = Watcher(runtime, way)
    hooks = bind(runtime, watcher)
    watcher.failing = lambda value: runtime.now() < 1
    publish(hooks, *range(200))
    runtime.advance(OPEN_FOR + 5)
    assert watcher.seen == list(range(200))
    assert watcher.count("ok") + watcher.count("error") == 200
    assert watcher.count("error") >= FAILURES


def test_timeouts_open_the_circuit_too(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async", seconds=100.0)
    hooks = bind(runtime, watcher)
    publish(hooks, *range(FAILURES))
    runtime.advance(30.0 * FAILURES)
    assert watcher.count("timeout") == FAILURES
    assert watcher.queue.open_until is not None


def test_durations_are_taken(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async", "on_disconnect", seconds=0.5)
    hooks = bind(runtime, watcher)
    for number in range(4):
        hooks.observers.notify("on_disconnect", "x", number, "reason")
    runtime.advance(10)
    [(labels, durations)] = hooks.durations()
    assert labels == {"hook": "on_disconnect", "plugin": "p"}
    assert (durations.count, durations.sum) == (4, 2.0)
