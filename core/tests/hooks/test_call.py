"""Test every deciding and transforming hook with every possible result, for every way of writing an implementation."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.call import run_auth, run_authorize, run_connect, run_deliver, run_transform
from hookmq.hooks.chain import HookImplementation, any_contains, any_matches, any_overlaps
from hookmq.hooks.stats import HookStats
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Handled, Limits
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing.runtime import VirtualRuntime

MESSAGE = Message("t/1", b"x", 1, sender="c1", origin="client", received_at=5.0)
OTHER = MESSAGE.replace(payload=b"y")
SUBSCRIPTION = Subscription("t/#", "t/#", 1)
OTHER_SUBSCRIPTION = SUBSCRIPTION.replace(topic_filter="u/#", qos=0)
BANNED = Deny(ReasonCode.BANNED, "out", disconnect=True)
UNAVAILABLE = Deny(ReasonCode.SERVER_UNAVAILABLE, decided=False)
UNSPECIFIED = Deny(ReasonCode.UNSPECIFIED_ERROR, decided=False)
UNDECIDED = Deny(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, decided=False)

VALUES = {"on_publish": MESSAGE, "on_will": MESSAGE, "on_subscribe": SUBSCRIPTION}
FAILURES = {
    "on_connect": UNAVAILABLE,
    "on_auth": UNSPECIFIED,
    "authorize": UNDECIDED,
    "on_publish": UNDECIDED,
    "on_will": UNDECIDED,
    "on_subscribe": UNDECIDED,
}

Told = list[tuple[Any, str]]


class Bench:
    """A test bench that runs chains of hooks and records the arguments passed to `done`."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self.runtime = runtime
        self.told: Told = []
        self.asked: list[str] = []

    def done(self, verdict: Any, by: str) -> None:
        self.told.append((verdict, by))

    def call(
        self, hook: str, plugin_id: str, way: str, answer: Any, **given: Any
    ) -> HookImplementation:
        """Return an implementation that returns `answer`, or raises it if it is an exception. `way` selects how the
        implementation is written.
        """
        runtime, asked = self.runtime, self.asked

        def now() -> Any:
            asked.append(plugin_id)
            if isinstance(answer, BaseException):
                raise answer
            return answer() if callable(answer) else answer

        async def later() -> Any:
            await runtime.sleep(0.1)
            return now()

        async def at_once() -> Any:
            return now()

        ways: dict[str, Callable[[], Any]] = {
            "sync": now,
            "async": later,
            "async at once": at_once,
            "awaitable": lambda: Awaitable(later()),
            "thread": now,
            "thread, then awaited": later,
        }
        function = ways[way]
        stats = HookStats(plugin_id, hook)
        stats.bind(runtime.now, runtime.log)
        return HookImplementation(
            plugin_id,
            hook,
            lambda *args: function(),
            is_async=way.startswith("async"),
            blocking=way.startswith("thread"),
            timeout=given.pop("timeout", 1.0),
            stats=stats,
            **given,
        )

    def run(
        self,
        hook: str,
        *calls: HookImplementation,
        allow: bool = False,
        skip: str = "",
        value: Any = None,
    ) -> Any:
        args: tuple[Any, ...] = ("client", "packet")
        if hook == "on_connect":
            return run_connect(self.runtime, calls, args, allow, self.done)
        if hook == "on_auth":
            return run_auth(self.runtime, calls, args, self.done)
        if hook == "authorize":
            args = ("client", Action.PUBLISH, "t/1", MESSAGE, None)
            return run_authorize(self.runtime, calls, args, allow, self.done)
        value = VALUES[hook] if value is None else value
        return run_transform(self.runtime, calls, "client", value, self.done, skip)


class Awaitable:
    """An awaitable that is not a coroutine."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine

    def __await__(self) -> Any:
        return self.coroutine.__await__()


@pytest.fixture
def bench(runtime: VirtualRuntime) -> Bench:
    return Bench(runtime)


WAYS = ["sync", "async", "async at once", "awaitable", "thread", "thread, then awaited"]

LEGAL: list[tuple[str, Any, Any, str]] = [
    # hook, answer, arguments of `done`, counted outcome
    ("on_connect", None, (Deny(), ""), "abstain"),
    ("on_connect", Accept("me"), (Accept("me"), "p"), "accept"),
    ("on_connect", BANNED, (BANNED, "p"), "deny"),
    ("on_auth", None, (None, ""), "abstain"),
    ("on_auth", Accept("me"), (Accept("me"), "p"), "accept"),
    ("on_auth", Challenge(b"?"), (Challenge(b"?"), "p"), "challenge"),
    ("on_auth", BANNED, (BANNED, "p"), "deny"),
    ("authorize", None, (Deny(), ""), "abstain"),
    ("authorize", Allow(), (Allow(), "p"), "allow"),
    ("authorize", Allow(5.0, 1), (Allow(5.0, 1), "p"), "allow"),
    ("authorize", BANNED, (BANNED, "p"), "deny"),
    ("on_publish", None, (MESSAGE, ""), "abstain"),
    ("on_publish", MESSAGE, (MESSAGE, ""), "abstain"),
    ("on_publish", OTHER, (OTHER, "p"), "replace"),
    ("on_publish", Drop(), (Drop(), "p"), "drop"),
    ("on_publish", BANNED, (BANNED, "p"), "deny"),
    ("on_will", None, (MESSAGE, ""), "abstain"),
    ("on_will", OTHER, (OTHER, "p"), "replace"),
    ("on_will", Drop(), (Drop(), "p"), "drop"),
    ("on_will", BANNED, (BANNED, "p"), "deny"),
    ("on_subscribe", None, (SUBSCRIPTION, ""), "abstain"),
    ("on_subscribe", OTHER_SUBSCRIPTION, (OTHER_SUBSCRIPTION, "p"), "replace"),
    ("on_subscribe", BANNED, (BANNED, "p"), "deny"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("hook", "answer", "told", "outcome"), LEGAL)
def test_legal_answers(
    bench: Bench, way: str, hook: str, answer: Any, told: Any, outcome: str
) -> None:
    call = bench.call(hook, "p", way, answer)
    cancel = bench.run(hook, call)
    if way == "sync":
        assert cancel is None
        assert bench.told == [told]
    else:
        assert bench.told == []
        bench.runtime.advance(0.2)
        assert bench.told == [told]
        cancel()  # harmless after the call has ended
    stats = call.stats
    assert getattr(stats, outcome) == stats.calls == stats.timed == 1
    assert (stats.pending, stats.error, stats.timeout) == (0, 0, 0)
    assert stats.seconds == pytest.approx(0.1 if way in SLOW else 0.0)
    assert bench.runtime.logged == []
    bench.runtime.advance(10)
    assert bench.told == [told]


SLOW = {"async", "awaitable", "thread, then awaited"}


async def _coroutine() -> Any:
    raise AssertionError("it must be closed, not run")


def wrong_for(hook: str) -> list[Any]:
    wrong: list[Any] = [
        True,
        False,
        "deny",
        0,
        lambda: Accept,  # the class, not an instance
        object(),
        RuntimeError("boom"),
        KeyError(),
        lambda: Deny(ReasonCode.SUCCESS),  # raises in the plugin
    ]
    wrong += [v for v in (Accept(), Allow(), Challenge(b""), Drop()) if type(v) not in GOOD[hook]]
    if hook in VALUES:
        other = SUBSCRIPTION if isinstance(VALUES[hook], Message) else MESSAGE
        wrong.append(other)
    else:
        wrong += [MESSAGE, SUBSCRIPTION]
    return wrong


GOOD: dict[str, set[type]] = {
    "on_connect": {Accept},
    "on_auth": {Accept, Challenge},
    "authorize": {Allow},
    "on_publish": {Drop},
    "on_will": {Drop},
    "on_subscribe": set(),
}
WRONG = [(hook, answer) for hook in FAILURES for answer in wrong_for(hook)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("hook", "answer"), WRONG)
def test_wrong_answers_close(bench: Bench, way: str, hook: str, answer: Any) -> None:
    call = bench.call(hook, "p", way, answer)
    after = bench.call(hook, "q", "sync", None)
    bench.run(hook, call, after, allow=True)
    bench.runtime.advance(0.2)
    assert bench.told == [(FAILURES[hook], "p")]
    assert bench.asked == ["p"]
    assert (call.stats.error, call.stats.timeout, call.stats.pending) == (1, 0, 0)
    ((level, event, fields),) = bench.runtime.logged
    assert (level, event) == ("error", "plugin.failed")
    assert (fields["plugin"], fields["hook"]) == ("p", hook)
    assert fields["error"]


@pytest.mark.parametrize("way", [w for w in WAYS if w not in ("sync", "thread")])
@pytest.mark.parametrize("hook", FAILURES)
def test_an_awaited_result_is_not_awaited_again(bench: Bench, way: str, hook: str) -> None:
    bench.run(hook, bench.call(hook, "p", way, _coroutine), allow=True)
    bench.runtime.advance(0.2)
    # an unawaited coroutine would cause a warning, and warnings are errors
    assert bench.told == [(FAILURES[hook], "p")]
    assert "cannot be awaited here" in str(bench.runtime.logged[0][2]["error"])


@pytest.mark.parametrize("way", ["async", "awaitable", "thread, then awaited"])
@pytest.mark.parametrize("hook", FAILURES)
def test_a_missed_deadline_closes(bench: Bench, way: str, hook: str) -> None:
    call = bench.call(hook, "p", way, None, timeout=0.05)
    bench.run(hook, call, allow=True)
    bench.runtime.advance(0.049)
    assert bench.told == []
    bench.runtime.advance(0.001)
    assert bench.told == [(FAILURES[hook], "p")]
    assert (call.stats.timeout, call.stats.error, call.stats.pending) == (1, 0, 0)
    assert "no answer within 0.05 s" in str(bench.runtime.logged[0][2]["error"])
    bench.runtime.advance(1)
    assert bench.asked == []
    assert bench.told == [(FAILURES[hook], "p")]
    assert not bench.runtime.tasks


@pytest.mark.parametrize("way", [w for w in WAYS if w != "sync"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("hook", FAILURES)
def test_a_cancelled_decision_tells_nothing(bench: Bench, way: str, turns: int, hook: str) -> None:
    call = bench.call(hook, "p", way, None)
    cancel = bench.run(hook, call, bench.call(hook, "q", "async", None))
    for _ in range(turns):
        bench.runtime.turn()
    assert bench.told == []
    cancel()
    cancel()
    bench.runtime.advance(10)
    assert bench.told == []
    assert call.stats.pending == 0
    assert call.stats.timeout == 0
    assert not bench.runtime.tasks


@pytest.mark.parametrize("way", ["async", "thread, then awaited"])
def test_a_runtime_that_forgets_a_coroutine_leaves_none_unawaited(
    bench: Bench, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # asyncio's task can close a coroutine that has not started; the awaitable inside it would never be awaited
    monkeypatch.setattr(bench.runtime, "spawn", lambda awaitable, done: lambda: None)
    cancel = bench.run("on_publish", bench.call("on_publish", "p", way, None))
    bench.runtime.run_until_idle()
    cancel()
    assert bench.told == []


def test_cancel_reaches_the_call_that_waits_now(bench: Bench) -> None:
    first = bench.call("on_connect", "p", "async", Accept())
    second = bench.call("on_connect", "q", "thread, then awaited", Accept())
    cancel = bench.run("on_connect", first, second)
    bench.runtime.advance(0.15)
    assert (first.stats.accept, second.stats.pending) == (1, 1)
    cancel()
    bench.runtime.advance(10)
    assert bench.told == []
    assert second.stats.pending == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_exceptions_that_end_the_program_are_not_caught(
    bench: Bench, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        bench.run("on_connect", bench.call("on_connect", "p", "sync", error()))
    assert bench.told == []


def test_a_cancelled_error_of_its_own_making_is_a_failure(bench: Bench) -> None:
    import asyncio

    bench.run("on_publish", bench.call("on_publish", "p", "async", asyncio.CancelledError()))
    bench.runtime.advance(1)
    assert bench.told == [(UNDECIDED, "p")]


# combining -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_deny_overrides_every_accept(bench: Bench, way: str) -> None:
    calls = [
        bench.call("on_connect", "a", way, Accept("me")),
        bench.call("on_connect", "b", way, BANNED),
        bench.call("on_connect", "c", way, Accept("you")),
    ]
    bench.run("on_connect", *calls)
    bench.runtime.advance(1)
    assert bench.told == [(BANNED, "b")]
    assert bench.asked == ["a", "b"]


@pytest.mark.parametrize("way", WAYS)
def test_accepts_are_put_together(bench: Bench, way: str) -> None:
    first = Accept("me", None, 100.0, Limits(receive_maximum=10))
    limits = Limits(receive_maximum=20, queue_messages=5)
    second = Accept("you", {"role": "x"}, 50.0, limits, expiry_code=ReasonCode.BANNED)
    third = Accept(None, {"role": "y"}, 70.0, None)
    calls = [
        bench.call("on_connect", plugin_id, way, answer)
        for plugin_id, answer in (("z", None), ("a", first), ("b", second), ("c", third))
    ]
    bench.run("on_connect", *calls)
    bench.runtime.advance(1)
    limits = Limits(receive_maximum=10, queue_messages=5)
    expected = Accept("me", {"role": "x"}, 50.0, limits, expiry_code=ReasonCode.BANNED)
    assert bench.told == [(expected, "a")]


def test_an_empty_identity_is_one(bench: Bench) -> None:
    calls = [
        bench.call("on_connect", "a", "sync", Accept("", {})),
        bench.call("on_connect", "b", "sync", Accept("root", {"admin": True})),
    ]
    bench.run("on_connect", *calls)
    assert bench.told == [(Accept("", {}), "a")]


@pytest.mark.parametrize("hook", ["on_connect", "authorize"])
@pytest.mark.parametrize("allow", [True, False])
def test_the_default_holds_where_nobody_answered(bench: Bench, hook: str, allow: bool) -> None:
    bench.run(hook, allow=allow)
    bench.run(hook, bench.call(hook, "p", "sync", None), allow=allow)
    yes: Any = Accept() if hook == "on_connect" else Allow()
    assert bench.told == [(yes if allow else Deny(), "")] * 2


def test_the_first_answer_to_auth_holds(bench: Bench) -> None:
    calls = [
        bench.call("on_auth", "a", "async", None),
        bench.call("on_auth", "b", "sync", Challenge(b"1")),
        bench.call("on_auth", "c", "sync", BANNED),
    ]
    bench.run("on_auth", *calls)
    bench.runtime.advance(1)
    assert bench.told == [(Challenge(b"1"), "b")]
    assert bench.asked == ["a", "b"]


@pytest.mark.parametrize("way", WAYS)
def test_allows_are_put_together_by_the_strictest(bench: Bench, way: str) -> None:
    answers = [
        Allow(),
        None,
        Allow(cache_for=10.0),
        Allow(cache_for=30.0, max_qos=1),
        Allow(None, 2),
    ]
    calls = [bench.call("authorize", str(i), way, a) for i, a in enumerate(answers)]
    bench.run("authorize", *calls)
    bench.runtime.advance(1)
    assert bench.told == [(Allow(10.0, 1), "0")]


def test_one_plugin_without_cache_makes_the_answer_hold_once(bench: Bench) -> None:
    calls = [
        bench.call("authorize", "a", "sync", Allow(max_qos=1)),
        bench.call("authorize", "b", "sync", None, cacheable=False),
    ]
    bench.run("authorize", *calls)
    bench.run("authorize", calls[1], allow=True)
    bench.run("authorize", calls[1])
    assert bench.told == [(Allow(0.0, 1), "a"), (Allow(0.0), ""), (Deny(), "")]


def test_authorize_leaves_out_what_is_narrowed_to_other_topics(bench: Bench) -> None:
    elsewhere = bench.call("authorize", "a", "sync", BANNED, topic=any_matches(["x/#"]))
    here = bench.call("authorize", "b", "sync", Allow(), topic=any_matches(["t/#"]))
    bench.run("authorize", elsewhere, here)
    assert bench.told == [(Allow(), "b")]
    assert bench.asked == ["b"]


@pytest.mark.parametrize(
    ("filter", "answer", "told"),
    [
        ("alarms/1", Allow(), (Allow(), "p")),
        ("$share/g/alarms/+", Allow(), (Allow(), "p")),
        ("#", Allow(), (Deny(), "")),  # the plugin may not grant anything outside its filters
        ("#", BANNED, (BANNED, "p")),  # but it may refuse it
        ("+/1", Allow(), (Deny(), "")),
        ("lights/#", BANNED, (Deny(), "")),  # the plugin is not called
    ],
)
def test_narrowed_plugins_and_subscriptions(
    bench: Bench, filter: str, answer: Any, told: Any
) -> None:
    mine = ["alarms/#"]
    call = bench.call(
        "authorize", "p", "sync", answer, topic=any_overlaps(mine), grants=any_contains(mine)
    )
    args = ("client", Action.SUBSCRIBE, filter, None, SUBSCRIPTION)
    run_authorize(bench.runtime, (call,), args, False, bench.done)
    assert bench.told == [told]


def test_a_decision_about_a_delivery_is_never_awaited(bench: Bench) -> None:
    call = bench.call("authorize", "p", "async", Allow(), sync_only=True)
    assert bench.run("authorize", call) is None
    assert bench.told == [(UNDECIDED, "p")]


# transforms ------------------------------------------------------------------------------------------------------


def chain(bench: Bench, hook: str, way: str, functions: dict[str, Any]) -> list[HookImplementation]:
    """Return a chain of calls to `functions`, which receive the hook's arguments."""
    calls = []
    for plugin_id, function in functions.items():
        call = bench.call(hook, plugin_id, "sync", None)
        if way == "sync":
            call.function = function
        elif way == "thread":
            call.function, call.blocking = function, True
        else:

            async def later(client: Any, value: Any, function: Any = function) -> Any:
                await bench.runtime.sleep(0.1)
                return function(client, value)

            call.function, call.is_async = later, True
        calls.append(call)
    return calls


@pytest.mark.parametrize("way", ["sync", "async", "thread"])
def test_each_sees_what_the_one_before_made(bench: Bench, way: str) -> None:
    functions = {
        "a": lambda client, message: message.replace(payload=message.payload + b"a"),
        "b": lambda client, message: None,
        "c": lambda client, message: message.replace(payload=message.payload + b"c"),
    }
    bench.run("on_publish", *chain(bench, "on_publish", way, functions))
    bench.runtime.advance(1)
    ((message, by),) = bench.told
    assert (message.payload, by) == (b"xac", "c")


@pytest.mark.parametrize("way", ["sync", "async", "thread"])
@pytest.mark.parametrize("verdict", [Drop(), Handled(), BANNED])
def test_drop_handled_and_deny_end_it(bench: Bench, way: str, verdict: Any) -> None:
    functions = {
        "a": lambda client, message: verdict,
        "b": lambda client, message: pytest.fail("it was asked"),
    }
    bench.run("on_publish", *chain(bench, "on_publish", way, functions))
    bench.runtime.advance(1)
    assert bench.told == [(verdict, "a")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", [RuntimeError("boom"), "nonsense", MESSAGE.replace(qos=2)])
def test_on_error_pass_goes_on_as_before(bench: Bench, way: str, answer: Any) -> None:
    calls = [
        bench.call("on_publish", "a", "sync", OTHER),
        bench.call("on_publish", "b", way, answer, on_error="pass"),
        bench.call("on_publish", "c", "sync", None),
    ]
    bench.run("on_publish", *calls)
    bench.runtime.advance(1)
    assert bench.told == [(OTHER, "a")]
    assert bench.asked == ["a", "b", "c"]
    assert calls[1].stats.error == 1


def test_on_error_pass_goes_on_after_a_missed_deadline(bench: Bench) -> None:
    call = bench.call("on_publish", "a", "async", OTHER, on_error="pass", timeout=0.01)
    bench.run("on_publish", call)
    bench.runtime.advance(1)
    assert bench.told == [(MESSAGE, "")]
    assert call.stats.timeout == 1


@pytest.mark.parametrize("way", WAYS)
def test_the_publisher_is_passed_over(bench: Bench, way: str) -> None:
    calls = [
        bench.call("on_publish", "a", way, OTHER),
        bench.call("on_publish", "b", way, None),
    ]
    bench.run("on_publish", *calls, skip="a")
    bench.runtime.advance(1)
    assert bench.told == [(MESSAGE, "")]
    assert bench.asked == ["b"]


def test_a_new_topic_reaches_those_who_are_narrowed_to_it(bench: Bench) -> None:
    calls = [
        bench.call("on_publish", "old", "sync", None, topic=any_matches(["alarms/#"])),
        bench.call("on_publish", "mover", "sync", MESSAGE.replace(topic="alarms/1")),
        bench.call("on_publish", "new", "sync", None, topic=any_matches(["alarms/#"])),
    ]
    bench.run("on_publish", *calls)
    assert bench.asked == ["mover", "new"]


def test_a_subscription_reaches_those_who_are_narrowed_to_part_of_it(bench: Bench) -> None:
    calls = [
        bench.call("on_subscribe", "in", "sync", None, topic=any_overlaps(["t/1"])),
        bench.call("on_subscribe", "out", "sync", None, topic=any_overlaps(["u"])),
    ]
    bench.run("on_subscribe", *calls)
    assert bench.asked == ["in"]


def message(**changes: Any) -> Message:
    return MESSAGE.replace(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qos": 2}, "of QoS 2 instead of 1: QoS cannot be raised"),
        ({"qos": 3}, "whose qos is not 0, 1 or 2"),
        ({"qos": -1}, "whose qos is not 0, 1 or 2"),
        ({"qos": "1"}, "whose qos is not 0, 1 or 2"),
        ({"topic": b"t"}, "whose topic is not str"),
        ({"payload": "text"}, "whose payload is not bytes"),
        ({"payload": bytearray(b"x")}, "whose payload is not bytes"),
        ({"retain": 1}, "whose retain is not bool"),
        ({"properties": {}}, "whose properties are not Properties"),
        ({"expires_at": "soon"}, "whose expires_at is neither a number nor None"),
    ],
)
def test_a_message_that_cannot_be(bench: Bench, changes: Any, words: str) -> None:
    bench.run("on_publish", bench.call("on_publish", "p", "sync", message(**changes)))
    assert bench.told == [(UNDECIDED, "p")]
    assert words in str(bench.runtime.logged[0][2]["error"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qos": 2}, "of QoS 2 instead of 1: QoS cannot be raised"),
        ({"filter": "other"}, "with another filter: change topic_filter instead"),
        ({"topic_filter": None}, "whose topic_filter is not str"),
        ({"retain_handling": 3}, "whose retain_handling is not 0, 1 or 2"),
        ({"no_local": 1}, "is not bool"),
        ({"share": 1}, "whose share is not str"),
        ({"identifier": "1"}, "whose identifier is not int"),
    ],
)
def test_a_subscription_that_cannot_be(bench: Bench, changes: Any, words: str) -> None:
    answer = SUBSCRIPTION.replace(**changes)
    bench.run("on_subscribe", bench.call("on_subscribe", "p", "sync", answer))
    assert bench.told == [(UNDECIDED, "p")]
    assert words in str(bench.runtime.logged[0][2]["error"])


def test_on_publish_cannot_change_the_source_of_a_message(bench: Bench) -> None:
    answer = Message("elsewhere", b"new", 0, sender="forged", origin="plugin:forged")
    bench.run("on_publish", bench.call("on_publish", "p", "sync", answer))
    ((made, _),) = bench.told
    assert (made.topic, made.payload, made.qos) == ("elsewhere", b"new", 0)
    assert (made.sender, made.origin, made.received_at) == ("c1", "client", 5.0)


# on_deliver ------------------------------------------------------------------------------------------------------

DELIVERIES: list[tuple[Any, str, Any, str]] = [
    # returned value, on_error, resulting message, counted outcome
    (None, "pass", MESSAGE, "abstain"),
    (MESSAGE, "pass", MESSAGE, "abstain"),
    (OTHER, "pass", OTHER, "replace"),
    (Drop(), "pass", None, "drop"),
    (BANNED, "pass", None, "deny"),
    (RuntimeError("boom"), "pass", MESSAGE, "error"),
    (RuntimeError("boom"), "drop", None, "error"),
    ("nonsense", "pass", MESSAGE, "error"),
    ("nonsense", "drop", None, "error"),
    (Allow(), "drop", None, "error"),
    (SUBSCRIPTION, "drop", None, "error"),
    (MESSAGE.replace(qos=2), "pass", MESSAGE, "error"),
    (MESSAGE.replace(qos=2), "drop", None, "error"),
    (MESSAGE.replace(topic="t/#"), "pass", MESSAGE, "error"),
    (MESSAGE.replace(topic="t" * 65_536), "pass", MESSAGE, "error"),
    (MESSAGE.replace(topic="\0"), "drop", None, "error"),
    (_coroutine, "pass", MESSAGE, "error"),
    (_coroutine, "drop", None, "error"),
]


@pytest.mark.parametrize(("answer", "on_error", "out", "outcome"), DELIVERIES)
def test_on_deliver(bench: Bench, answer: Any, on_error: str, out: Any, outcome: str) -> None:
    call = bench.call("on_deliver", "p", "sync", answer, on_error=on_error)
    assert run_deliver((call,), "client", MESSAGE, SUBSCRIPTION) is out
    assert getattr(call.stats, outcome) == 1
    assert len(bench.runtime.logged) == (outcome == "error")


def test_on_deliver_chains(bench: Bench) -> None:
    first = bench.call("on_deliver", "a", "sync", OTHER)
    seen: list[Any] = []
    second = bench.call("on_deliver", "b", "sync", None)
    second.function = lambda client, message, subscription: seen.append(message)
    elsewhere = bench.call("on_deliver", "c", "sync", Drop(), topic=any_matches(["x"]))
    assert run_deliver((first, second, elsewhere), "c", MESSAGE, SUBSCRIPTION) is OTHER
    assert seen == [OTHER]
    assert run_deliver((), "c", MESSAGE, SUBSCRIPTION) is MESSAGE
