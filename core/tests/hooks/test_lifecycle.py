"""Test the lifecycle of plugins: how they start, become ready, reload and stop."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.call import run_transform
from hookmq.hooks.instance import HookOptions, PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError
from hookmq.model.message import Message
from hookmq.plugin import Plugin
from hookmq_testing.runtime import VirtualRuntime

Make = Callable[..., Plugin]
MakeInstance = Callable[..., PluginInstance]
Bound = Callable[..., Hooks]


class Story:
    """Records events in order, and creates plugins that add events."""

    def __init__(self, make: Make, runtime: VirtualRuntime) -> None:
        self.make = make
        self.runtime = runtime
        self.told: list[Any] = []

    def plugin(self, plugin_id: str, way: str = "sync", **answers: Any) -> Plugin:
        """Return a plugin that implements all four hooks, sync or async. `answers` replaces the behavior of
        some hooks.
        """

        def hook(name: str) -> Any:
            def happen() -> None:
                self.told.append((name, plugin_id))
                answer = answers.get(name)
                if isinstance(answer, BaseException):
                    raise answer

            def at_once(self_: Any) -> None:
                happen()

            async def later(self_: Any) -> None:
                await self.runtime.sleep(answers.get("seconds", 0.1))
                happen()

            return at_once if way == "sync" else later

        names = ("on_startup", "on_ready", "on_reload", "on_shutdown")
        return self.make(plugin_id, **{name: hook(name) for name in names})

    def done(self, *told: Any) -> None:
        self.told.append(told)


@pytest.fixture
def story(make: Make, runtime: VirtualRuntime) -> Story:
    return Story(make, runtime)


WAYS = pytest.mark.parametrize("way", ["sync", "async"])


@WAYS
def test_startup_in_order_and_shutdown_in_reverse(story: Story, bound: Bound, way: str) -> None:
    hooks = bound(*(story.plugin(i, way) for i in "bca"))
    hooks.startup(story.done)
    story.runtime.advance(1)
    hooks.ready(story.done)
    story.runtime.advance(1)
    hooks.reloaded(1, 2, hooks.plugins[1:], story.done)
    story.runtime.advance(1)
    hooks.shutdown(10.0, story.done)
    story.runtime.advance(1)
    assert story.told == [
        ("on_startup", "b"),
        ("on_startup", "c"),
        ("on_startup", "a"),
        (None,),
        ("on_ready", "b"),
        ("on_ready", "c"),
        ("on_ready", "a"),
        (),
        ("on_reload", "c"),
        ("on_reload", "a"),
        (),
        ("on_shutdown", "a"),
        ("on_shutdown", "c"),
        ("on_shutdown", "b"),
        (),
    ]


def test_without_plugins_everything_is_done_at_once(story: Story, bound: Bound) -> None:
    hooks = bound()
    hooks.startup(story.done)
    hooks.ready(story.done)
    hooks.reloaded(1, 2, (), story.done)
    hooks.shutdown(10.0, story.done)
    assert story.told == [(None,), (), (), ()]


def test_arguments(make: Make, bound: Bound, runtime: VirtualRuntime, story: Story) -> None:
    seen: list[Any] = []
    plugin = make(
        "p",
        on_startup=lambda self, broker: seen.append(broker),
        on_ready=lambda self, broker: seen.append(broker),
        on_reload=lambda self, new, old: seen.append((old, new)),
        on_shutdown=lambda self, deadline, broker: seen.append((broker, deadline)),
    )
    hooks = bound(plugin)
    hooks.startup(story.done)
    hooks.ready(story.done)
    hooks.reloaded("old", "new", hooks.plugins, story.done)
    hooks.shutdown(10.0, story.done)
    assert seen == ["handle of p", "handle of p", ("old", "new"), ("handle of p", 10.0)]


@WAYS
def test_a_failure_refuses_to_start(story: Story, bound: Bound, way: str) -> None:
    hooks = bound(
        story.plugin("a", way),
        story.plugin("b", way, on_startup=OSError("no route")),
        story.plugin("c", way),
    )
    hooks.startup(story.done)
    story.runtime.advance(1)
    assert story.told[:2] == [("on_startup", "a"), ("on_startup", "b")]
    ((error,),) = story.told[2:]
    assert isinstance(error, PluginError)
    assert str(error) == "plugin 'b': on_startup failed: OSError: no route"
    # on_shutdown is called only for plugins that were started
    hooks.shutdown(10.0, story.done)
    story.runtime.advance(1)
    assert story.told[3:] == [("on_shutdown", "a"), ()]


@WAYS
def test_a_plugin_that_is_not_required_is_left_out(
    story: Story, bound: Bound, instance: MakeInstance, way: str
) -> None:
    hooks = bound(
        instance(story.plugin("a", way, on_startup=OSError("no route")), required=False),
        story.plugin("b", way),
    )
    hooks.startup(story.done)
    story.runtime.advance(1)
    assert story.told == [("on_startup", "a"), ("on_startup", "b"), (None,)]
    (off,) = [one for one in hooks.plugins if one.disabled]
    assert (off.id, off.disabled) == ("a", "on_startup failed: OSError: no route")
    error = {"plugin": "a", "error": "OSError: no route"}
    assert ("error", "plugin.disabled", error) in story.runtime.logged
    hooks.ready(story.done)
    hooks.shutdown(10.0, story.done)
    story.runtime.advance(2)
    assert ("on_ready", "a") not in story.told
    assert ("on_shutdown", "a") not in story.told


def test_a_start_that_takes_too_long_refuses_to_start(
    story: Story, bound: Bound, instance: MakeInstance
) -> None:
    hooks = bound(story.plugin("a", "async", seconds=100.0))
    hooks.startup(story.done)
    story.runtime.advance(29.9)
    assert story.told == []
    story.runtime.advance(0.1)
    ((error,),) = story.told
    assert "no answer within 30 s" in str(error)
    patient = instance(
        story.plugin("b", "async", seconds=100.0), hooks={"on_startup": HookOptions(timeout=200.0)}
    )
    bound(patient).startup(story.done)
    story.runtime.advance(100)
    assert story.told[1:] == [("on_startup", "b"), (None,)]


@WAYS
@pytest.mark.parametrize("hook", ["on_ready", "on_reload", "on_shutdown"])
def test_later_failures_are_counted_and_logged(
    story: Story, bound: Bound, way: str, hook: str
) -> None:
    hooks = bound(
        story.plugin("a", way, **{hook: OSError("no")}),
        story.plugin("b", way, **{hook: OSError("no")}),
    )
    hooks.startup(story.done)
    story.runtime.advance(1)
    start: Any = {
        "on_ready": lambda: hooks.ready(story.done),
        "on_reload": lambda: hooks.reloaded(1, 2, hooks.plugins, story.done),
        "on_shutdown": lambda: hooks.shutdown(10.0, story.done),
    }[hook]
    start()
    story.runtime.advance(1)
    assert story.told[-1] == ()
    assert {one for one in story.told if one[:1] == (hook,)} == {(hook, "a"), (hook, "b")}
    assert [one.stats(hook).error for one in hooks.plugins] == [1, 1]
    assert [event for _, event, _ in story.runtime.logged] == ["plugin.failed"] * 2


def test_a_sync_hook_that_returns_a_coroutine_is_awaited(
    story: Story, bound: Bound, make: Make
) -> None:
    async def later() -> None:
        await story.runtime.sleep(0.1)
        story.told.append("awaited")

    bound(make("p", on_startup=lambda self: later())).startup(story.done)
    story.runtime.advance(1)
    assert story.told == ["awaited", (None,)]


def test_the_result_of_a_lifecycle_hook_is_ignored(story: Story, bound: Bound, make: Make) -> None:
    hooks = bound(make("p", on_startup=lambda self: 5))
    hooks.startup(story.done)
    assert story.told == [(None,)]
    assert hooks.plugins[0].stats("on_startup").ok == 1


# reload ----------------------------------------------------------------------------------------------------------


def test_a_kept_plugin_is_started_once_and_ended_once(
    story: Story, bound: Bound, instance: MakeInstance
) -> None:
    first = bound(story.plugin("a"), story.plugin("b"))
    first.startup(story.done)
    kept, _ = first.plugins
    second = bound(kept.with_entry(kept.entry), instance(story.plugin("c")))
    story.told.clear()
    second.startup(story.done)
    first.shutdown(10.0, story.done, successor=second)
    second.shutdown(10.0, story.done)
    assert story.told == [
        ("on_startup", "c"),
        (None,),
        ("on_shutdown", "b"),
        (),
        ("on_shutdown", "c"),
        ("on_shutdown", "a"),
        (),
    ]


def test_a_plugin_leaves_after_on_shutdown(
    story: Story, bound: Bound, instance: MakeInstance
) -> None:
    first = bound(story.plugin("a"), story.plugin("b"))
    first.startup(story.done)
    for one in first.plugins:
        one.kept.farewells.append(lambda name=one.id: story.told.append(("left", name)))  # type: ignore[misc]
    kept, _ = first.plugins
    second = bound(kept.with_entry(kept.entry))
    story.told.clear()
    first.shutdown(10.0, story.done, successor=second)
    assert story.told == [("on_shutdown", "b"), ("left", "b"), ()]
    second.disable("a", "it broke")
    assert story.told[3:] == [("left", "a")]
    assert kept.kept.left


def test_a_leaving_plugin_ends_after_its_calls_in_flight(
    story: Story, bound: Bound, make: Make, client: ClientInfo
) -> None:
    async def on_publish(self: Any) -> None:
        await story.runtime.sleep(0.5)
        story.told.append("answered")

    def on_shutdown(self: Any) -> None:
        story.told.append("ended")

    hooks = bound(make("p", on_publish=on_publish, on_shutdown=on_shutdown))
    hooks.startup(story.done)
    message = Message("t", b"")
    run_transform(story.runtime, hooks.chains("x").on_publish, client, message, lambda *told: None)
    hooks.shutdown(10.0, story.done, successor=bound())
    story.runtime.advance(0.4)
    assert story.told == [(None,)]
    story.runtime.advance(0.6)
    assert story.told == [(None,), "answered", "ended", ()]


def test_observers_finish_before_the_end(
    story: Story, bound: Bound, make: Make, client: ClientInfo
) -> None:
    async def on_published(self: Any, matched: Any) -> None:
        await story.runtime.sleep(0.5)
        story.told.append(matched)

    def on_shutdown(self: Any) -> None:
        story.told.append("ended")

    hooks = bound(make("p", on_published=on_published, on_shutdown=on_shutdown))
    hooks.startup(story.done)
    for number in range(3):
        hooks.observers.notify("on_published", "x", client, Message("t", b""), number)
    hooks.shutdown(10.0, story.done)
    story.runtime.advance(2)
    assert story.told == [(None,), 0, 1, 2, "ended", ()]


def test_the_deadline_bounds_everything(
    story: Story, bound: Bound, make: Make, client: ClientInfo
) -> None:
    async def forever(self: Any) -> None:
        await story.runtime.event()

    hooks = bound(make("p", on_published=forever, on_shutdown=forever))
    hooks.startup(story.done)
    for number in range(3):
        hooks.observers.notify("on_published", "x", client, Message("t", b""), number)
    hooks.shutdown(10.0, story.done)
    story.runtime.advance(9.9)
    assert story.told == [(None,)]
    story.runtime.advance(0.1)
    assert story.told == [(None,), ()]
    assert ("warning", "observers.dropped", {"events": 3}) in story.runtime.logged
    assert not story.runtime.tasks
    # what comes after the end is dropped and counted
    hooks.observers.notify("on_published", "x", client, Message("t", b""), 4)
    story.runtime.advance(100)
    queue = hooks.plugins[0].kept.queue
    assert (queue.waiting, queue.lanes["on_published"].dropped) == (0, 4)
