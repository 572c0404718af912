"""Tests of the skeleton. Copy them together with the plugin."""

from collections.abc import Callable

import pytest
from hookmq_example_skeleton import SkeletonPlugin
from hookmq_testing import Harness, make_plugin
from hookmq_testing.contracts import PluginContract


class TestContract(PluginContract):
    kind = SkeletonPlugin
    use = "example_skeleton"
    configs = ({"forbidden": "secret/#"}, {"forbidden": "#", "reason": "never"})
    bad_configs = ({}, {"forbidden": ""}, {"forbiden": "secret/#"})


@pytest.fixture
def harness(broker_harness: Callable[..., Harness]) -> Harness:
    return broker_harness([make_plugin(SkeletonPlugin, {"forbidden": "secret/#"}, "skeleton")])


def test_what_is_forbidden_is_refused(harness: Harness) -> None:
    client = harness.connect()
    client.publish("secret/plans", b"x", 1, expect=0x87)
    client.publish("public/plans", b"x", 1, expect=0x10)


def test_the_broker_itself_may_publish_there(harness: Harness) -> None:
    client = harness.connect()
    client.subscribe("secret/#")
    harness.handle("skeleton").publish("secret/plans", b"x")
    client.expect_message("secret/plans", b"x")


def test_it_says_that_it_started(harness: Harness) -> None:
    assert harness.logged("skeleton.started") == [{"plugin": "skeleton", "forbidden": "secret/#"}]
