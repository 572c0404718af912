"""Test delayed messages: requests, permissions, cancellation, restart, crash and limits. Also test with a
real client.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import EMPTY, Properties
from hookmq.plugin import (
    Action,
    Allow,
    BrokerHandle,
    ClientInfo,
    Context,
    Deny,
    Message,
    Plugin,
    hookimpl,
)
from hookmq_delayed.plugin import DelayedPlugin
from hookmq_delayed.record import Record, id_key, owner_key
from hookmq_delayed.request import Cancel, Delay, InvalidRequest, parse
from hookmq_testing import DurableStore, Harness, MemoryClient, RecordingJournal, make_plugin, will
from hookmq_testing.contracts import PluginContract
from hypothesis import given
from hypothesis import strategies as st
from recording import V5, Client
from serving import serving

Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = DelayedPlugin
    use = "delayed"
    configs = ({}, {"max_delay": 10, "max_messages": 1, "max_messages_per_client": 1})
    bad_configs = (
        {"max_delay": 0},
        {"max_messages": 0},
        {"max_messages_per_client": 0},
        {"x": 1},
    )


@pytest.fixture
def make(broker_harness: Callable[..., Harness]) -> Make:
    def build(*others: Plugin, store: DurableStore | None = None, **config: Any) -> Harness:
        plugin = make_plugin(DelayedPlugin, config, "delayed")
        return broker_harness([*others, plugin], store=store)

    return build


@pytest.fixture
def harness(make: Make) -> Harness:
    return make()


def watcher(harness: Harness, name: str = "watcher") -> MemoryClient:
    client = harness.connect(name, keep_alive=0)
    client.subscribe("#", 2)
    return client


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_arrives_when_it_is_due(harness: Harness, version: int, qos: int) -> None:
    watching = watcher(harness)
    client = harness.connect("c", version, keep_alive=0)
    client.publish("$delayed/10/a/b", b"later", qos, expect=0 if qos else None)
    harness.advance(9)
    watching.expect_nothing()
    harness.advance(2)
    assert watching.expect_message("a/b", b"later").qos == qos
    harness.advance(100)
    watching.expect_nothing()


def test_its_properties_and_retain_stay(harness: Harness) -> None:
    client = harness.connect("c", keep_alive=0)
    client.publish("$delayed/1/a", b"x", 1, True, expect=0, content_type="text/plain")
    harness.advance(2)
    late = harness.connect("late")
    late.subscribe("a", 1)
    found = late.expect_message("a", b"x")
    assert found.retain
    assert found.properties.content_type == "text/plain"


def test_a_delay_of_zero_publishes_at_once(harness: Harness) -> None:
    watching = watcher(harness)
    watching.publish("$delayed/0/a", b"x")
    harness.advance(1)
    watching.expect_message("a", b"x")


def test_a_will_can_be_delayed(harness: Harness) -> None:
    watching = watcher(harness)
    harness.connect("c", will=will("$delayed/5/a", b"gone", 1)).drop()
    watching.expect_nothing()
    harness.advance(6)
    watching.expect_message("a", b"gone")


def test_it_is_no_drop(harness: Harness) -> None:
    client = harness.connect("c")
    client.publish("$delayed/5/a", b"x", 1, expect=0)
    assert harness.metrics.dropped == {}


ID: dict[str, Any] = {"user_property": (("delayed-id", "stop"),)}


def test_a_client_cancels_its_message(harness: Harness) -> None:
    watching, other = watcher(harness), harness.connect("other", keep_alive=0)
    watching.publish("$delayed/10/a", b"1", 1, expect=0, **ID)
    other.publish("$delayed/cancel/stop", b"", 1, expect=0)
    watching.publish("$delayed/cancel/else", b"", 1, expect=0)
    harness.advance(5)
    watching.publish("$delayed/10/b", b"2", 1, expect=0, **ID)
    harness.advance(6)
    watching.expect_nothing()
    harness.advance(5)
    watching.expect_message("b", b"2")
    watching.publish("$delayed/10/c", b"3", 1, expect=0, **ID)
    watching.publish("$delayed/cancel/stop", b"", 1, expect=0)
    harness.advance(60)
    watching.expect_nothing()


class Deciding(Plugin):
    """A plugin that denies publishing directly to the topic ``secret``."""

    @hookimpl
    def authorize(self, action: Action, topic: str) -> Allow | Deny:
        return Deny() if topic == "secret" and action is not Action.SUBSCRIBE else Allow()


@pytest.mark.parametrize("qos", [1, 2])
def test_the_client_must_be_allowed_to_publish_to_the_target(make: Make, qos: int) -> None:
    harness = make(Deciding(None, Context("deciding")))
    watching = watcher(harness)
    watching.publish("$delayed/1/secret", b"x", qos, expect=0x87)
    watching.publish("$delayed/1/open", b"x", qos, expect=0)
    harness.advance(5)
    watching.expect_message("open", b"x")
    watching.expect_nothing()


def test_it_survives_the_end_of_the_broker(make: Make) -> None:
    store = DurableStore()
    harness = make(store=store)
    client = harness.connect("c", keep_alive=0)
    client.publish("$delayed/30/a", b"x", 1, expect=0)
    harness.restart()
    watching = watcher(harness)
    harness.advance(31)
    watching.expect_message("a", b"x")
    harness.restart()
    watching = watcher(harness)
    harness.advance(100)
    watching.expect_nothing()


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("$delayed/x/a", 0x90),
        ("$delayed/-1/a", 0x90),
        ("$delayed/5", 0x90),
        ("$delayed/5/", 0x90),
        ("$delayed/cancel", 0x90),
        ("$delayed/cancel/", 0x90),
        ("$delayed/5/$delayed/5/a", 0x90),
        ("$delayed/5/$SYS/a", 0x90),
        ("$delayed/11/a", 0x97),
    ],
)
def test_an_invalid_request_is_refused(make: Make, topic: str, code: int) -> None:
    client = make(max_delay=10).connect("c")
    client.publish(topic, b"x", 1, expect=code)


def test_the_number_of_messages_is_bounded(make: Make) -> None:
    harness = make(max_messages=2)
    client = harness.connect("c", keep_alive=0)
    for expected in (0, 0, 0x97):
        client.publish("$delayed/5/a", b"x", 1, expect=expected)
    harness.advance(6)
    client.publish("$delayed/5/a", b"x", 1, expect=0)


def test_the_number_of_messages_of_one_client_is_bounded(make: Make) -> None:
    store = DurableStore()
    harness = make(store=store, max_messages_per_client=2)
    client, other = (harness.connect(name, keep_alive=0) for name in ("c", "other"))
    client.publish("$delayed/5/a", b"x", 1, expect=0)
    client.publish("$delayed/60/a", b"x", 1, expect=0, **ID)
    client.publish("$delayed/9/a", b"x", 1, expect=0x97)
    client.publish("$delayed/60/a", b"y", 1, expect=0, **ID)  # replaces one
    other.publish("$delayed/60/a", b"x", 1, expect=0)
    harness.restart()
    client = harness.connect("c", keep_alive=0)
    client.publish("$delayed/9/a", b"x", 1, expect=0x97)
    harness.advance(6)
    client.publish("$delayed/60/a", b"x", 1, expect=0)
    client.publish("$delayed/9/a", b"x", 1, expect=0x97)
    client.publish("$delayed/cancel/stop", b"", 1, expect=0)
    client.publish("$delayed/9/a", b"x", 1, expect=0)
    client.publish("$delayed/9/a", b"x", 1, expect=0x97)
    harness.advance(100)
    assert harness.handle("delayed").state.keys == 0


class Placing(Plugin):
    """A plugin that moves messages on topics below ``mine`` to the client's own topics, as a rewriting plugin would."""

    @hookimpl
    def on_publish(self, client: ClientInfo | None, message: Message) -> Message | Deny | None:
        if not message.topic.startswith("mine/"):
            return None
        if client is None:
            return Deny(reason="no client id")
        return message.replace(topic=f"of/{client.client_id}/{message.topic[5:]}")


def test_the_target_is_rewritten_for_its_client(make: Make) -> None:
    harness = make(Placing(None, Context("placing")))
    watching, client = watcher(harness), harness.connect("c", keep_alive=0)
    client.publish("$delayed/5/mine/a", b"x", 1, expect=0)
    client.disconnect()
    harness.advance(6)
    watching.expect_message("of/c/a", b"x")
    assert harness.logged("delayed.refused") == []


def test_the_rewritten_target_is_authorized_before_the_acknowledgement(make: Make) -> None:
    class Strict(Plugin):
        @hookimpl
        def authorize(self, action: Action, topic: str) -> Allow | Deny:
            return Deny() if topic.startswith("of/") else Allow()

    harness = make(Placing(None, Context("placing")), Strict(None, Context("strict")))
    harness.connect("c").publish("$delayed/5/mine/a", b"x", 1, expect=0x87)
    harness.advance(6)
    assert harness.metrics.messages_delivered == 0


def test_a_message_that_a_plugin_refuses_is_not_acknowledged(make: Make) -> None:
    class Refusing(Plugin):
        @hookimpl
        def on_publish(self, message: Any) -> Deny | None:
            return Deny() if message.topic == "a" else None

    harness = make(Refusing(None, Context("refusing")))
    harness.connect("c", keep_alive=0).publish("$delayed/5/a", b"x", 1, expect=0x87)
    harness.advance(600)
    assert harness.logged("delayed.refused") == []


def test_a_message_without_room_is_published_when_there_is_room(
    broker_harness: Callable[..., Harness],
) -> None:
    class Full(RecordingJournal):
        full = False

    journal = Full(wants=lambda topic: topic == "a")
    harness = broker_harness([make_plugin(DelayedPlugin, {}, "delayed")], journals=[journal])
    harness.connect("c", keep_alive=0).publish("$delayed/5/a", b"x", 1, expect=0)
    journal.full = True
    harness.advance(36)
    assert journal.topics == []
    assert len(harness.logged("delayed.postponed")) == 4
    assert harness.logged("delayed.refused") == []
    journal.full = False
    harness.advance(60)
    assert journal.topics == ["a"]


def test_a_message_replaced_while_it_is_published_is_counted_once(make: Make) -> None:
    class Repeating(Plugin):
        """A plugin that delays a message again, under the same id, whenever one is published to ``a``."""

        @hookimpl
        async def on_published(self, message: Message, broker: BrokerHandle) -> None:
            if message.topic == "a":
                client = broker.client("c")
                broker.publish(
                    "$delayed/5/a", b"x", 1, properties=Properties(**ID), as_client=client
                )

    harness = make(Repeating(None, Context("repeating")), max_messages_per_client=1)
    client = harness.connect("c", keep_alive=0)
    client.publish("$delayed/5/a", b"x", 1, expect=0, **ID)
    for _ in range(3):
        harness.advance(6)
        client.publish("$delayed/5/b", b"x", 1, expect=0x97)
    client.publish("$delayed/cancel/stop", b"", 1, expect=0)
    client.publish("$delayed/5/b", b"x", 1, expect=0)


@pytest.mark.parametrize(
    ("topic", "request_"),
    [
        ("$delayed/5/a/b", Delay(5, "a/b")),
        ("$delayed/5//a", Delay(5, "/a")),
        ("$delayed/007/a", Delay(7, "a")),
        ("$delayed/cancel/a/b", Cancel("a/b")),
    ],
)
def test_requests(topic: str, request_: Delay | Cancel) -> None:
    assert parse(topic) == request_


@given(st.text())
def test_every_text_is_a_request_or_refused(text: str) -> None:
    with suppress(InvalidRequest):
        assert isinstance(parse("$delayed/" + text), Delay | Cancel)


@given(
    st.text(), st.binary(), st.integers(0, 2), st.booleans(),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3), st.text(), st.text(),
)  # fmt: skip
def test_a_record_reads_back(
    topic: str, payload: bytes, qos: int, retain: bool, pairs: Any, client_id: str, id: str
) -> None:
    clean = [(a, b) for a, b in pairs if "\0" not in a + b]
    properties = Properties(user_property=tuple(clean)) if clean else EMPTY
    record = Record(topic, payload, qos, retain, properties, client_id, id, 1.5)
    assert Record.decode(record.encode()) == record
    assert len(owner_key(client_id, "") + id_key(id)) < 200
    assert owner_key(client_id, "ann") != owner_key(client_id, "bob")


@pytest.mark.slow
def test_a_broker_process_with_a_real_client(tmp_path: Path) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\n"
        'listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]\n'
        "auth: {default: allow}\n"
        "authz: {default: allow}\n"
        "plugins:\n"
        f"  - {{use: storage, config: {{path: {tmp_path}/state}}}}\n"
        "  - {use: delayed, filters: [$delayed/#]}\n"
    )
    with serving("-c", str(config)) as served, Client(served.ports["tcp"], "c", V5) as client:
        client.publish("$delayed/1/a", b"later", 1, retain=True)
    with serving("-c", str(config)) as served, Client(served.ports["tcp"], "c", V5) as client:
        assert client.subscribe("a", 1) == 1
        assert bytes(client.message().payload) == b"later"
