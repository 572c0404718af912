"""Test all the hooks of a broker together: order, filters, counters and explanations."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.call import run_authorize, run_deliver, run_transform
from hookmq.hooks.chain import EMPTY_CHAINS, narrow
from hookmq.hooks.instance import HookOptions, PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.specs import OBSERVERS, SPECS, HookKind
from hookmq.model.client import ClientInfo
from hookmq.model.errors import PluginError
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.model.settings import Settings
from hookmq.model.subscription import Subscription
from hookmq.plugin import Allow, Deny, Drop, Plugin
from hookmq_testing.runtime import VirtualRuntime

Make = Callable[..., Plugin]
MakeInstance = Callable[..., PluginInstance]
Bound = Callable[..., Hooks]
MESSAGE = Message("t/1", b"x")
SUBSCRIPTION = Subscription("t/#", "t/#")
CHAINS = ("on_connect", "on_auth", "on_publish", "on_subscribe", "on_deliver", "on_will")


def every_hook(make: Make, plugin_id: str, **given: Any) -> Plugin:
    return make(plugin_id, **{name: (lambda self: None) for name in SPECS}, **given)


def order(hooks: Hooks, listener: str = "tcp") -> dict[str, list[str]]:
    chains = hooks.chains(listener)
    found = {name: [call.plugin_id for call in getattr(chains, name)] for name in CHAINS}
    for action, calls in chains.authorize.items():
        found[action] = [call.plugin_id for call in calls]
    return found


# order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["abc", "cab", "bca", "zyxwv"])
def test_the_order_is_that_of_the_configuration(ids: str, make: Make, bound: Bound) -> None:
    actions = frozenset(Action)
    hooks = bound(*(every_hook(make, i, authorize_actions=actions) for i in ids))
    assert set(map(tuple, order(hooks).values())) == {tuple(ids)}
    for name in SPECS:
        assert [row.plugin for row in hooks.explain(name)] == list(ids)


def test_the_order_after_a_reload_is_that_of_the_new_configuration(
    make: Make, bound: Bound, instance: MakeInstance
) -> None:
    first = bound(*(every_hook(make, i) for i in "abc"))
    a, b, c = first.plugins
    new = instance(every_hook(make, "d"))
    second = bound(c.with_entry(c.entry), new, a, b)
    assert order(second)["on_publish"] == ["c", "d", "a", "b"]
    third = bound(b, a.with_entry(a.entry))
    assert order(third)["on_publish"] == ["b", "a"]
    # the earlier chains do not change for callers that still hold them
    assert order(first)["on_publish"] == ["a", "b", "c"]


@pytest.mark.parametrize("hook", CHAINS)
def test_a_hook_that_nobody_implements_is_an_empty_tuple(
    hook: str, make: Make, bound: Bound
) -> None:
    others = {name: (lambda self: None) for name in SPECS if name != hook}
    chains = bound(make("p", **others)).chains("tcp")
    assert getattr(chains, hook) == ()
    assert type(getattr(chains, hook)) is tuple


def test_without_plugins_there_is_one_empty_chain() -> None:
    hooks = Hooks()
    assert hooks.chains("tcp") is hooks.chains("ws") is EMPTY_CHAINS
    assert hooks.metrics() == []
    hooks.observers.notify("on_published", "tcp", None, MESSAGE, 0)
    assert hooks.observers.queues == {}


def test_chains_are_made_once(make: Make, bound: Bound) -> None:
    hooks = bound(every_hook(make, "p"))
    assert hooks.chains("tcp") is hooks.chains("tcp") is hooks.chains("any other")


def test_hooks_must_be_bound_first(make: Make) -> None:
    with pytest.raises(RuntimeError, match="bind"):
        Hooks.of(every_hook(make, "p")).chains("tcp")


# narrowing -------------------------------------------------------------------------------------------------------


def test_narrowing_by_listener(make: Make, bound: Bound, instance: MakeInstance) -> None:
    hooks = bound(
        instance(every_hook(make, "tcp only"), listeners=("tcp",)),
        instance(every_hook(make, "both"), listeners=("tcp", "ws")),
        instance(every_hook(make, "all")),
    )
    assert order(hooks, "tcp")["on_publish"] == ["tcp only", "both", "all"]
    assert order(hooks, "ws")["on_connect"] == ["both", "all"]
    assert order(hooks, "new")[Action.PUBLISH] == ["all"]
    assert hooks.chains("new") is hooks.chains("newer") is not hooks.chains("ws")


def test_narrowing_by_topic(
    make: Make, bound: Bound, instance: MakeInstance, runtime: VirtualRuntime, client: ClientInfo
) -> None:
    hooks = bound(
        instance(every_hook(make, "alarms"), filters=("alarms/#",)),
        instance(every_hook(make, "all")),
        instance(
            every_hook(make, "mixed"),
            filters=("alarms/#",),
            hooks={"on_publish": HookOptions(filters=("t/+",))},
        ),
    )
    chains = hooks.chains("tcp")

    def ids(calls: Any, topic: str) -> list[str]:
        return [call.plugin_id for call in narrow(calls, topic)]

    assert ids(chains.on_publish, "alarms/1") == ["alarms", "all"]
    assert ids(chains.on_publish, "t/1") == ["all", "mixed"]
    assert ids(chains.on_deliver, "t/1") == ["all"]
    assert ids(chains.on_will, "alarms") == ["alarms", "all", "mixed"]
    assert ids(chains.authorize[Action.PUBLISH], "t/1") == ["all"]
    # subscriptions: plugins narrowed to any part of the filter are asked
    assert ids(chains.authorize[Action.SUBSCRIBE], "#") == ["alarms", "all", "mixed"]
    assert ids(chains.authorize[Action.SUBSCRIBE], "t/#") == ["all"]
    assert ids(chains.on_subscribe, "+/1") == ["alarms", "all", "mixed"]
    # on_connect has no topic, so filters do not narrow it
    assert ids(chains.on_connect, "whatever") == ["alarms", "all", "mixed"]


def test_a_narrowed_plugin_grants_only_within_its_filters(
    make: Make, bound: Bound, instance: MakeInstance, runtime: VirtualRuntime, client: ClientInfo
) -> None:
    plugin = make("p", authorize=lambda self: Allow())
    chains = bound(instance(plugin, filters=("alarms/#",))).chains("tcp")
    told: list[Any] = []

    def ask(action: Action, topic: str) -> Any:
        run_authorize(
            runtime,
            chains.authorize[action],
            (client, action, topic, None, None),
            False,
            lambda verdict, by: told.append(type(verdict)),
        )
        return told[-1]

    assert ask(Action.SUBSCRIBE, "alarms/+") is Allow
    assert ask(Action.SUBSCRIBE, "#") is Deny
    assert ask(Action.PUBLISH, "alarms/1") is Allow
    assert ask(Action.PUBLISH, "lights/1") is Deny


# authorize -------------------------------------------------------------------------------------------------------


def test_deliveries_are_asked_about_only_on_request(make: Make, bound: Bound) -> None:
    hooks = bound(
        make("plain", authorize=lambda self: None),
        make("deliver", authorize=lambda self: None, authorize_actions=frozenset({Action.DELIVER})),
    )
    assert {action: ids for action, ids in order(hooks).items() if action in list(Action)} == {
        Action.PUBLISH: ["plain"],
        Action.SUBSCRIBE: ["plain"],
        Action.WILL: ["plain"],
        Action.DELIVER: ["deliver"],
    }
    (call,) = hooks.chains("tcp").authorize[Action.DELIVER]
    assert call.sync_only
    (call,) = hooks.chains("tcp").authorize[Action.PUBLISH]
    assert not call.sync_only


def test_a_plugin_may_forbid_caching(make: Make, bound: Bound) -> None:
    hooks = bound(make("p", authorize=lambda self: None, authorize_cached=False))
    (call,) = hooks.chains("tcp").authorize[Action.WILL]
    assert not call.cacheable


# calls -----------------------------------------------------------------------------------------------------------


def test_each_plugin_gets_its_own_handle(
    make: Make, bound: Bound, runtime: VirtualRuntime, client: ClientInfo
) -> None:
    seen: list[Any] = []

    def on_publish(self: Any, broker: Any, message: Any) -> None:
        seen.append((self.id, broker, message))

    hooks = bound(make("a", on_publish=on_publish), make("b", on_publish=on_publish))
    run_transform(runtime, hooks.chains("tcp").on_publish, client, MESSAGE, lambda *told: None)
    assert seen == [("a", "handle of a", MESSAGE), ("b", "handle of b", MESSAGE)]


def test_a_handle_once_given_stays(make: Make, bound: Bound, runtime: VirtualRuntime) -> None:
    hooks = bound(make("a"))
    again = Hooks([hooks.plugins[0].with_entry(hooks.plugins[0].entry)])
    again.bind(runtime, lambda one: pytest.fail("it has one"))
    assert again.plugins[0].broker is hooks.plugins[0].broker


def test_options_reach_the_call(make: Make, bound: Bound, instance: MakeInstance) -> None:
    options = {
        "on_publish": HookOptions(timeout=7.0, on_error="pass"),
        "on_deliver": HookOptions(on_error="drop"),
    }
    chains = bound(instance(every_hook(make, "p"), hooks=options)).chains("tcp")
    (publish,), (deliver,), (will,) = chains.on_publish, chains.on_deliver, chains.on_will
    assert (publish.timeout, publish.on_error) == (7.0, "pass")
    assert (deliver.on_error, deliver.sync_only) == ("drop", True)
    assert (will.timeout, will.on_error, will.blocking) == (1.0, "deny", False)


def test_blocking_plugins_decide_in_a_thread(make: Make, bound: Bound) -> None:
    async def later(self: Any) -> None:
        return None

    plugin = make(
        "p", on_connect=lambda self: None, on_auth=later, on_published=later, blocking=True
    )
    hooks = bound(plugin)
    chains = hooks.chains("tcp")
    assert [call.blocking for call in (*chains.on_connect, *chains.on_auth)] == [True, False]
    assert [row.mode for row in hooks.explain("on_connect")] == ["thread"]
    assert [row.mode for row in hooks.explain("on_auth")] == ["async"]


def test_on_deliver_end_to_end(make: Make, bound: Bound, client: ClientInfo) -> None:
    def on_deliver(self: Any, subscription: Any, message: Any) -> Any:
        return Drop() if subscription.qos else None

    calls = bound(make("p", on_deliver=on_deliver)).chains("tcp").on_deliver
    assert run_deliver(calls, client, MESSAGE, SUBSCRIPTION) is MESSAGE
    assert run_deliver(calls, client, MESSAGE, SUBSCRIPTION.replace(qos=1)) is None


def test_a_disabled_plugin_is_in_no_chain(make: Make, bound: Bound) -> None:
    hooks = bound(every_hook(make, "a"), every_hook(make, "b"))
    hooks.disable("a", "it broke")
    assert set(map(tuple, order(hooks).values())) == {("b",), ()}
    rows = hooks.explain("on_publish")
    assert [(row.plugin, row.mode, row.note) for row in rows] == [
        ("a", "off", "it broke"),
        ("b", "sync", ""),
    ]
    hooks.disable("b", "so did it")
    assert hooks.observers.queues == {}


# provide and register --------------------------------------------------------------------------------------------


def test_one_store(make: Make, bound: Bound) -> None:
    store = object()
    hooks = bound(
        make("none", provide_store=lambda self: None),
        make("one", provide_store=lambda self, config, broker: (store, config, broker)),
    )
    settings = Settings()
    assert hooks.provide_store(settings) == (store, settings, "handle of one")  # type: ignore[comparison-overlap]
    assert bound(make("none")).provide_store(settings) is None


def test_two_stores_are_refused(make: Make, bound: Bound) -> None:
    hooks = bound(*(make(i, provide_store=lambda self: object()) for i in "ab"))
    with pytest.raises(
        PluginError, match="plugin 'b': provides a store, but plugin 'a' already does"
    ):
        hooks.provide_store(Settings())


def test_one_cluster(make: Make, bound: Bound) -> None:
    cluster = object()
    hooks = bound(
        make("none", provide_cluster=lambda self: None),
        make("one", provide_cluster=lambda self, config, broker: (cluster, config, broker)),
    )
    settings = Settings()
    assert hooks.provide_cluster(settings) == (cluster, settings, "handle of one")  # type: ignore[comparison-overlap]
    assert bound(make("none")).provide_cluster(settings) is None


def test_two_clusters_are_refused(make: Make, bound: Bound) -> None:
    hooks = bound(*(make(i, provide_cluster=lambda self: object()) for i in "ab"))
    with pytest.raises(
        PluginError, match="plugin 'b': provides a cluster, but plugin 'a' already does"
    ):
        hooks.provide_cluster(Settings())


def test_many_journals(make: Make, bound: Bound) -> None:
    hooks = bound(
        make("a", provide_journal=lambda self: "journal a"),
        make("b", provide_journal=lambda self: None),
        make("c", provide_journal=lambda self: ("journal c", "journal d")),
    )
    journals = hooks.provide_journals(Settings())
    assert journals == ("journal a", "journal c", "journal d")  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("hook", ["register_listeners", "register_http", "register_metrics"])
def test_registering(hook: str, make: Make, bound: Bound) -> None:
    argument = SPECS[hook].arguments[0]
    method = eval(f"lambda self, {argument}: {argument}.append(self.id)")
    targets: dict[str, list[str]] = {"a": [], "c": []}
    bound(make("a", **{hook: method}), make("b"), make("c", **{hook: method})).register(
        hook, targets.__getitem__
    )
    assert targets == {"a": ["a"], "c": ["c"]}


@pytest.mark.parametrize(
    "hook", [n for n, s in SPECS.items() if s.kind in (HookKind.REGISTER, HookKind.PROVIDE)]
)
def test_a_failure_to_provide_or_register_prevents_the_start(
    hook: str, make: Make, bound: Bound
) -> None:
    async def later() -> None:
        pytest.fail("it ran")

    def collect(answer: Any) -> None:
        hooks = bound(make("p", **{hook: answer}))
        call: Any = {
            "provide_store": lambda: hooks.provide_store(Settings()),
            "provide_journal": lambda: hooks.provide_journals(Settings()),
            "provide_cluster": lambda: hooks.provide_cluster(Settings()),
        }.get(hook, lambda: hooks.register(hook, lambda plugin: object()))
        call()

    with pytest.raises(PluginError, match=rf"plugin 'p': {hook} failed: ZeroDivisionError"):
        collect(lambda self: 1 // 0)
    with pytest.raises(PluginError, match=rf"plugin 'p': {hook} must be synchronous"):
        collect(lambda self: later())


# reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", SPECS)
def test_every_hook_has_its_metrics(hook: str, make: Make, bound: Bound) -> None:
    hooks = bound(make("p", **{hook: lambda self: None}))
    rows = hooks.metrics()
    calls = {row[1]["outcome"]: row[2] for row in rows if row[0] == "hookmq_hook_calls_total"}
    assert calls == dict.fromkeys(SPECS[hook].outcomes, 0.0)
    names = {name for name, _, _ in rows}
    expected = {"hookmq_hook_calls_total"}
    if hook in OBSERVERS:
        expected |= {
            "hookmq_hook_queue_depth",
            "hookmq_hook_dropped_total",
            "hookmq_hook_circuit_open",
        }
    assert names == expected
    assert hooks.durations() == []
    hooks.plugins[0].stats(hook).timed_calls(2, 0.5)
    [(labels, durations)] = hooks.durations()
    assert labels == {"hook": hook, "plugin": "p"}
    assert (durations.count, durations.sum) == (2, 1.0)


def test_counters_outlive_a_reload(
    make: Make, bound: Bound, runtime: VirtualRuntime, client: ClientInfo
) -> None:
    first = bound(make("p", on_publish=lambda self: None))
    for hooks in (first, bound(first.plugins[0].with_entry(first.plugins[0].entry))):
        run_transform(runtime, hooks.chains("x").on_publish, client, MESSAGE, lambda *told: None)
    labels = {"hook": "on_publish", "plugin": "p", "outcome": "abstain"}
    assert ("hookmq_hook_calls_total", labels, 2.0) in first.metrics()


def test_counters_are_shared_by_listeners_and_actions(
    make: Make, bound: Bound, instance: MakeInstance, runtime: VirtualRuntime, client: ClientInfo
) -> None:
    hooks = bound(instance(make("p", authorize=lambda self: Allow()), listeners=("a", "b")))
    for listener, action in (("a", Action.PUBLISH), ("b", Action.WILL)):
        calls = hooks.chains(listener).authorize[action]
        run_authorize(runtime, calls, (client, action, "t", None, None), False, lambda *told: None)
    labels = {"hook": "authorize", "plugin": "p", "outcome": "allow"}
    assert ("hookmq_hook_calls_total", labels, 2.0) in hooks.metrics()


def test_calls_in_flight_are_counted(
    make: Make, bound: Bound, runtime: VirtualRuntime, client: ClientInfo
) -> None:
    async def on_publish(self: Any) -> None:
        await runtime.sleep(0.5)

    hooks = bound(make("p", on_publish=on_publish))
    run_transform(runtime, hooks.chains("x").on_publish, client, MESSAGE, lambda *told: None)
    runtime.run_until_idle()
    assert hooks.in_flight() == 1
    runtime.advance(0.5)
    assert hooks.in_flight() == 0


def test_explain_tells_all(make: Make, instance: MakeInstance) -> None:
    async def authorize(self: Any, topic: Any, client: Any) -> None:
        return None

    plugin = make("p", authorize=authorize, on_published=lambda self: None)
    made = instance(
        plugin,
        listeners=("tcp",),
        filters=("a/#",),
        hooks={
            "authorize": HookOptions(timeout=0.5),
            "on_published": HookOptions(queue=5, filters=("b",)),
        },
    )
    made.version = "1.2"
    hooks = Hooks([made])  # not bound: `hookmq plugins explain` needs no broker
    (row,) = hooks.explain("authorize")
    assert (row.order, row.plugin, row.use, row.version) == (1, "p", "p", "1.2")
    assert (row.mode, row.arguments, row.timeout) == ("async", ("topic", "client"), 0.5)
    assert (row.listeners, row.filters) == (("tcp",), ("a/#",))
    assert row.actions == ("publish", "subscribe", "will")
    assert (row.on_error, row.queue) == ("deny", 0)
    (row,) = hooks.explain("on_published")
    assert (row.mode, row.queue, row.filters, row.timeout) == ("thread", 5, ("b",), None)
    with pytest.raises(KeyError):
        hooks.explain("on_nothing")


def test_an_idle_hook_is_not_called_and_costs_nothing(
    make: Make, bound: Bound, instance: MakeInstance
) -> None:
    idle = frozenset({"on_publish", "on_published"})
    hooks = {name: (lambda self: None) for name in ("on_publish", "on_published", "on_connect")}
    one = bound(make("one", idle_hooks=idle, **hooks))
    chains = one.chains("tcp")
    assert (chains.on_publish, len(chains.on_connect)) == ((), 1)
    assert [row.plugin for row in one.explain("on_publish")] == []
    other = bound(make("two", **hooks)).chains("tcp")
    assert len(other.on_publish) == 1
    with pytest.raises(PluginError, match="unknown hook 'on_publis'"):
        bound(make("three", idle_hooks=frozenset({"on_publis"}), **hooks))
