"""Test the stamp: which messages receive it, and that nothing else changes."""

from collections.abc import Callable

import pytest
from hookmq_example_stamp import StampPlugin
from hookmq_testing import Harness, make_plugin, will
from hookmq_testing.contracts import PluginContract

SITE = {"name": "site", "value": "berlin"}


class TestContract(PluginContract):
    kind = StampPlugin
    use = "example_stamp"
    configs = ({}, SITE)
    bad_configs = ({"name": ""}, {"nam": "x"})


@pytest.fixture
def harness(broker_harness: Callable[..., Harness]) -> Harness:
    return broker_harness([make_plugin(StampPlugin, SITE, filters=("a/#",))])


def test_the_property_comes_after_the_publishers(harness: Harness) -> None:
    client = harness.connect()
    client.subscribe("a/b", 1)
    given = (("z", "1"), ("a", "2"), ("z", "1"))
    client.publish("a/b", b"x", 1, user_property=given, content_type="text/plain")
    message = client.expect_message("a/b", b"x", qos=1)
    assert message.properties.user_property == (*given, ("site", "berlin"))
    assert message.properties.content_type == "text/plain"


def test_what_the_filters_leave_out_stays_as_it_was(harness: Harness) -> None:
    client = harness.connect()
    client.subscribe("b")
    client.publish("b", b"x")
    assert client.expect_message("b").properties.user_property is None


def test_wills_and_retained_messages_are_stamped_once(harness: Harness) -> None:
    mortal = harness.connect("mortal", will=will("a/will", b"gone", retain=True))
    mortal.drop()
    late = harness.connect("late")
    late.subscribe("a/will")
    message = late.expect_message("a/will", b"gone", retain=True)
    assert message.properties.user_property == (("site", "berlin"),)


def test_mqtt_3_sees_no_change(harness: Harness) -> None:
    client = harness.connect(version=4)
    client.subscribe("a/b")
    client.publish("a/b", b"x")
    client.expect_message("a/b", b"x")
