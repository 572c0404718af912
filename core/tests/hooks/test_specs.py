"""Test the properties that hooks.specs declares for each hook."""

import inspect
from typing import get_type_hints

import hookmq.plugin
import pytest
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.hooks.specs import OBSERVERS, SPECS, HookKind, Specs
from hookmq.hooks.stats import HookStats
from hookmq.plugin import HttpRouter, ListenerRegistry
from hookmq.server.http import HttpRoutes, PluginRouter
from hookmq.server.plugin_listeners import ListenerTypes, PluginTypes

SIGNATURES = [
    "on_connect(client, connect, broker)",
    "on_auth(client, auth, broker)",
    "authorize(client, action, topic, message, subscription, broker)",
    "on_publish(client, message, broker)",
    "on_subscribe(client, subscription, broker)",
    "on_deliver(client, message, subscription)",
    "on_will(client, message, broker)",
    "on_session(client, event, broker)",
    "on_subscribed(client, subscription, code, broker)",
    "on_unsubscribed(client, subscription, broker)",
    "on_published(client, message, matched, broker)",
    "on_delivered(client, message, qos, broker)",
    "on_dropped(client, message, why, broker)",
    "on_retained(topic, message, broker)",
    "on_auth_failed(client, code, reason, broker)",
    "on_denied(client, action, topic, code, rule, broker)",
    "on_disconnect(client, reason, broker)",
    "on_event(client, event, fields, plugin, broker)",
    "on_startup(broker)",
    "on_ready(broker)",
    "on_timer(key, data, broker)",
    "on_reload(old, new)",
    "on_shutdown(broker, deadline)",
    "provide_store(config, broker)",
    "provide_journal(config, broker)",
    "provide_cluster(config, broker)",
    "provide_rate_limiter(client, broker)",
    "register_workers(registry)",
    "register_listeners(registry)",
    "register_http(router)",
    "register_metrics(registry)",
]


def test_the_hooks_are_these() -> None:
    assert [spec.signature for spec in SPECS.values()] == SIGNATURES


def test_every_method_of_specs_is_in_the_table() -> None:
    assert {name for name in vars(Specs) if not name.startswith("_")} == set(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_no_argument_has_a_default(name: str) -> None:
    parameters = inspect.signature(getattr(Specs, name)).parameters.values()
    assert all(p.default is p.empty for p in parameters)


@pytest.mark.parametrize(
    ("hook", "timeout", "on_error"),
    [
        ("on_connect", 5, ("deny",)),
        ("on_auth", 5, ("deny",)),
        ("authorize", 0.25, ("deny",)),
        ("on_publish", 1, ("deny", "pass")),
        ("on_subscribe", 1, ("deny",)),
        ("on_deliver", None, ("pass", "drop")),
        ("on_will", 1, ("deny",)),
        ("on_disconnect", 30, ()),
        ("on_startup", 30, ()),
        ("provide_store", None, ()),
        ("register_http", None, ()),
    ],
)
def test_timeouts_and_failures(hook: str, timeout: float | None, on_error: tuple[str, ...]) -> None:
    assert (SPECS[hook].timeout, SPECS[hook].on_error) == (timeout, on_error)


def test_only_observers_have_a_queue() -> None:
    assert {n for n, s in SPECS.items() if s.queue} == OBSERVERS
    assert {n for n, s in SPECS.items() if s.kind is HookKind.OBSERVE} == OBSERVERS
    assert {s.queue for s in SPECS.values()} == {0, 10_000}


@pytest.mark.parametrize("name", SPECS)
def test_every_outcome_is_counted(name: str) -> None:
    stats = HookStats("p", name)
    assert SPECS[name].outcomes
    assert [getattr(stats, outcome) for outcome in SPECS[name].outcomes] == [0] * len(
        SPECS[name].outcomes
    )


@pytest.mark.parametrize(
    ("hook", "argument", "given"),
    [
        ("register_listeners", "registry", PluginTypes),
        ("register_http", "router", PluginRouter),
        ("register_metrics", "registry", MetricRegistry),
    ],
)
def test_the_registries_of_hooks_are_typed_and_exported(
    hook: str, argument: str, given: type
) -> None:
    kind = get_type_hints(getattr(Specs, hook))[argument]
    assert getattr(hookmq.plugin, kind.__name__) is kind
    for name, method in vars(kind).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            wanted = inspect.signature(method).parameters
            found = inspect.signature(getattr(given, name)).parameters
            assert [(p.name, p.kind, p.default) for p in wanted.values()] == [
                (p.name, p.kind, p.default) for p in found.values()
            ]


def test_the_registries_that_hooks_get_have_their_declared_types() -> None:
    """The registries passed to hooks have their declared types. mypy checks this."""
    listeners: ListenerRegistry = PluginTypes(ListenerTypes(), "p")
    router: HttpRouter = PluginRouter(HttpRoutes(), "p")
    assert listeners
    assert router
