from hookmq.hooks.stats import PLACES, HookStats
from hookmq_testing.runtime import VirtualRuntime


def test_a_hot_hook_has_one_call_in_64_timed(runtime: VirtualRuntime) -> None:
    stats = HookStats("p", "on_publish", hot=True)
    stats.bind(runtime.now, runtime.log)
    for _ in range(129):
        began = stats.begin()
        runtime.advance(0.5)
        stats.end(began)
    assert (stats.calls, stats.timed, stats.seconds) == (129, 3, 1.5)
    found = stats.durations()
    assert (found.count, found.sum) == (3, 1.5)
    assert found.counts[found.bounds.index(1.0)] == 3


def test_another_hook_has_every_call_timed(runtime: VirtualRuntime) -> None:
    stats = HookStats("p", "on_connect")
    stats.bind(runtime.now, runtime.log)
    for _ in range(3):
        began = stats.begin()
        runtime.advance(0.5)
        stats.end(began)
    assert (stats.calls, stats.timed, stats.seconds) == (3, 3, 1.5)


def test_failures_are_logged_once_a_minute(runtime: VirtualRuntime) -> None:
    stats = HookStats("p", "on_publish")
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
        stats = HookStats("p", hook)
        stats.bind(runtime.now, runtime.log)
        stats.failed("boom")
    assert [fields["hook"] for _, _, fields in runtime.logged] == ["on_publish", "on_will"]


def _raised(message: str) -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def _raised_elsewhere(message: str) -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_each_place_is_logged_once_with_its_traceback(runtime: VirtualRuntime) -> None:
    stats = HookStats("p", "on_publish")
    stats.bind(runtime.now, runtime.log)
    for _ in range(3):
        for raised in (_raised, _raised_elsewhere):
            stats.failed("boom", cause=raised("boom"))
    runtime.advance(60)
    stats.failed("boom", cause=_raised("boom"))
    lines = [_raised.__code__.co_firstlineno + 2, _raised_elsewhere.__code__.co_firstlineno + 2]
    logged = [(fields["line"], fields["unlogged"]) for _, _, fields in runtime.logged]
    assert logged == [(lines[0], 0), (lines[1], 0), (lines[0], 4)]
    assert all(fields["file"] == __file__ for _, _, fields in runtime.logged)
    assert [("traceback" in fields) for _, _, fields in runtime.logged] == [True, True, False]


def test_every_failure_is_logged_at_debug(runtime: VirtualRuntime) -> None:
    stats = HookStats("p", "on_publish")
    stats.bind(runtime.now, runtime.log, runtime.logs)
    for _ in range(3):
        stats.failed("boom", cause=_raised("boom"))
    stats.failed("no answer", timeout=True)
    runtime.advance(60)
    stats.failed("boom", cause=_raised("boom"))
    logged = [
        (level, event, fields.get("traceback") is not None)
        for level, event, fields in runtime.logged
    ]
    again = ("debug", "plugin.failed_again", True)
    assert logged == [
        ("error", "plugin.failed", True),
        again,
        again,
        ("debug", "plugin.failed_again", False),
        again,
        ("error", "plugin.failed", False),
    ]


def test_many_places_do_not_fill_the_log(runtime: VirtualRuntime) -> None:
    stats = HookStats("p", "on_publish")
    stats.bind(runtime.now, runtime.log)
    for number in range(PLACES + 10):
        scope: dict[str, object] = {}
        exec(compile("\n" * number + "def boom(): raise ValueError", "plugin.py", "exec"), scope)
        try:
            scope["boom"]()  # type: ignore[operator]
        except ValueError as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            stats.failed("boom", cause=error)
    assert len(runtime.logged) == PLACES
