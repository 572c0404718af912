"""Test valid calls to a plugin's client, and the errors that invalid calls raise."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.hooks.manager import Hooks
from hookmq.model.client import Scope
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.plugin import (
    Accept,
    ClientHandle,
    ClientRequest,
    Delivery,
    Limits,
    PluginError,
    Properties,
    ReasonCode,
)
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore

Make = Callable[..., Harness]


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_connect", id="gw")


@pytest.fixture
def harness(broker_harness: Make, recorder: HookRecorder) -> Harness:
    config = {"broker": {"max_packet_size": 1000, "max_topic_levels": 5, "max_user_properties": 2}}
    return broker_harness([recorder], config=config)


def connect(harness: Harness, client_id: str = "c", **fields: Any) -> ClientHandle:
    client: ClientHandle = harness.clock.run(
        harness.handle("gw").connect(ClientRequest(client_id, **fields))
    )
    return client


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"topic": 5}, "the topic is int, not str"),
    ({"payload": "text"}, "the payload is str, not bytes"),
    ({"qos": "1"}, "the QoS is str, not int"),
    ({"qos": 3}, "the QoS is 3, not 0 to 2"),
    ({"qos": -1}, "the QoS is -1, not 0 to 2"),
    ({"retain": 1}, "retain is int, not bool"),
    ({"properties": {}}, "properties is dict, not Properties"),
    ({"topic": ""}, "topic name is empty"),
    ({"topic": "a/#"}, "wildcard"),
    ({"topic": "a\0b"}, "U\\+0000"),
    ({"topic": "a\ud800"}, "surrogate"),
    ({"topic": "a\x01"}, "control character"),
    ({"topic": "1/2/3/4/5/6/7"}, "more than 5 slashes"),
    ({"payload": bytes(1000)}, "exceeds 1000"),
    ({"properties": Properties(content_type="x" * 1000)}, "exceeds 1000"),
    ({"properties": Properties(content_type=5)}, "cannot publish"),
    ({"properties": Properties(response_topic="a/#")}, "response topic contains a wildcard"),
    ({"properties": Properties(payload_format_indicator=7)}, "payload_format_indicator"),
    ({"properties": Properties(user_property=(("a", "b"),) * 3)}, "more than 2 user properties"),
]


@pytest.mark.parametrize(("fields", "text"), WRONG)
@pytest.mark.parametrize("known", [False, True])
def test_an_invalid_message_is_an_error_of_the_plugin(
    harness: Harness, fields: dict[str, Any], text: str, known: bool
) -> None:
    """An invalid message raises an error in the plugin, even if the fast path knows the topic. The client stays
    connected, and its next message is accepted.
    """
    client = connect(harness)
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 2)
    if known:
        for _ in range(3):
            client.publish_later("a", b"")
            harness.settle()
            watcher.expect_message("a")
    good: dict[str, Any] = {"topic": "a", "payload": b"x"}
    for call in (client.publish, client.publish_later):
        with pytest.raises(PluginError, match=text):
            call(**(good | fields))
    client.publish_later("a", b"next")
    assert watcher.expect_message("a").payload == b"next"
    assert client.connected


def test_the_largest_packet(harness: Harness) -> None:
    """The limit is the same as over a socket. A packet has 3 bytes for the header, 3 for the topic, 2 for the packet
    id, 1 for the properties, and the payload.
    """
    client = connect(harness)
    socket = harness.connect("socket")
    socket.subscribe("a", 1)
    client.publish_later("a", bytes(1000 - 9), 1)
    assert len(socket.expect_message("a").payload) == 991
    with pytest.raises(PluginError, match="packet of 1001 bytes exceeds 1000"):
        client.publish_later("a", bytes(1000 - 8), 1)
    socket.publish("b", bytes(991), 1)
    assert not socket.closed
    socket.publish("b", bytes(992), 1)
    assert socket.closed, "the socket's limit is the same"


def test_a_plugin_client_cannot_use_what_settings_exclude(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    config = {
        "broker": {
            "max_qos": 1, "retain_available": False, "subscription_identifiers_available": False,
            "wildcard_available": False,
        }
    }  # fmt: skip
    harness = broker_harness([recorder], config=config)
    client = connect(harness)
    with pytest.raises(PluginError, match="the QoS is 2, not 0 to 1"):
        client.publish_later("a", b"", 2)
    with pytest.raises(PluginError, match="no retained messages"):
        client.publish_later("a", b"", 1, True)
    with pytest.raises(PluginError, match="no subscription identifiers"):
        client.subscribe("a", identifier=1)
    assert harness.clock.run(client.subscribe("a", 2)) == 1
    assert client.connected


def test_limits_of_this_client(harness: Harness, recorder: HookRecorder) -> None:
    recorder.answer("on_connect", Accept(limits=Limits(max_packet_size=300)))
    client = connect(harness)
    with pytest.raises(PluginError, match="exceeds 300"):
        client.publish_later("a", bytes(300))


async def _never(*_: object) -> None:
    """A coroutine function, which is an invalid callback because nothing would await it."""


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (5, "cannot publish: done is int, not a function"),
        ("done", "cannot publish: done is str, not a function"),
        (_never, "cannot publish: done must not be `async def`"),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_an_invalid_callback_publishes_nothing(
    harness: Harness, done: Any, text: str, known: bool
) -> None:
    client = connect(harness)
    watcher = harness.connect("watcher")
    watcher.subscribe("a")
    for _ in range(3 * known):
        client.publish_later("a", b"")
        harness.settle()
        watcher.expect_message("a")
    with pytest.raises(PluginError, match=text):
        client.publish_later("a", b"", done=done)
    watcher.expect_nothing()
    assert client.connected


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: setattr(c, "on_message", 5), "on_message is int, not a function"),
        (lambda c: setattr(c, "on_end", "x"), "on_end is str, not a function"),
        (lambda c: setattr(c, "on_end", _never), "on_end must not be `async def`"),
        (lambda c: c.subscribe("a", True), "the QoS is bool, not int"),
        (lambda c: c.publish("a", b"", True), "the QoS is bool, not int"),
        (lambda c: c.disconnect([]), r"may not send the code \[\]"),
        (lambda c: c.disconnect(session_expiry=True), "session_expiry is bool, not int"),
    ],
)
def test_an_argument_of_a_wrong_type(harness: Harness, call: Any, text: str) -> None:
    client = connect(harness)
    with pytest.raises(PluginError, match=text):
        call(client)
    harness.settle()
    assert client.connected


@pytest.mark.parametrize("code", ["x", 0x83, None])
def test_an_acknowledgement_with_a_wrong_code_changes_nothing(harness: Harness, code: Any) -> None:
    client = connect(harness)
    got: list[Delivery] = []
    client.on_message = got.append
    harness.clock.run(client.subscribe("a", 1))
    harness.connect("pub").publish("a", b"", 1)
    with pytest.raises(PluginError, match=r"cannot acknowledge: the code is .*, not ReasonCode"):
        got[0].acknowledge(code)
    assert len(harness.broker.sessions["c"].inflight) == 1
    got[0].acknowledge()
    assert not harness.broker.sessions["c"].inflight


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"filter": b"a"}, "the filter is bytes, not str"),
        ({"filter": ""}, "1 to 65,535 bytes"),
        ({"filter": "a" * 65536}, "1 to 65,535 bytes"),
        ({"filter": "\ud800"}, "cannot subscribe"),
        ({"filter": "a\0"}, "U\\+0000"),
        ({"qos": 3}, "the QoS is 3, not 0 to 2"),
        ({"retain_handling": 3}, "retain_handling is 3, not 0 to 2"),
        ({"identifier": 0}, "the identifier is 0, not 1 to 268435455"),
    ],
)
def test_an_invalid_subscription(harness: Harness, fields: dict[str, Any], text: str) -> None:
    client = connect(harness)
    good: dict[str, Any] = {"filter": "a"}
    with pytest.raises(PluginError, match=text):
        client.subscribe(**(good | fields))
    assert harness.clock.run(client.subscribe("a", 1)) == 1


def test_publish_gives_the_code(harness: Harness) -> None:
    client = connect(harness)
    run = harness.clock.run
    none = ReasonCode.NO_MATCHING_SUBSCRIBERS
    assert [run(client.publish("a", b"", qos)) for qos in (0, 1, 2)] == [none] * 3
    harness.connect("watcher").subscribe("a")
    assert [run(client.publish("a", b"", qos)) for qos in (0, 1, 2)] == [ReasonCode.SUCCESS] * 3
    assert run(client.publish("$SYS/a", b"")) == ReasonCode.NOT_AUTHORIZED


def test_properties_arrive(harness: Harness) -> None:
    client = connect(harness)
    socket = harness.connect("socket")
    socket.subscribe("a")
    given = Properties(
        content_type="text/plain", user_property=(("k", "v"),), topic_alias=3, response_topic="r"
    )
    for _ in range(2):
        client.publish_later("a", b"", properties=given)
        arrived = socket.expect_message("a").properties
        assert arrived == Properties(
            content_type="text/plain", user_property=(("k", "v"),), response_topic="r"
        )


def test_messages_is_an_iterator(harness: Harness) -> None:
    client = connect(harness)
    harness.clock.run(client.subscribe("a", 1))
    got: list[bytes] = []

    async def read() -> str:
        async for delivery in client.messages():
            got.append(delivery.message.payload)
            delivery.acknowledge()
        return "the end"

    ended: list[Any] = []
    publisher = harness.connect("publisher")
    publisher.publish("a", b"early", 1)
    harness.clock.spawn(read(), lambda result, error: ended.append(result or error))
    for number in range(5):
        publisher.publish("a", b"%d" % number, 1)
    harness.settle()
    assert got == [b"early", b"0", b"1", b"2", b"3", b"4"]
    client.pause()
    publisher.publish("a", b"later", 1)
    harness.settle()
    assert len(got) == 6
    client.resume()
    harness.settle()
    assert got[6:] == [b"later"]
    client.disconnect()
    harness.settle()
    assert ended == ["the end"]


def test_a_reader_that_is_cancelled_loses_nothing(harness: Harness) -> None:
    client = connect(harness)
    harness.clock.run(client.subscribe("a"))
    messages = client.messages().__aiter__()
    first: list[Any] = []
    cancel = harness.clock.spawn(messages.__anext__(), lambda *_: None)
    harness.settle()
    cancel()
    harness.settle()
    harness.connect("publisher").publish("a", b"x")
    harness.clock.spawn(messages.__anext__(), lambda result, _: first.append(result))
    harness.settle()
    assert [one.message.payload for one in first] == [b"x"]


def test_two_ways_to_read_exclude_each_other(harness: Harness) -> None:
    client = connect(harness)
    client.on_message = lambda delivery: None
    with pytest.raises(PluginError, match="exclude each other"):
        client.messages()


def test_waiting_publishes_of_a_plugin_client_are_bounded(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    harness = broker_harness([recorder], config={"broker": {"max_held_inbound_bytes": 10_000}})
    client = connect(harness)
    done: list[ReasonCode] = []
    for _ in range(9):
        client.publish_later("a", bytes(1000), done=done.append)
    with pytest.raises(PluginError, match="9585 bytes that wait to be published"):
        client.publish_later("a", bytes(1000), done=done.append)
    harness.settle()
    assert len(done) == 9
    client.publish_later("a", bytes(1000), done=done.append)
    client_alone = connect(harness, "other")
    client_alone.publish_later("a", bytes(50_000), done=done.append)
    harness.settle()
    assert len(done) == 11, "one large message passes if nothing else waits"


def test_plugins_that_respond_to_each_other_end(broker_harness: Make) -> None:
    """Plugins that respond to each other eventually stop, because each response is one level deeper than the message
    that caused it.
    """
    recorder = HookRecorder("on_publish", "on_published", id="gw")
    harness = broker_harness([recorder])
    client = connect(harness)
    errors: list[PluginError] = []

    def again(message: Any) -> None:
        try:
            client.publish_later("a", b"")
        except PluginError as error:
            errors.append(error)

    recorder.answer("on_publish", again)
    client.publish_later("a", b"")
    harness.settle()
    assert len(recorder.calls("on_publish")) == 4
    assert "in a loop" in str(errors[0])
    assert harness.metrics.dropped["depth", "in"] == 1


def test_after_the_end_every_call_is_an_error(harness: Harness) -> None:
    client = connect(harness)
    client.disconnect()
    calls: list[Callable[[], Any]] = [
        lambda: client.publish("a", b""),
        lambda: client.publish_later("a", b""),
        lambda: client.subscribe("a"),
        lambda: client.unsubscribe("a"),
    ]
    for call in calls:
        with pytest.raises(PluginError, match="the client 'c' has ended"):
            call()
    harness.settle()
    harness.connect("c2")
    for call in calls:
        with pytest.raises(PluginError, match="the client 'c' has ended: success"):
            call()
    client.pause()
    client.resume()
    client.disconnect()
    assert (client.connected, client.client_id, client.info.client_id) == (False, "c", "c")


def test_disconnect_changes_the_session_expiry(harness: Harness) -> None:
    client = connect(harness, session_expiry=600)
    client.disconnect(session_expiry=10)
    harness.advance(9)
    assert "c" in harness.broker.sessions
    harness.advance(2)
    assert "c" not in harness.broker.sessions
    with pytest.raises(PluginError, match="session_expiry was 0"):
        connect(harness).disconnect(session_expiry=10)


def test_codes_that_a_client_may_not_send(harness: Harness) -> None:
    client = connect(harness)
    with pytest.raises(PluginError, match="may not send"):
        client.disconnect(ReasonCode.SESSION_TAKEN_OVER)
    client.disconnect(ReasonCode.UNSPECIFIED_ERROR)
    harness.settle()
    assert not client.connected


THREADS: list[tuple[str, Callable[[ClientHandle], Any]]] = [
    ("publish()", lambda client: client.publish("a", b"")),
    ("publish_later()", lambda client: client.publish_later("a", b"")),
    ("subscribe()", lambda client: client.subscribe("a")),
    ("unsubscribe()", lambda client: client.unsubscribe("a")),
    ("messages()", lambda client: client.messages()),
    ("pause()", lambda client: client.pause()),
    ("resume()", lambda client: client.resume()),
    ("disconnect()", lambda client: client.disconnect()),
    ("on_message", lambda client: setattr(client, "on_message", print)),
    ("on_end", lambda client: setattr(client, "on_end", print)),
]


@pytest.mark.parametrize(("name", "call"), THREADS)
def test_threads_are_refused(
    harness: Harness, name: str, call: Callable[[ClientHandle], Any]
) -> None:
    client = connect(harness)
    outcome: list[BaseException | None] = []
    harness.clock.run_blocking(lambda: call(client), lambda _, error: outcome.append(error))
    harness.settle()
    assert isinstance(outcome[0], PluginError)
    assert str(outcome[0]) == (f"plugin 'gw': {name} is for the event loop, and this is a thread")
    assert client.connected


def test_on_a_real_loop_and_in_a_real_thread() -> None:
    """The client also works with asyncio's event loop and real threads, not only with the virtual runtime."""

    async def scenario() -> tuple[list[bytes], BaseException | None]:
        plugin = HookRecorder("on_event", id="gw")
        hooks = Hooks.of(plugin)
        settings = Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow"))
        Broker(settings, AsyncioRuntime(), hooks)
        instance = hooks.instance("gw")
        assert instance is not None
        assert instance.broker is not None
        reader = await instance.broker.connect(ClientRequest("reader"))
        writer = await instance.broker.connect(ClientRequest("writer"))
        assert await reader.subscribe("a", 1) == 1
        got = []
        for number in range(10):
            assert await writer.publish("a", b"%d" % number, number % 3) == ReasonCode.SUCCESS
        async for delivery in reader.messages():
            got.append(delivery.message.payload)
            delivery.acknowledge()
            if len(got) == 10:
                break
        errors: list[BaseException] = []

        def run() -> None:
            try:
                writer.publish_later("a", b"")
            except PluginError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        await asyncio.to_thread(thread.join)
        return got, errors[0] if errors else None

    got, error = asyncio.run(scenario())
    assert got == [b"%d" % number for number in range(10)]
    assert isinstance(error, PluginError)


def test_the_listener_decides_which_plugins_are_asked(broker_harness: Make) -> None:
    from hookmq_testing.plugins import instance_of

    gateway = instance_of(HookRecorder("on_event", id="gw"))
    auth = HookRecorder("on_connect", id="auth")
    entry = instance_of(auth, listeners=("mqtt",))
    harness = broker_harness([gateway, entry])
    assert connect(harness, "one").info.listener == "gw"
    assert auth.calls("on_connect") == []
    assert connect(harness, "two", listener="mqtt").info.listener == "mqtt"
    assert [call.client.scope for call in auth.calls("on_connect")] == [
        Scope("mqtt", "", frozenset({5}))
    ]


def test_delivery_is_the_protocol(harness: Harness) -> None:
    client = connect(harness)
    harness.clock.run(client.subscribe("a"))
    got: list[Delivery] = []
    client.on_message = got.append
    client.publish_later("a", b"x")
    harness.settle()
    public = {name for name in vars(Delivery) if not name.startswith("_")}
    assert all(hasattr(got[0], name) for name in public)
    handle = {name for name in vars(ClientHandle) if not name.startswith("_")}
    assert all(hasattr(client, name) for name in handle)


def test_a_coroutine_function_cannot_receive_messages(harness: Harness) -> None:
    client = connect(harness)

    async def receive(delivery: Any) -> None: ...

    with pytest.raises(PluginError, match="on_message must not be"):
        client.on_message = receive  # type: ignore[assignment]


@pytest.mark.parametrize(("fields", "text"), WRONG)
def test_a_batch_with_an_invalid_message_publishes_nothing(
    harness: Harness, fields: dict[str, Any], text: str
) -> None:
    client = connect(harness)
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 2)
    good: dict[str, Any] = {
        "topic": "a", "payload": b"x", "qos": 0, "retain": False, "properties": Properties(),
    }  # fmt: skip
    with pytest.raises(PluginError, match=text) as error:
        client.publish_many([("a", b"1"), ("a", b"2"), tuple((good | fields).values())])
    assert error.value.message.startswith("messages[2]: cannot publish: ")
    assert error.value.message.endswith("; no message was published")
    harness.settle()
    assert watcher.messages == []
    assert harness.clock.run(client.publish_many([("a", b"next")])) == [ReasonCode.SUCCESS]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (5, "cannot publish: the messages are int, not iterable"),
        (["a"], "messages\\[0\\]: expected a tuple of 2 to 5 items"),
        ([("a", b""), ("a",)], "messages\\[1\\]: expected a tuple"),
        ([("a", b"", 0, False, Properties(), 1)], "messages\\[0\\]: expected a tuple"),
    ],
)
def test_a_batch_is_an_iterable_of_tuples(harness: Harness, messages: Any, text: str) -> None:
    with pytest.raises(PluginError, match=text):
        connect(harness).publish_many(messages)


def test_an_empty_batch(harness: Harness) -> None:
    assert harness.clock.run(connect(harness).publish_many([])) == []


def test_a_batch_counts_against_the_bytes_that_may_wait(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    harness = broker_harness([recorder], config={"broker": {"max_held_inbound_bytes": 2000}})
    client = connect(harness)
    with pytest.raises(PluginError, match="max_held_inbound_bytes: publish fewer"):
        client.publish_many([("a", bytes(100))] * 20)
    for _ in range(20):
        assert harness.clock.run(client.publish_many([("a", bytes(100))] * 10)) == [16] * 10


def test_a_batch_of_a_client_that_ends(broker_harness: Make, recorder: HookRecorder) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([recorder], store=store)
    sleeper = harness.connect("sleeper", session_expiry_interval=60)
    sleeper.subscribe("a", 1)
    sleeper.drop()
    client = connect(harness, receive_maximum=65535)
    ends: list[Any] = []
    store.slow = True
    harness.clock.spawn(
        client.publish_many([("b", b""), ("a", b"", 1), ("a", b"", 1)]),
        lambda *end: ends.append(end),
    )
    harness.settle()
    assert ends == []
    harness.handle("gw").disconnect("c")
    harness.settle()
    lost = ReasonCode.UNSPECIFIED_ERROR
    assert ends == [([ReasonCode.NO_MATCHING_SUBSCRIBERS, lost, lost], None)]
    with pytest.raises(PluginError, match="has ended"):
        client.publish_many([("a", b"")])
    store.finish()
    store.slow = False


def test_an_iterable_may_end_the_client(harness: Harness) -> None:
    client = connect(harness)

    def messages() -> Any:
        yield "a", b""
        client.disconnect()

    with pytest.raises(PluginError, match="has ended"):
        client.publish_many(messages())


def test_all_messages_of_a_turn_are_one_call(harness: Harness) -> None:
    client, other = connect(harness), connect(harness, "other")
    harness.clock.run(other.subscribe("a", 1))
    calls: list[list[bytes]] = []

    def take(deliveries: list[Delivery]) -> None:
        calls.append([one.message.payload for one in deliveries])
        for one in deliveries:
            one.acknowledge()
        if len(calls) == 1:
            raise ValueError("broken")  # logged; the next messages arrive

    other.on_messages = take
    assert other.on_messages is take
    for _ in range(2):
        harness.clock.run(client.publish_many([("a", b"%d" % n, n % 2) for n in range(9)]))
        harness.settle()
    assert calls == [[b"%d" % n for n in range(9)]] * 2
    other.on_messages = None
    harness.clock.run(client.publish_many([("a", b"later")] * 300))
    harness.settle()
    other.on_messages = take
    harness.settle()
    assert [len(one) for one in calls[2:]] == [256, 44]


def test_there_is_one_callback_for_messages(harness: Harness) -> None:
    client = connect(harness)
    with pytest.raises(PluginError, match="on_messages is int, not a function"):
        client.on_messages = 5  # type: ignore[assignment]
    with pytest.raises(PluginError, match="on_messages must not be `async def`"):
        client.on_messages = _never  # type: ignore[assignment]
    client.on_messages = print
    with pytest.raises(PluginError, match="exclude each other"):
        client.on_message = print
    with pytest.raises(PluginError, match="exclude each other"):
        client.messages()
    client.on_messages = None
    client.on_message = print
    with pytest.raises(PluginError, match="exclude each other"):
        client.on_messages = print
