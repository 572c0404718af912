"""Test which events observers receive, and how configuration affects that."""

from typing import Any

import pytest
from hookmq.hooks.instance import HookOptions, PluginEntry
from hookmq.model.events import Action
from hookmq.model.subscription import Subscription
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing.runtime import VirtualRuntime
from observing import MESSAGE, WAYS, Watcher, bind, publish


@pytest.fixture
def runtime() -> VirtualRuntime:
    return VirtualRuntime(blocking=0.0)  # times are asserted to the hundredth


# narrowing -------------------------------------------------------------------------------------------------------


def test_narrowing_by_listener(runtime: VirtualRuntime) -> None:
    tcp = Watcher(runtime, "async", plugin_id="tcp", listeners=("tcp",))
    both = Watcher(runtime, "async", plugin_id="both", listeners=("tcp", "ws"))
    all_ = Watcher(runtime, "async", plugin_id="all")
    hooks = bind(runtime, tcp, both, all_)
    for listener in ("tcp", "ws", "unix", ""):
        publish(hooks, listener, listener=listener)
    runtime.run_until_idle()
    assert tcp.seen == ["tcp"]
    assert both.seen == ["tcp", "ws"]
    assert all_.seen == ["tcp", "ws", "unix", ""]


@pytest.mark.parametrize(
    ("hook", "args", "inside", "outside"),
    [
        ("on_published", (None, "?", 1), MESSAGE, MESSAGE.replace(topic="u")),
        ("on_delivered", ("client", "?", 1), MESSAGE, MESSAGE.replace(topic="u")),
        ("on_dropped", (None, "?", "why"), MESSAGE, MESSAGE.replace(topic="u")),
        ("on_retained", ("?", None), "t/1", "u"),
        ("on_denied", (None, Action.PUBLISH, "?", ReasonCode.BANNED, "acl"), "t/1", "u"),
        ("on_subscribed", ("c", "?", 0), Subscription("#", "#"), Subscription("u", "u")),
        ("on_unsubscribed", ("c", "?"), Subscription("t/+", "t/+"), Subscription("u/#", "u/#")),
    ],
)
def test_narrowing_by_topic(
    runtime: VirtualRuntime, hook: str, args: tuple[Any, ...], inside: Any, outside: Any
) -> None:
    narrowed = Watcher(runtime, "async", hook, plugin_id="narrowed", filters=("t/#",))
    wide = Watcher(runtime, "async", hook, plugin_id="wide")
    hooks = bind(runtime, narrowed, wide)
    for value in (inside, outside):
        hooks.observers.notify(hook, "x", *(value if one == "?" else one for one in args))
    runtime.run_until_idle()
    assert (len(narrowed.seen), len(wide.seen)) == (1, 2)


def test_hooks_about_no_topic_are_not_narrowed_by_one(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async", "on_session", filters=("t/#",))
    hooks = bind(runtime, watcher)
    hooks.observers.notify("on_session", "x", "client", "created")
    runtime.run_until_idle()
    assert watcher.seen == ["client"]


# reload and the end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_kept_plugin_keeps_its_queue_and_its_order(runtime: VirtualRuntime, way: str) -> None:
    watcher = Watcher(runtime, way, seconds=0.5 if way != "sync" else 0.0)
    first = bind(runtime, watcher)
    publish(first, *range(5))
    runtime.turn()
    entry = PluginEntry(use="p", hooks={"on_published": HookOptions(queue=3)})
    watcher.instance = watcher.instance.with_entry(entry)
    second = bind(runtime, watcher)
    publish(first, "late, by the old")
    publish(second, "by the new")
    runtime.advance(10)
    assert watcher.seen[-2:] == ["late, by the old", "by the new"]
    assert watcher.queue.lanes["on_published"].limit == 3
    numbers = watcher.seen[:-2]
    assert numbers == sorted(numbers)
    assert len(numbers) + watcher.dropped() == 5


def test_a_disabled_plugin_is_told_nothing(runtime: VirtualRuntime) -> None:
    watcher = Watcher(runtime, "async")
    hooks = bind(runtime, watcher)
    hooks.disable("p", "it broke")
    publish(hooks, 1)
    runtime.run_until_idle()
    assert watcher.seen == []
