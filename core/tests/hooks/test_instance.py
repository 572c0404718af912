"""Test a plugin's hook timeouts, which come from the configuration, the plugin or the default."""

from collections.abc import Callable

import pytest
from hookmq.hooks.instance import HookOptions, KeptState, PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.specs import SPECS
from hookmq.model.client import Scope
from hookmq.model.errors import PluginError
from hookmq.model.events import Action
from hookmq.plugin import Plugin
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Plugin]


MakeInstance = Callable[..., PluginInstance]


Bound = Callable[..., Hooks]


def test_a_plugin_says_how_long_it_may_be_awaited_unless_the_configuration_does(
    make: Make, bound: Bound, instance: MakeInstance
) -> None:
    hooks = {name: (lambda self: None) for name in ("authorize", "on_publish", "on_connect")}
    patient = make("patient", timeouts={"authorize": 4.0, "on_publish": 3.0}, **hooks)
    configured = instance(patient, hooks={"on_publish": HookOptions(timeout=7.0)})
    chains = bound(configured).chains("tcp")
    assert chains.authorize[Action.PUBLISH][0].timeout == 4.0
    assert chains.on_publish[0].timeout == 7.0
    assert chains.on_connect[0].timeout == SPECS["on_connect"].timeout


@pytest.mark.parametrize(
    ("timeouts", "words"),
    [
        ({"on_publis": 1.0}, "'on_publis' is not an asynchronous hook"),
        ({"on_deliver": 1.0}, "'on_deliver' is not an asynchronous hook"),
        ({"authorize": 0.0}, "authorize: 0.0 is not above 0"),
    ],
)
def test_timeouts_of_a_plugin_that_do_not_fit(
    timeouts: dict[str, float], words: str, make: Make, bound: Bound
) -> None:
    with pytest.raises(PluginError, match=words):
        bound(make("wrong", timeouts=timeouts, on_publish=lambda self: None))


def test_farewells_of_a_plugin_are_called_once() -> None:
    kept = KeptState("a")
    told: list[str] = []
    kept.farewells += [lambda: told.append("one"), lambda: told.append("two")]
    assert not kept.left
    kept.leave()
    kept.leave()
    assert kept.left
    assert told == ["one", "two"]


def test_filters_match_topics_with_the_mount_point(
    broker_harness: Callable[..., Harness], instance: MakeInstance
) -> None:
    inside = HookRecorder("on_publish", "on_deliver", id="inside")
    outside = HookRecorder("on_publish", "on_deliver", id="outside")
    harness = broker_harness(
        [instance(inside, filters=("m/t",)), instance(outside, filters=("t",))]
    )
    client = harness.connect("c", scope=Scope(mount_point="m/"))
    client.subscribe("t", 1)
    client.publish("t", b"x", 1, expect=0)
    client.expect_message("t", b"x")
    assert [call.hook for call in inside.recorded] == ["on_publish", "on_deliver"]
    assert outside.recorded == []
