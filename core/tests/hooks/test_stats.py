from hookmq.hooks.stats import Stats
from hookmq.testing.runtime import VirtualRuntime


def test_a_hot_hook_has_one_call_in_64_timed(runtime: VirtualRuntime) -> None:
    stats = Stats("p", "on_publish", hot=True)
    stats.bind(runtime.now, runtime.log)
    for _ in range(129):
        began = stats.begin()
        runtime.advance(0.5)
        stats.end(began)
    assert (stats.calls, stats.timed, stats.seconds) == (129, 3, 1.5)


def test_another_hook_has_every_call_timed(runtime: VirtualRuntime) -> None:
    stats = Stats("p", "on_connect")
    stats.bind(runtime.now, runtime.log)
    for _ in range(3):
        began = stats.begin()
        runtime.advance(0.5)
        stats.end(began)
    assert (stats.calls, stats.timed, stats.seconds) == (3, 3, 1.5)


def test_failures_are_logged_once_a_minute(runtime: VirtualRuntime) -> None:
    stats = Stats("p", "on_publish")
    stats.bind(runtime.now, runtime.log)
    for _ in range(5):
        stats.failed("boom")
    runtime.advance(59.9)
    stats.failed("late", timeout=True)
    runtime.advance(0.1)
    stats.failed("boom again")
    fields = {"plugin": "p", "hook": "on_publish"}
    assert runtime.logged == [
        ("error", "plugin.failed", {**fields, "error": "boom", "unlogged": 0}),
        ("error", "plugin.failed", {**fields, "error": "boom again", "unlogged": 5}),
    ]
    assert (stats.error, stats.timeout) == (6, 1)


def test_hooks_of_one_plugin_are_logged_apart(runtime: VirtualRuntime) -> None:
    for hook in ("on_publish", "on_will"):
        stats = Stats("p", hook)
        stats.bind(runtime.now, runtime.log)
        stats.failed("boom")
    assert [fields["hook"] for _, _, fields in runtime.logged] == ["on_publish", "on_will"]
