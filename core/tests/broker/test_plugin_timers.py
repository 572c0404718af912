"""Test plugins' timers: when and how often `on_timer` is called, and the effects of failures, restarts and reloads."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hookmq.broker.plugin_timers import LONGEST_PAUSE, PARALLEL
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.model.runtime import Promise
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq.storage.records import DropState, PutState
from hookmq_testing import DurableStore, Harness, SlowStore
from hookmq_testing.runtime import EPOCH

Make = Callable[..., Harness]


class Clocked(Plugin):
    """A plugin that records when its timers are called. `failures` lists the calls that fail."""

    def __init__(self, id: str = "clock") -> None:
        super().__init__(None, Context(id))
        self.called: list[tuple[float, str, bytes]] = []
        self.failures = 0
        self.then: Callable[[BrokerHandle, str], object] = lambda broker, key: None

    @hookimpl
    def on_timer(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        self.called.append((broker.time() - EPOCH, key, data))
        self.then(broker, key)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("not now")


class Waits(Plugin):
    """A plugin whose hook waits for `promises`."""

    def __init__(self) -> None:
        super().__init__(None, Context("waits"))
        self.began: list[str] = []
        self.promises: list[Promise] = []

    @hookimpl
    async def on_timer(self, key: str, broker: BrokerHandle) -> None:
        self.began.append(key)
        promise = broker.runtime.promise()
        self.promises.append(promise)
        await promise


def times(plugin: Clocked) -> list[tuple[int, str]]:
    return [(round(at), key) for at, key, _ in plugin.called]


def test_on_timer_is_called_when_due_and_once(broker_harness: Make) -> None:
    plugin = Clocked()
    harness = broker_harness([plugin])
    broker = harness.handle("clock")
    broker.set_timer("b", EPOCH + 20, b"data")
    broker.set_timer("a", EPOCH + 10.5)
    harness.advance(10)
    assert plugin.called == []
    harness.advance(1)
    assert plugin.called == [(10.5, "a", b"")]
    harness.advance(1000)
    assert plugin.called == [(10.5, "a", b""), (20.0, "b", b"data")]
    assert broker.state.keys == 0


def test_a_timer_in_the_past_is_due_now(broker_harness: Make) -> None:
    plugin = Clocked()
    harness = broker_harness([plugin])
    harness.handle("clock").set_timer("k", EPOCH - 5.0)
    assert plugin.called == []  # not during the call
    harness.settle()
    assert times(plugin) == [(0, "k")]


def test_a_timer_is_replaced_and_cancelled(broker_harness: Make) -> None:
    plugin = Clocked()
    harness = broker_harness([plugin])
    broker = harness.handle("clock")
    broker.set_timer("k", EPOCH + 10, b"old")
    broker.set_timer("k", EPOCH + 30, b"new")
    broker.set_timer("gone", EPOCH + 5)
    broker.cancel_timer("gone")
    harness.advance(100)
    assert plugin.called == [(30.0, "k", b"new")]


def test_a_failed_call_is_repeated_after_a_pause_that_doubles(broker_harness: Make) -> None:
    plugin = Clocked()
    plugin.failures = 4
    store = DurableStore()
    harness = broker_harness([plugin], store=store)
    harness.handle("clock").set_timer("k", EPOCH + 10)
    harness.advance(18)
    assert times(plugin) == [(10, "k"), (11, "k"), (13, "k"), (17, "k")]
    assert list(store.plugin_state) == [("t/clock", "k")]
    harness.advance(1000)
    assert times(plugin)[4:] == [(25, "k")]
    assert store.plugin_state == {}
    stats = harness.hooks.plugins[0].stats("on_timer")
    assert (stats.ok, stats.error, stats.calls) == (1, 4, 5)
    assert harness.logged("plugin.failed")[0]["hook"] == "on_timer"


def test_the_pause_has_a_limit(broker_harness: Make) -> None:
    plugin = Clocked()
    plugin.failures = 100
    harness = broker_harness([plugin])
    harness.handle("clock").set_timer("k", EPOCH)
    harness.advance(20 * LONGEST_PAUSE)
    last = [at for at, _, _ in plugin.called][-5:]
    assert {round(b - a) for a, b in pairwise(last)} == {LONGEST_PAUSE}


def test_a_call_that_takes_too_long_has_failed(broker_harness: Make) -> None:
    plugin = Waits()
    harness = broker_harness([plugin])
    harness.handle("waits").set_timer("k", EPOCH)
    harness.advance(29)
    assert plugin.began == ["k"]
    harness.advance(2)
    assert plugin.began == ["k", "k"]
    assert harness.hooks.plugins[0].stats("on_timer").timeout == 1


def test_a_hook_may_set_its_own_timer_again(broker_harness: Make) -> None:
    plugin = Clocked()
    plugin.then = lambda broker, key: broker.set_timer(key, broker.time() + 60)
    harness = broker_harness([plugin])
    harness.handle("clock").set_timer("tick", EPOCH + 60)
    harness.advance(250)
    assert times(plugin) == [(60, "tick"), (120, "tick"), (180, "tick"), (240, "tick")]


def test_a_hook_that_sets_its_timer_to_now_does_not_block_the_loop(broker_harness: Make) -> None:
    plugin = Clocked()
    turns: list[int] = []

    def again(broker: BrokerHandle, key: str) -> None:
        turns.append(harness.broker.state.writes.turn)
        if len(turns) < 10:
            broker.set_timer(key, broker.time())

    plugin.then = again
    harness = broker_harness([plugin])
    harness.handle("clock").set_timer("k", EPOCH)
    harness.settle()
    assert len(turns) == len(set(turns)) == 10


def test_a_failed_call_is_not_repeated_if_its_timer_was_replaced_or_cancelled(
    broker_harness: Make,
) -> None:
    plugin = Clocked()
    plugin.failures = 2
    plugin.then = lambda broker, key: (
        broker.cancel_timer(key) if key == "c" else broker.set_timer(key, broker.time() + 50)
    )
    harness = broker_harness([plugin])
    harness.handle("clock").set_timer("c", EPOCH)
    harness.handle("clock").set_timer("r", EPOCH)
    harness.advance(99)
    assert times(plugin) == [(0, "c"), (0, "r"), (50, "r")]


def test_a_key_has_one_call_at_a_time(broker_harness: Make) -> None:
    plugin = Waits()
    harness = broker_harness([plugin])
    broker = harness.handle("waits")
    broker.set_timer("k", EPOCH)
    harness.settle()
    broker.set_timer("k", EPOCH)
    broker.set_timer("other", EPOCH)
    harness.settle()
    assert plugin.began == ["k", "other"]
    plugin.promises[0].set_result(None)
    harness.settle()
    assert plugin.began == ["k", "other", "k"]
    for promise in plugin.promises[1:]:
        promise.set_result(None)
    harness.settle()
    assert broker.state.keys == 0


def test_the_calls_of_a_plugin_are_bounded(broker_harness: Make) -> None:
    plugin = Waits()
    harness = broker_harness([plugin])
    for number in range(3 * PARALLEL):
        harness.handle("waits").set_timer(f"{number:03}", EPOCH)
    for done in range(1, 4):
        harness.settle()
        assert len(plugin.began) == done * PARALLEL
        for promise in plugin.promises:
            if not promise.done():
                promise.set_result(None)
    harness.settle()
    assert plugin.began == sorted(plugin.began)


def test_many_timers_that_are_due_together_are_called_in_slices(broker_harness: Make) -> None:
    plugin = Clocked()
    turns: set[int] = set()
    plugin.then = lambda broker, key: turns.add(harness.broker.state.writes.turn)
    harness = broker_harness([plugin])
    for number in range(1000):
        harness.handle("clock").set_timer(str(number), EPOCH + 5)
    harness.advance(5)
    assert len(plugin.called) == 1000
    assert len(turns) > 10


def test_the_state_put_by_on_timer_and_the_end_of_the_timer_are_one_commit(
    broker_harness: Make,
) -> None:
    plugin = Clocked()
    plugin.then = lambda broker, key: broker.state.put("done", b"1")
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([plugin], store=store)
    harness.handle("clock").set_timer("k", EPOCH + 5)
    harness.settle()
    store.committed.clear()
    harness.advance(5)
    assert store.committed == [(PutState("s/clock", "done", b"1"), DropState("t/clock", "k"))]


def test_a_timer_survives_a_restart_and_is_called_after_on_ready(broker_harness: Make) -> None:
    store = DurableStore()
    harness = broker_harness([Clocked()], store=store)
    harness.handle("clock").set_timer("late", EPOCH + 5, b"data")
    harness.handle("clock").set_timer("later", EPOCH + 500)
    harness.settle()
    harness.close()

    class Slow(Clocked):
        @hookimpl
        async def on_ready(self, broker: BrokerHandle) -> None:
            await harness.clock.sleep(10)
            self.called.append((broker.time() - EPOCH, "ready", b""))

    plugin = Slow()
    harness = broker_harness([plugin], store=store, start=False)
    harness.advance(100)
    harness.start()
    harness.settle()
    assert plugin.called == [(110.0, "ready", b""), (110.0, "late", b"data")]
    harness.advance(390)
    assert times(plugin)[2:] == [(500, "later")]
    assert store.plugin_state == {}


def test_a_timer_whose_call_was_cut_off_is_called_again(broker_harness: Make) -> None:
    store = DurableStore()
    harness = broker_harness([Waits()], store=store)
    harness.handle("waits").set_timer("k", EPOCH)
    harness.settle()
    plugin = Waits()
    harness = broker_harness([plugin], store=store)  # as after a crash
    harness.settle()
    assert plugin.began == ["k"]


def test_timers_follow_the_plugin_over_a_reload(broker_harness: Make) -> None:
    old, new = Clocked(), Clocked()
    harness = broker_harness([old])
    harness.handle("clock").set_timer("k", EPOCH + 10)
    harness.reload(plugins=[Clocked("other")])
    harness.advance(20)
    assert old.called == []
    harness.reload(plugins=[new])
    assert times(new) == [(20, "k")]


def test_nothing_is_called_while_the_broker_stops(broker_harness: Make) -> None:
    plugin = Clocked()
    store = DurableStore()
    harness = broker_harness([plugin], store=store)
    harness.handle("clock").set_timer("k", EPOCH + 5)
    harness.settle()
    harness.close()
    harness.advance(10)
    assert plugin.called == []
    assert list(store.plugin_state) == [("t/clock", "k")]


def test_on_timer_of_a_blocking_plugin_runs_in_a_thread(broker_harness: Make) -> None:
    class Blocking(Plugin):
        blocking = True

        @hookimpl
        def on_timer(self, key: str, broker: BrokerHandle) -> None:
            threads.append(harness.clock.on_loop())
            broker.publish("done", key.encode())

    threads: list[bool] = []
    harness = broker_harness([Blocking(None, Context("b"))])
    sub = harness.connect("sub")
    sub.subscribe("done")
    harness.handle("b").set_timer("k", EPOCH)
    harness.advance(1)
    assert threads == [False]
    assert sub.expect_message().payload == b"k"
    assert harness.handle("b").state.keys == 0


def test_a_clock_that_is_set_is_noticed_within_a_minute(broker_harness: Make) -> None:
    plugin = Clocked()
    harness = broker_harness([plugin])
    harness.handle("clock").set_timer("k", EPOCH + 5000)
    harness.advance(10)
    _set_clock(harness, 4995.0)
    harness.advance(60)
    assert len(plugin.called) == 1


def _set_clock(harness: Harness, seconds: float) -> None:
    time = harness.clock.time
    setattr(harness.clock, "time", lambda: time() + seconds)  # noqa: B010


@pytest.mark.parametrize("answer", [None, "something"])
def test_the_result_of_on_timer_is_ignored(broker_harness: Make, answer: Any) -> None:
    class Answers(Plugin):
        @hookimpl
        def on_timer(self, key: str) -> Any:
            return answer

    harness = broker_harness([Answers(None, Context("a"))])
    harness.handle("a").set_timer("k", EPOCH)
    harness.settle()
    assert harness.handle("a").state.keys == 0
    assert harness.hooks.plugins[0].stats("on_timer").ok == 1
