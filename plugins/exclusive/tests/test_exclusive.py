"""Test exclusive subscriptions: which client gets a topic, and when the topic becomes free again. Also test restarts
and real clients.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Suback
from hookmq.plugin import Context, Deny, Plugin, Subscription, hookimpl
from hookmq_exclusive.holders import Holders
from hookmq_exclusive.plugin import ExclusivePlugin
from hookmq_testing import DurableStore, Harness, MemoryClient, make_plugin
from hookmq_testing.contracts import PluginContract
from hypothesis import given
from hypothesis import strategies as st
from recording import V5, Client
from serving import serving

TOPIC = "$exclusive/commands/press"
Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = ExclusivePlugin
    use = "exclusive"
    configs = ({}, {"max_topics": 1})
    bad_configs = ({"max_topics": 0}, {"x": 1})


@pytest.fixture
def make(broker_harness: Callable[..., Harness]) -> Make:
    def build(*others: Plugin, store: DurableStore | None = None, **config: Any) -> Harness:
        return broker_harness(
            [make_plugin(ExclusivePlugin, config, "exclusive"), *others], store=store
        )

    return build


def ask(client: MemoryClient, filter: str = TOPIC) -> int:
    client.send_subscribe(filter, 1)
    return client.expect(Suback).codes[0]


@pytest.mark.parametrize(("version", "refused"), [(5, 0x97), (4, 0x80)])
def test_the_first_client_gets_the_topic(make: Make, version: int, refused: int) -> None:
    harness = make()
    first, second = harness.connect("first", version), harness.connect("second", version)
    assert ask(first) == 1
    assert ask(second) == refused
    second.publish("commands/press", b"stop", 1, expect=0)
    first.expect_message("commands/press", b"stop")
    second.expect_nothing()


def test_the_holder_may_ask_again(make: Make) -> None:
    harness = make()
    client = harness.connect("c")
    assert [ask(client), ask(client)] == [1, 1]


def test_the_topic_is_free_after_unsubscribe(make: Make) -> None:
    harness = make()
    first, second = harness.connect("first"), harness.connect("second")
    ask(first)
    first.unsubscribe(TOPIC)
    assert ask(second) == 1
    assert ask(first) == 0x97


def test_the_topic_is_free_when_the_session_ends(make: Make) -> None:
    harness = make()
    first, second = harness.connect("first"), harness.connect("second")
    ask(first)
    first.disconnect()
    assert ask(second) == 1


def test_an_offline_client_with_a_session_holds_its_topic(make: Make) -> None:
    harness = make()
    first = harness.connect("first", session_expiry_interval=60)
    second = harness.connect("second", keep_alive=0)
    ask(first)
    first.drop()
    assert ask(second) == 0x97
    harness.advance(100)
    assert ask(second) == 1


def test_a_restart_keeps_the_holder(make: Make) -> None:
    harness = make(store=DurableStore())
    ask(harness.connect("first", session_expiry_interval=600))
    harness.restart()
    assert ask(harness.connect("second")) == 0x97


class Refusing(Plugin):
    """A plugin that refuses subscriptions after the exclusive plugin has granted them."""

    refuses = True

    @hookimpl
    def on_subscribe(self, subscription: Subscription) -> Deny | None:
        return Deny() if self.refuses else None


def test_a_subscription_that_another_plugin_refuses_frees_the_topic(make: Make) -> None:
    refusing = Refusing(None, Context("refusing"))
    harness = make(refusing)
    first, second = (harness.connect(name, keep_alive=0) for name in ("first", "second"))
    assert ask(first) == 0x87
    refusing.refuses = False
    assert ask(second) == 0x97, "the first might still subscribe"
    harness.advance(11)
    assert ask(second) == 1


@pytest.mark.parametrize(
    "filter",
    ["$exclusive/", "$exclusive/a/+", "$exclusive/#", "$exclusive/$SYS/x", f"$share/g/{TOPIC}"],
)
def test_shared_and_wildcard_filters_cannot_be_exclusive(make: Make, filter: str) -> None:
    assert ask(make().connect("c"), filter) == 0x8F


def test_the_number_of_topics_is_bounded(make: Make) -> None:
    harness = make(max_topics=1)
    client = harness.connect("c")
    assert ask(client) == 1
    assert ask(client, "$exclusive/other") == 0x97
    client.unsubscribe(TOPIC)
    assert ask(client, "$exclusive/other") == 1


def test_sessions_that_end_free_their_topics(make: Make) -> None:
    harness = make(max_topics=5)
    for number in range(20):
        evil = harness.connect("evil", session_expiry_interval=600)
        assert ask(evil, f"$exclusive/t{number}") == 1
        evil.drop()
    harness.settle()
    assert ask(harness.connect("good")) == 1


def test_subscriptions_never_made_do_not_fill_the_table(make: Make) -> None:
    refusing = Refusing(None, Context("refusing"))
    harness = make(refusing, max_topics=2)
    client = harness.connect("c", keep_alive=0)
    harness.advance(60)
    for number in range(2):
        assert ask(client, f"$exclusive/t{number}") == 0x87
    refusing.refuses = False
    harness.advance(30)
    assert ask(client, "$exclusive/other") == 1


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "release", "end"]), st.sampled_from("ab"), st.sampled_from("xyz"))
)  # fmt: skip


@given(STEPS)
def test_both_sides_of_the_cache_agree(steps: list[tuple[str, str, str]]) -> None:
    holders = Holders()
    expected: dict[str, str] = {}
    for step, client, topic in steps:
        if step == "take":
            holders.take(topic, client, 0.0)
            expected[topic] = client
        elif step == "release":
            holders.release(topic, client)
            if expected.get(topic) == client:
                del expected[topic]
        else:
            for one in holders.topics(client):
                holders.release(one, client)
            expected = {topic: one for topic, one in expected.items() if one != client}
        found = {topic: holder.client_id for topic in "xyz" if (holder := holders.holder(topic))}
        assert (found, len(holders)) == (expected, len(expected))


def test_a_broker_process_with_real_clients(tmp_path: Path) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\n"
        'listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]\n'
        "auth: {default: allow}\n"
        "authz: {default: allow}\n"
        "plugins: [{use: exclusive}]\n"
    )
    with (
        serving("-c", str(config)) as served,
        Client(served.ports["tcp"], "first", V5) as first,
        Client(served.ports["tcp"], "second", V5) as second,
    ):
        assert first.subscribe(TOPIC, 1) == 1
        assert second.subscribe(TOPIC, 1) == 0x97
        second.publish("commands/press", b"stop", 1)
        assert first.message().topic == "commands/press"


@pytest.mark.slow
def test_a_real_broker_keeps_the_holder_over_a_restart(tmp_path: Path) -> None:
    """The storage plugin keeps the holder's session, and the exclusive plugin finds it when it starts."""
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        'version: 1\nlisteners: [{name: tcp, bind: "127.0.0.1:0"}]\n'
        "auth: {default: allow}\nauthz: {default: allow}\n"
        f'plugins: [{{use: storage, config: {{path: "{tmp_path}/data"}}}}, {{use: exclusive}}]\n'
    )
    with (
        serving("-c", str(config)) as served,
        Client(served.ports["tcp"], "first", V5, expiry=600) as first,
    ):
        assert first.subscribe(TOPIC, 1) == 1
    with serving("-c", str(config)) as served:
        port = served.ports["tcp"]
        with Client(port, "second", V5) as second:
            assert second.subscribe(TOPIC, 1) == 0x97
            second.publish("commands/press", b"stop", 1)
            with Client(port, "first", V5, clean=False, expiry=600) as first:
                assert first.message().payload == b"stop"
                assert second.subscribe(TOPIC, 1) == 0x97
            with Client(port, "first", V5, clean=True, expiry=0):
                pass  # its session has ended
            assert second.subscribe(TOPIC, 1) == 1
