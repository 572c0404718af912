"""Test how plugins connect clients, with valid and invalid requests, and how they wait for the result."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.errors import ConnectRefused
from hookmq.plugin import (
    Accept,
    BrokerHandle,
    ClientHandle,
    ClientRequest,
    Context,
    Delivery,
    Message,
    Peer,
    Plugin,
    PluginError,
    Properties,
    ReasonCode,
    Will,
    hookimpl,
)
from hookmq_testing import DurableStore, Harness, HookRecorder, will

Make = Callable[..., Harness]


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_connect", "on_will", id="gw")


@pytest.fixture
def harness(broker_harness: Make, recorder: HookRecorder) -> Harness:
    return broker_harness([recorder])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"client_id": 5}, "cannot connect"),
    ({"client_id": "a\0"}, "U\\+0000"),
    ({"client_id": "a\x01"}, "control character"),
    ({"client_id": "a" * 65536}, "65,535"),
    ({"username": b"name"}, "cannot connect"),
    ({"password": "text"}, "cannot connect"),
    ({"session_expiry": -1}, "cannot connect"),
    ({"session_expiry": 1 << 32}, "cannot connect"),
    ({"receive_maximum": 0}, "receive_maximum"),
    ({"receive_maximum": 65536}, "receive_maximum"),
    ({"mount_point": "a/#/"}, "wildcard"),
    ({"will": Will(Message("a/#", b""))}, "wildcard"),
    ({"will": Will(Message("", b""))}, "will topic is empty"),
    ({"will": Will(Message("a", b"", 3))}, "will QoS 3"),
    ({"will": "a"}, "cannot connect"),
    ({"properties": Properties(authentication_method="SCRAM")}, "does not answer challenges"),
    ({"properties": Properties(content_type="text")}, "content_type"),
    ({"properties": {}}, "cannot connect"),
    ({"accept": "yes"}, "accept is str, not Accept"),
]


@pytest.mark.parametrize(("fields", "text"), WRONG)
def test_an_invalid_request(harness: Harness, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(PluginError, match=text):
        harness.handle("gw").connect(ClientRequest(**fields))
    harness.settle()
    assert not harness.broker.connections


def test_only_a_client_request(harness: Harness) -> None:
    with pytest.raises(PluginError, match="str is not a ClientRequest"):
        harness.handle("gw").connect("c")  # type: ignore[arg-type]


def test_hooks_see_a_plugin_client_with_the_fields_of_its_request(
    harness: Harness, recorder: HookRecorder
) -> None:
    peer = Peer("192.0.2.7", 9, "serial")
    request = ClientRequest(
        "c", "name", b"secret", False, 60, Will(Message("w", b"x", 1, True), 5), 10, "field", "t/", peer,
        Properties(user_property=(("k", "v"),), topic_alias_maximum=5),
    )  # fmt: skip
    client: ClientHandle = harness.clock.run(harness.handle("gw").connect(request))
    (call,) = recorder.calls("on_connect")
    packet = call.connect
    assert (packet.client_id, packet.username, packet.password) == ("c", "name", b"secret")
    assert (packet.version, packet.clean_start, packet.keep_alive) == (5, False, 0)
    assert packet.properties == Properties(
        session_expiry_interval=60, receive_maximum=10, user_property=(("k", "v"),)
    )
    assert (packet.will.topic, packet.will.properties.will_delay_interval) == ("w", 5)
    seen = call.client
    assert (seen.listener, seen.peer, seen.version) == ("field", peer, 5)
    assert client.info is seen
    session = harness.broker.sessions["c"]
    assert (session.window, session.expiry) == (10, 60.0)
    assert session.will is not None
    assert session.will.message.topic == "t/w"
    assert "secret" not in repr(request)


def test_defaults(harness: Harness, recorder: HookRecorder) -> None:
    client: ClientHandle = harness.clock.run(harness.handle("gw").connect(ClientRequest()))
    assert client.client_id.startswith("auto-")
    assert (client.info.listener, str(client.info.peer)) == ("gw", "")
    assert client.info.peer.transport == "plugin"
    assert not client.session_present
    assert client.connected


def test_a_refusal_says_why(harness: Harness, recorder: HookRecorder) -> None:
    from hookmq.plugin import Deny

    recorder.answer("on_connect", Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "who are you?"))
    with pytest.raises(ConnectRefused) as refused:
        harness.clock.run(harness.handle("gw").connect(ClientRequest("c")))
    error = refused.value
    assert (error.plugin, error.code, error.reason) == (
        "gw", ReasonCode.BAD_USER_NAME_OR_PASSWORD, "who are you?",
    )  # fmt: skip
    assert str(error) == "plugin 'gw': the client was refused: who are you? (0x86)"
    assert not harness.broker.connections


def test_a_decision_may_take_time_but_not_too_long(
    harness: Harness, recorder: HookRecorder
) -> None:
    recorder.answer("on_connect", lambda: harness.clock.event())
    outcome: list[Any] = []
    harness.clock.spawn(
        harness.handle("gw").connect(ClientRequest("c")), lambda *done: outcome.append(done)
    )
    harness.settle()
    assert outcome == []
    harness.advance(60)
    ((result, error),) = outcome
    assert result is None
    assert isinstance(error, ConnectRefused)
    assert not harness.broker.connections


def test_the_plugin_stops_waiting_for_connect(harness: Harness, recorder: HookRecorder) -> None:
    """If the plugin stops waiting for `connect`, no client is left behind."""
    gate: list[Any] = []

    async def decide() -> None:
        gate.append(harness.clock.event())
        await gate[-1]

    recorder.answer("on_connect", decide)
    outcome: list[Any] = []
    cancel = harness.clock.spawn(
        harness.handle("gw").connect(ClientRequest("c")), lambda *done: outcome.append(done)
    )
    harness.settle()
    cancel()
    harness.settle()
    gate[0].set()
    harness.settle()
    assert outcome == []
    assert not harness.broker.connections
    assert "c" not in harness.broker.sessions


def test_the_plugin_itself_is_asked_about_its_client(
    harness: Harness, recorder: HookRecorder
) -> None:
    """The plugin also decides on its own client. The client connects in a later turn, not during the hook that
    requested it.
    """
    connected: list[Any] = []

    def chain(client: Any, broker: Any) -> None:
        if client.client_id == "outer":
            broker.runtime.spawn(
                broker.connect(ClientRequest("inner")), lambda result, _: connected.append(result)
            )

    recorder.answer("on_connect", chain)
    harness.connect("outer")
    harness.settle()
    assert [client.client_id for client in connected] == ["inner"]


def test_a_handle_of_a_plugin_that_has_left(harness: Harness) -> None:
    harness.wait(lambda done: harness.hooks.shutdown(1.0, lambda: done(None)))
    with pytest.raises(PluginError, match="the plugin has ended"):
        harness.handle("gw").connect(ClientRequest("c"))


class Early(Plugin):
    """A plugin that connects in `on_startup`, before the broker expires sessions and publishes wills that are due."""

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        self.got: list[bytes] = []
        request = ClientRequest("c", clean_start=False, session_expiry=600)
        self.client = await broker.connect(request)
        self.client.on_message = self.take

    def take(self, delivery: Delivery) -> None:
        self.got.append(delivery.message.payload)
        delivery.acknowledge()


def test_a_stored_session_is_resumed_in_on_startup(broker_harness: Make) -> None:
    store = DurableStore()
    before = broker_harness(store=store)
    device = before.connect("c", session_expiry_interval=600, will=will("gone", b"x", delay=30))
    device.subscribe("a", 1)
    device.drop()
    before.connect("publisher").publish("a", b"stored", 1, expect=0)
    plugin = Early(None, Context("early"))
    harness = broker_harness([plugin], store=store)
    watcher = harness.connect("watcher")
    watcher.subscribe("gone")
    harness.settle()
    assert plugin.client.session_present
    assert plugin.got == [b"stored"]
    harness.advance(10_000)
    assert plugin.client.connected
    assert "c" in harness.broker.sessions
    watcher.expect_nothing()


def test_a_plugin_accepts_its_own_client(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect", "authorize", id="gw")
    harness = broker_harness([recorder], config={"auth": {"default": "deny"}})
    with pytest.raises(ConnectRefused):
        harness.clock.run(harness.handle("gw").connect(ClientRequest("one")))
    recorder.clear()
    claims = {"groups": ["a"], "hookmq:gw": 1, "hookmq:other": 2}
    request = ClientRequest(
        "one", accept=Accept("alice", claims, expires_at=harness.clock.time() + 5)
    )
    client = harness.clock.run(harness.handle("gw").connect(request))
    assert not recorder.calls("on_connect")
    assert (client.info.identity, client.info.vouched_by) == ("alice", "plugin:gw")
    assert client.info.claims == {"groups": ["a"], "hookmq:gw": 1}
    harness.clock.run(client.subscribe("a/#"))
    assert len(recorder.calls("authorize")) == 1
    harness.advance(6)
    assert not client.connected
