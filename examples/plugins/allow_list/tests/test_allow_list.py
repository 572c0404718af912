"""Test the allow list: which clients may connect, and what each of them may do."""

from collections.abc import Callable

import pytest
from hookmq_example_allow_list import AllowListConfig, AllowListPlugin, User
from hookmq_testing import Harness, make_plugin
from hookmq_testing.contracts import PluginContract

USERS = {
    "sensor": User("s3cret", publish=("sensors/+/state",), subscribe=("sensors/+/set", "all/#")),
    "reader": User("open", subscribe=("sensors/#",)),
}


class TestContract(PluginContract):
    kind = AllowListPlugin
    use = "example_allow_list"
    configs = ({"users": USERS}, {"users": {}})
    bad_configs = ({}, {"user": {}})


@pytest.fixture
def harness(broker_harness: Callable[..., Harness]) -> Harness:
    return broker_harness([make_plugin(AllowListPlugin, {"users": USERS})])


def test_a_user_without_a_password_is_refused() -> None:
    with pytest.raises(Exception, match="password"):
        User("")


def test_a_listed_user_connects_and_is_known_by_name(harness: Harness) -> None:
    client = harness.connect("c", username="sensor", password=b"s3cret")
    known = harness.handle("allowlistplugin").client("c")
    assert known is not None
    assert known.identity == "sensor"
    client.expect_nothing()


@pytest.mark.parametrize(
    ("username", "password"),
    [
        ("sensor", b"wrong"),
        ("sensor", None),
        ("nobody", b"s3cret"),
        (None, None),
        ("nobody", b"\0"),
    ],
)
@pytest.mark.parametrize(("version", "code"), [(5, 0x86), (4, 4), (3, 4)])
def test_others_do_not(
    harness: Harness, username: str | None, password: bytes | None, version: int, code: int
) -> None:
    harness.connect("c", version, username=username, password=password, expect=code)


def test_what_is_granted_may_be_done_and_nothing_else(harness: Harness) -> None:
    sensor = harness.connect("s", username="sensor", password=b"s3cret")
    reader = harness.connect("r", username="reader", password=b"open")
    assert reader.subscribe("sensors/#", 1).codes == (1,)
    sensor.publish("sensors/a/state", b"on", 1, expect=0)
    reader.expect_message("sensors/a/state", b"on")
    sensor.publish("sensors/a/set", b"on", 1, expect=0x87)
    reader.publish("sensors/a/state", b"on", 1, expect=0x87)
    reader.expect_nothing()


@pytest.mark.parametrize(
    ("filter", "code"),
    [
        ("sensors/a/set", 0),
        ("sensors/+/set", 0),
        ("all/b/+", 0),
        ("sensors/+/+", 0x87),
        ("sensors/#", 0x87),
        ("#", 0x87),
        ("$share/g/all/#", 0),
        ("$share/g/#", 0x87),
    ],
)
def test_a_subscription_lies_within_what_is_granted(
    harness: Harness, filter: str, code: int
) -> None:
    sensor = harness.connect("s", username="sensor", password=b"s3cret")
    assert sensor.subscribe(filter).codes == (code,)


def test_nobody_without_an_identity_may_do_anything() -> None:
    plugin = make_plugin(AllowListPlugin, AllowListConfig({}))
    with Harness([plugin]) as harness:
        harness.connect("c", expect=0x86)
