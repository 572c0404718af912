"""Test the guarantees for every client, whether it has a socket or belongs to a plugin. One suite covers all kinds of
clients, and pairs of different kinds. A plugin's client handles single messages or batches.

`SocketSide`, `PluginSide` and `BatchSide` have the same methods. Each test lists the kinds of clients that it runs
with.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, Protocol

import pytest
from hookmq.model.client import Scope
from hookmq.model.errors import ConnectRefused
from hookmq.mqtt.packets import Puback, Pubrec
from hookmq.plugin import (
    Accept,
    Action,
    Allow,
    ClientHandle,
    ClientRequest,
    Delivery,
    Deny,
    Drop,
    LimitExceeded,
    Limits,
    Message,
    Properties,
    PublishLimit,
    RateLimiter,
    ReasonCode,
    Will,
)
from hookmq.session.session import ConnectionView
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore
from hookmq_testing import will as will_fields

KINDS = ("socket", "plugin", "batch")
PAIRS = [*product(("socket", "plugin"), repeat=2), ("batch", "socket"), ("batch", "batch")]
Make = Callable[..., Harness]


class Got(NamedTuple):
    """A message that a client received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    identifiers: tuple[int, ...] = ()


class Side(Protocol):
    """A connected client of any kind. `codes` holds the reason codes of its publishes, in order."""

    session_present: bool
    client_id: str

    @property
    def codes(self) -> list[int]: ...
    @property
    def got(self) -> list[Got]: ...
    @property
    def ended(self) -> int | None: ...
    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **more: Any
    ) -> None: ...
    def subscribe(self, filter: str, qos: int = 0, **options: Any) -> int: ...
    def unsubscribe(self, filter: str) -> int: ...
    def ack(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def disconnect(self, code: int = 0) -> None: ...
    def drop(self) -> None: ...


class Refused(Exception):
    """Raised when the client is not accepted."""


class SocketSide:
    """A client with a socket. `ack` acknowledges the oldest message that `auto_ack` has not acknowledged."""

    def __init__(self, client: MemoryClient) -> None:
        self.client = client
        self.session_present = client.session_present
        self.client_id = client.client_id
        self._acked = 0
        self._published: list[int] = []

    @property
    def codes(self) -> list[int]:
        self.client.harness.settle()
        answers = [p for p in self.client.received if isinstance(p, Puback | Pubrec)]
        return [answer.code for answer in answers]

    @property
    def got(self) -> list[Got]:
        return [
            Got(
                one.topic, one.payload, one.qos, one.retain, one.dup,
                one.properties.subscription_identifier or (),
            )
            for one in self.client.messages
        ]  # fmt: skip

    @property
    def ended(self) -> int | None:
        if not self.client.closed:
            return None
        packet = self.client.expect_disconnect()
        return packet.code if packet is not None else None

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **more: Any
    ) -> None:
        self.client.publish(topic, payload, qos, retain, **more)

    def subscribe(self, filter: str, qos: int = 0, **options: Any) -> int:
        (code,) = self.client.subscribe(filter, qos, **options).codes
        return code

    def unsubscribe(self, filter: str) -> int:
        (code,) = self.client.unsubscribe(filter).codes
        return code

    def ack(self) -> None:
        waiting = [one for one in self.client.messages if one.qos]
        self.client.ack(waiting[self._acked])
        self._acked += 1

    def pause(self) -> None:
        self.client.pause()

    def resume(self) -> None:
        self.client.resume()

    def disconnect(self, code: int = 0) -> None:
        self.client.disconnect(code)

    def drop(self) -> None:
        self.client.drop()


class PluginSide:
    """A plugin's client."""

    def __init__(self, harness: Harness, handle: ClientHandle, auto_ack: bool) -> None:
        self.harness = harness
        self.handle = handle
        self.client_id = handle.client_id
        self.session_present = handle.session_present
        self.auto_ack = auto_ack
        self._codes: list[int] = []
        self._got: list[Got] = []
        self._waiting: list[Delivery] = []
        self._ended: list[int] = []
        self._receive()
        handle.on_end = lambda reason: self._ended.append(reason.code)

    def _receive(self) -> None:
        self.handle.on_message = self._take

    def _take(self, one: Delivery) -> None:
        message = one.message
        self._got.append(
            Got(message.topic, message.payload, one.qos, one.retain, one.dup, one.identifiers)
        )
        if self.auto_ack:
            one.acknowledge()
        elif one.qos:
            self._waiting.append(one)

    @property
    def codes(self) -> list[int]:
        self.harness.settle()
        return self._codes

    @property
    def got(self) -> list[Got]:
        self.harness.settle()
        return self._got

    @property
    def ended(self) -> int | None:
        self.harness.settle()
        return self._ended[0] if self._ended else None

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **more: Any
    ) -> None:
        done = self._codes.append if qos else None
        self.handle.publish_later(topic, payload, qos, retain, Properties(**more), done)
        self.harness.settle()

    def subscribe(self, filter: str, qos: int = 0, **options: Any) -> int:
        code: ReasonCode = self.harness.clock.run(self.handle.subscribe(filter, qos, **options))
        return code

    def unsubscribe(self, filter: str) -> int:
        code: ReasonCode = self.harness.clock.run(self.handle.unsubscribe(filter))
        return code

    def ack(self) -> None:
        self._waiting.pop(0).acknowledge()
        self.harness.settle()

    def pause(self) -> None:
        self.handle.pause()

    def resume(self) -> None:
        self.handle.resume()
        self.harness.settle()

    def disconnect(self, code: int = 0) -> None:
        self.handle.disconnect(ReasonCode(code))
        self.harness.settle()

    def drop(self) -> None:
        connection: Any = connection_of(self.harness, self.client_id)
        connection.closed("lost")
        self.harness.settle()


class BatchSide(PluginSide):
    """A plugin's client that sends and receives batches."""

    def _receive(self) -> None:
        self.handle.on_messages = self._take_all

    def _take_all(self, deliveries: list[Delivery]) -> None:
        for one in deliveries:
            self._take(one)

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **more: Any
    ) -> None:
        message = (topic, payload, qos, retain, Properties(**more))
        short = (topic, payload) if not qos else (topic, payload, qos)
        codes = self.handle.publish_many([message if retain or more else short])

        def done(result: Any, error: BaseException | None) -> None:
            assert error is None
            if qos:
                self._codes.extend(result)

        self.harness.clock.spawn(codes, done)
        self.harness.settle()


def connection_of(harness: Harness, client_id: str) -> ConnectionView:
    connection = harness.broker.sessions[client_id].connection
    assert connection is not None
    return connection


def connect(
    harness: Harness,
    kind: str,
    client_id: str,
    *,
    clean_start: bool = True,
    expiry: int = 0,
    will: Will | None = None,
    receive_maximum: int = 65535,
    username: str | None = None,
    mount_point: str = "",
    auto_ack: bool = True,
    high_water: int = 65536,
    **properties: Any,
) -> Side:
    """Connect a client of the given `kind`, or raise Refused with the reason code."""
    listener = "here"
    if kind == "socket":
        fields = None
        if will is not None:
            m = will.message
            fields = will_fields(m.topic, m.payload, m.qos, m.retain, will.delay or None)
        client = harness.connect(
            client_id, 5, clean_start, 0, username, None, fields, auto_ack=auto_ack, expect=None,
            scope=Scope(listener, mount_point), high_water=high_water,
            session_expiry_interval=expiry or None,
            receive_maximum=None if receive_maximum == 65535 else receive_maximum, **properties,
        )  # fmt: skip
        harness.settle()
        assert client.connack is not None
        if client.connack.code:
            raise Refused(client.connack.code)
        client.unread.clear()
        return SocketSide(client)
    request = ClientRequest(
        client_id, username, None, clean_start, expiry, will, receive_maximum, listener,
        mount_point, properties=Properties(**properties),
    )  # fmt: skip
    try:
        handle = harness.clock.run(harness.handle("gateway").connect(request))
    except ConnectRefused as error:
        raise Refused(error.code) from error
    side = BatchSide if kind == "batch" else PluginSide
    return side(harness, handle, auto_ack)


@pytest.fixture
def make(broker_harness: Make) -> Make:
    """Create a harness with a plugin that opens clients, and any other plugins."""

    def made(*plugins: Any, **options: Any) -> Harness:
        gateway = HookRecorder("on_event", id="gateway")
        return broker_harness(plugins=[gateway, *plugins], **options)

    return made


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_arrives_at_the_lower_qos(
    make: Make, one: str, other: str, qos: int, granted: int
) -> None:
    harness = make()
    subscriber = connect(harness, other, "subscriber")
    assert subscriber.subscribe("a/+", granted) == granted
    publisher = connect(harness, one, "publisher")
    for number in range(5):  # the first goes through the pipeline, the others through shortcuts
        publisher.publish("a/b", b"%d" % number, qos)
    lower = min(qos, granted)
    assert subscriber.got == [Got("a/b", b"%d" % n, lower, False, False) for n in range(5)]
    assert publisher.codes == [0] * 5 * bool(qos)
    assert not harness.broker.sessions["subscriber"].inflight
    assert not harness.broker.sessions["publisher"].received


@pytest.mark.parametrize("kind", KINDS)
def test_codes_say_what_became_of_a_request(make: Make, kind: str) -> None:
    rules = HookRecorder("authorize", id="rules")
    rules.answer(
        "authorize",
        lambda topic: Deny() if topic.startswith("secret") else Allow(max_qos=1),
    )
    client = connect(make(rules), kind, "c")
    assert client.subscribe("secret/x", 1) == ReasonCode.NOT_AUTHORIZED
    assert client.subscribe("open", 2) == 1
    assert client.subscribe("a/#/b") == ReasonCode.TOPIC_FILTER_INVALID
    assert client.unsubscribe("never") == ReasonCode.NO_SUBSCRIPTION_EXISTED
    assert client.unsubscribe("open") == 0
    client.publish("secret/x", b"", 1)
    client.publish("open", b"", 1)
    client.publish("open", b"", 2)
    client.publish("$SYS/x", b"", 1)
    denied, none = ReasonCode.NOT_AUTHORIZED, ReasonCode.NO_MATCHING_SUBSCRIBERS
    assert client.codes == [denied, none, denied, denied]
    assert client.ended is None


@pytest.mark.parametrize("kind", KINDS)
def test_retained_messages(make: Make, kind: str) -> None:
    harness = make()
    publisher = connect(harness, kind, "publisher")
    publisher.publish("a/1", b"one", 1, retain=True)
    publisher.publish("a/2", b"two", 0, retain=True)
    client = connect(harness, kind, "c")
    client.subscribe("a/#", 2, identifier=7)
    assert sorted(client.got) == [
        Got("a/1", b"one", 1, True, False, (7,)), Got("a/2", b"two", 0, True, False, (7,)),
    ]  # fmt: skip
    publisher.publish("a/1", b"new", 1, retain=True)
    assert client.got[2:] == [Got("a/1", b"new", 1, False, False, (7,))]
    client.subscribe("a/1", 1, retain_handling=2)
    client.subscribe("a/#", 1, retain_handling=1)
    assert len(client.got) == 3
    client.subscribe("b", 1, retain_as_published=True)
    publisher.publish("b", b"kept", 1, retain=True)
    assert client.got[3:] == [Got("b", b"kept", 1, True, False)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_local(make: Make, kind: str) -> None:
    harness = make()
    client = connect(harness, kind, "c")
    client.subscribe("a", 1, no_local=True)
    client.publish("a", b"mine", 1)
    connect(harness, kind, "other").publish("a", b"theirs", 1)
    assert [one.payload for one in client.got] == [b"theirs"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("code", "published"), [(None, True), (0, False), (4, True)])
def test_a_will(make: Make, kind: str, code: int | None, published: bool) -> None:
    harness = make()
    watcher = connect(harness, "socket", "watcher")
    watcher.subscribe("gone", 1)
    client = connect(harness, kind, "c", will=Will(Message("gone", b"c", 1)))
    if code is None:
        client.drop()
    else:
        client.disconnect(code)
    assert [one.payload for one in watcher.got] == [b"c"] * published
    assert "c" not in harness.broker.sessions


@pytest.mark.parametrize("kind", KINDS)
def test_a_will_that_waits(make: Make, kind: str) -> None:
    harness = make()
    watcher = connect(harness, "socket", "watcher")
    watcher.subscribe("gone", 1)
    last = Will(Message("gone", b"c", 1), 30)
    connect(harness, kind, "c", will=last, expiry=60).drop()
    harness.advance(29)
    back = connect(harness, kind, "c", will=last, expiry=60, clean_start=False)
    assert back.session_present
    harness.advance(60)
    assert watcher.got == []
    back.drop()
    harness.advance(31)
    assert [one.payload for one in watcher.got] == [b"c"]
    harness.advance(30)
    assert "c" not in harness.broker.sessions


@pytest.mark.parametrize("kind", KINDS)
def test_a_will_must_be_allowed(make: Make, kind: str) -> None:
    rules = HookRecorder("authorize", id="rules")
    rules.answer("authorize", lambda action: Deny() if action is Action.WILL else Allow())
    with pytest.raises(Refused) as refused:
        connect(make(rules), kind, "c", will=Will(Message("gone", b"")))
    assert refused.value.args == (ReasonCode.NOT_AUTHORIZED,)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_takeover(make: Make, one: str, other: str) -> None:
    harness = make()
    watcher = connect(harness, "socket", "watcher")
    watcher.subscribe("gone", 1)
    old = connect(harness, one, "c", will=Will(Message("gone", b"old")), expiry=60)
    old.subscribe("a", 1)
    new = connect(harness, other, "c", clean_start=False, expiry=60)
    assert old.ended == ReasonCode.SESSION_TAKEN_OVER
    assert new.session_present
    assert [one.payload for one in watcher.got] == [b"old"]
    connect(harness, "socket", "publisher").publish("a", b"x", 1)
    assert [one.payload for one in new.got] == [b"x"]
    assert new.ended is None
    assert harness.metrics.takeovers == 1


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("qos", [1, 2])
def test_a_resumed_session_gets_what_is_in_flight_and_queued(
    make: Make, one: str, other: str, qos: int
) -> None:
    harness = make(store=DurableStore())
    client = connect(harness, one, "c", expiry=60, auto_ack=False, receive_maximum=2)
    client.subscribe("a", 2)
    publisher = connect(harness, "socket", "publisher")
    for number in range(4):
        publisher.publish("a", b"%d" % number, qos)
    assert [m.payload for m in client.got] == [b"0", b"1"]
    client.drop()
    publisher.publish("a", b"4", qos)
    back = connect(harness, other, "c", clean_start=False, expiry=60)
    assert back.session_present
    expected = [Got("a", b"%d" % n, qos, False, n < 2) for n in range(5)]
    assert back.got == expected
    back.drop()
    again = connect(harness, one, "c", clean_start=False, expiry=60)
    assert again.got == []


@pytest.mark.parametrize("other", KINDS)
def test_a_message_is_not_sent_again_after_pubrec(make: Make, other: str) -> None:
    """After PUBREC, a message is not sent again. Only PUBREL and PUBCOMP remain to be exchanged."""
    harness = make(store=DurableStore())
    client = connect(harness, "socket", "c", expiry=60, auto_ack=False)
    client.subscribe("a", 2)
    connect(harness, "socket", "publisher").publish("a", b"x", 2)
    client.ack()
    client.drop()
    assert len(harness.broker.sessions["c"].inflight) == 1
    back = connect(harness, other, "c", clean_start=False, expiry=60)
    assert back.got == []
    harness.settle()
    assert not harness.broker.sessions["c"].inflight


@pytest.mark.parametrize("other", KINDS)
def test_a_publish_that_an_earlier_connection_left_unfinished(make: Make, other: str) -> None:
    harness = make(store=DurableStore())
    watcher = connect(harness, "socket", "watcher")
    watcher.subscribe("a", 2)
    client = harness.connect("c", session_expiry_interval=60, auto_ack=False)
    client.publish("a", b"first", 2, packet_id=1)
    client.drop()
    assert harness.broker.sessions["c"].received == {1}
    back = connect(harness, other, "c", clean_start=False, expiry=60)
    if other == "plugin":
        # No client is left to release the old id. A new message with the same id must not be mistaken for the old one.
        assert not harness.broker.sessions["c"].received
        for number in range(3):
            back.publish("a", b"%d" % number, 2)
        assert [one.payload for one in watcher.got] == [b"first", b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qos", [1, 2])
def test_receive_maximum(make: Make, kind: str, qos: int) -> None:
    harness = make()
    client = connect(harness, kind, "c", auto_ack=False, receive_maximum=2)
    client.subscribe("a", qos)
    publisher = connect(harness, "socket", "publisher")
    for number in range(4):
        publisher.publish("a", b"%d" % number, qos)
    assert [one.payload for one in client.got] == [b"0", b"1"]
    session = harness.broker.sessions["c"]
    assert (len(session.inflight), session.queued) == (2, 2)
    if kind == "socket" and qos == 2:
        return  # needs PUBCOMP too
    client.ack()
    assert [one.payload for one in client.got] == [b"0", b"1", b"2"]
    client.ack()
    client.ack()
    client.ack()
    assert [one.payload for one in client.got] == [b"0", b"1", b"2", b"3"]
    assert not session.inflight


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_that_does_not_read(make: Make, kind: str, qos: int) -> None:
    """If a client does not read, the memory used for it is limited by the write buffer, the window and the queue."""
    config = {
        "broker": {"max_write_buffer": 4096},
        "session": {"queue_messages": 10, "max_inflight": 5, "queue_bytes": 10_000},
    }
    harness = make(config=config)
    client = connect(harness, kind, "c", high_water=4096)
    client.subscribe("a", qos)
    client.pause()
    publisher = connect(harness, "socket", "publisher")
    for _ in range(200):
        publisher.publish("a", bytes(1000), qos)
    session = harness.broker.sessions["c"]
    waiting = session.queued + len(session.queue_qos0 or ()) + len(session.inflight)
    assert 0 < waiting <= 15
    dropped = sum(harness.metrics.dropped.values())
    assert dropped >= 180
    client.resume()
    assert len(client.got) == 200 - dropped
    publisher.publish("a", b"again", qos)
    assert client.got[-1].payload == b"again"


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_shared_subscription(make: Make, one: str, other: str) -> None:
    harness = make()
    first = connect(harness, one, "first")
    second = connect(harness, other, "second")
    for member in (first, second):
        assert member.subscribe("$share/team/a/#", 1) == 1
    publisher = connect(harness, "socket", "publisher")
    for number in range(10):
        publisher.publish("a/b", b"%d" % number, 1)
    assert len(first.got) == len(second.got) == 5
    assert {m.payload for m in (*first.got, *second.got)} == {b"%d" % n for n in range(10)}


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_shared_message_returns_if_its_member_leaves(make: Make, one: str, other: str) -> None:
    harness = make()
    first = connect(harness, one, "first", auto_ack=False)
    first.subscribe("$share/team/a", 1)
    connect(harness, "socket", "publisher").publish("a", b"x", 1)
    assert [m.payload for m in first.got] == [b"x"]
    second = connect(harness, other, "second")
    second.subscribe("$share/team/a", 1)
    first.drop()
    assert [m.payload for m in second.got] == [b"x"]


@pytest.mark.parametrize("kind", KINDS)
def test_overlapping_subscriptions_give_one_message(make: Make, kind: str) -> None:
    harness = make()
    client = connect(harness, kind, "c")
    client.subscribe("a/#", 0, identifier=1)
    client.subscribe("a/+", 2, identifier=2)
    connect(harness, "socket", "publisher").publish("a/b", b"x", 1)
    (only,) = client.got
    assert (only.qos, sorted(only.identifiers)) == (1, [1, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_messages_expire_in_the_queue(make: Make, kind: str) -> None:
    harness = make()
    client = connect(harness, kind, "c", expiry=600)
    client.subscribe("a", 1)
    client.drop()
    publisher = connect(harness, kind, "publisher")
    publisher.publish("a", b"short", 1, message_expiry_interval=5)
    publisher.publish("a", b"long", 1, message_expiry_interval=500)
    harness.advance(6)
    back = connect(harness, kind, "c", clean_start=False, expiry=600)
    assert [one.payload for one in back.got] == [b"long"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_expires(make: Make, kind: str) -> None:
    harness = make()
    connect(harness, kind, "c", expiry=30).disconnect()
    harness.advance(29)
    assert "c" in harness.broker.sessions
    harness.advance(2)
    assert "c" not in harness.broker.sessions
    assert not connect(harness, kind, "c", clean_start=False, expiry=30).session_present


@pytest.mark.parametrize("kind", KINDS)
def test_clean_start_ends_the_session(make: Make, kind: str) -> None:
    harness = make()
    connect(harness, kind, "c", expiry=30).subscribe("a", 1)
    again = connect(harness, kind, "c", expiry=30)
    assert not again.session_present
    assert not harness.broker.sessions["c"].subscriptions


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_refuses_the_client(make: Make, kind: str) -> None:
    auth = HookRecorder("on_connect", "on_auth_failed", id="auth")
    auth.answer(
        "on_connect",
        lambda client: Accept() if client.username == "right" else Deny(ReasonCode.BANNED),
    )
    harness = make(auth)
    with pytest.raises(Refused) as refused:
        connect(harness, kind, "c", username="wrong")
    assert refused.value.args == (ReasonCode.BANNED,)
    assert connect(harness, kind, "c", username="right").ended is None
    harness.settle()
    assert [call.code for call in auth.calls("on_auth_failed")] == [ReasonCode.BANNED]


@pytest.mark.parametrize("kind", KINDS)
def test_limits_on_clients(make: Make, kind: str) -> None:
    harness = make(config={"broker": {"max_connections": 2}})
    one = connect(harness, kind, "")
    assert one.client_id.startswith("auto-")
    connect(harness, kind, "c2")
    if kind == "plugin":
        with pytest.raises(Refused) as refused:
            connect(harness, kind, "c3")
        assert refused.value.args == (ReasonCode.SERVER_BUSY,)
    else:
        assert harness.open().closed
    one.disconnect()
    connect(harness, kind, "c3")


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_id_in_use_can_be_refused(make: Make, kind: str) -> None:
    harness = make(config={"broker": {"duplicate_client_id": "reject"}})
    first = connect(harness, kind, "c")
    with pytest.raises(Refused) as refused:
        connect(harness, kind, "c")
    assert refused.value.args == (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,)
    assert first.ended is None


@pytest.mark.parametrize("kind", KINDS)
def test_limits_that_a_plugin_grants(make: Make, kind: str) -> None:
    auth = HookRecorder("on_connect", id="auth")
    auth.answer("on_connect", Accept(limits=Limits(session_expiry=10, max_subscriptions=1)))
    harness = make(auth)
    client = connect(harness, kind, "c", expiry=600)
    assert client.subscribe("a", 1) == 1
    assert client.subscribe("b", 1) == ReasonCode.QUOTA_EXCEEDED
    client.drop()
    harness.advance(11)
    assert "c" not in harness.broker.sessions


@pytest.mark.parametrize("kind", KINDS)
def test_a_credential_expires(make: Make, kind: str) -> None:
    auth = HookRecorder("on_connect", id="auth")
    harness = make(auth)
    auth.answer("on_connect", Accept(expires_at=harness.clock.time() + 60))
    client = connect(harness, kind, "c")
    harness.advance(59)
    assert client.ended is None
    harness.advance(2)
    assert client.ended == ReasonCode.MAXIMUM_CONNECT_TIME


@pytest.mark.parametrize("kind", KINDS)
def test_a_mount_point(make: Make, kind: str) -> None:
    harness = make()
    inside = connect(harness, kind, "inside", mount_point="tenant/")
    outside = connect(harness, "socket", "outside")
    outside.subscribe("tenant/#", 1)
    inside.subscribe("#", 1)
    inside.publish("a", b"out", 1)
    outside.publish("tenant/b", b"in", 1)
    outside.publish("b", b"elsewhere", 1)
    assert [(one.topic, one.payload) for one in inside.got] == [("a", b"out"), ("b", b"in")]
    assert [one.topic for one in outside.got] == ["tenant/a", "tenant/b"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_packet_that_the_client_takes(make: Make, kind: str) -> None:
    harness = make()
    client = connect(harness, kind, "c", maximum_packet_size=100)
    client.subscribe("a", 1)
    publisher = connect(harness, "socket", "publisher")
    # 2 + 3 bytes for the topic, 2 for the packet id, 1 for the properties, and 2 in the header
    publisher.publish("a", bytes(100 - 8), 1)
    publisher.publish("a", bytes(100 - 7), 1)
    assert [len(one.payload) for one in client.got] == [92]
    assert client.ended is None


class Twice(PublishLimit):
    """A limit that accepts two publishes, and makes the third wait until the test calls `go`."""

    def __init__(self) -> None:
        self.left = 2
        self.go: list[Callable[[LimitExceeded | None], None]] = []

    def take(self, size: int) -> bool:
        self.left -= 1
        return self.left >= 0

    def over(self, size: int, qos: int, go: Any) -> Callable[[], None]:
        self.go.append(go)
        return lambda: None


class Limiter(RateLimiter):
    """A rate limiter that applies the same limit to every topic."""

    def __init__(self, limit: PublishLimit) -> None:
        self.limit = limit

    def publish_limit(self, topic: str) -> PublishLimit:
        return self.limit


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_limit(make: Make, kind: str) -> None:
    limit = Twice()
    limiter = Limiter(limit)
    plugin = HookRecorder("provide_rate_limiter", id="limits")
    plugin.answer(
        "provide_rate_limiter", lambda client: limiter if client.client_id == "c" else None
    )
    harness = make(plugin)
    watcher = connect(harness, "socket", "watcher")
    watcher.subscribe("a", 1)
    client = connect(harness, kind, "c")
    for number in range(4):
        client.publish("a", b"%d" % number, 1)
    assert [one.payload for one in watcher.got] == [b"0", b"1"]
    limit.left = 10
    limit.go[0](None)
    assert [one.payload for one in watcher.got] == [b"0", b"1", b"2", b"3"]
    assert client.codes == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_plugin_clients_get_the_decisions_of_on_publish(make: Make, kind: str) -> None:
    filterer = HookRecorder("on_publish", id="filter")
    answers: dict[str, Any] = {"drop": Drop(), "deny": Deny(ReasonCode.QUOTA_EXCEEDED)}
    filterer.answer(
        "on_publish",
        lambda message: answers.get(message.topic) or message.replace(payload=b"changed"),
    )
    harness = make(filterer)
    client = connect(harness, kind, "c")
    client.subscribe("#", 2)
    for qos in (1, 2):
        for topic in ("drop", "deny", "change"):
            client.publish(topic, b"x", qos)
    assert client.codes == [0, ReasonCode.QUOTA_EXCEEDED, 0] * 2
    assert [one.payload for one in client.got] == [b"changed"] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_later_publishes_wait_for_a_decision(make: Make, kind: str) -> None:
    gate: list[Any] = []

    async def decide(message: Message) -> None:
        if message.payload == b"slow":
            gate.append(harness.clock.event())
            await gate[-1]

    filterer = HookRecorder("on_publish", id="filter")
    filterer.answer("on_publish", decide)
    harness = make(filterer)
    watcher = connect(harness, "socket", "watcher")
    watcher.subscribe("#", 1)
    client = connect(harness, kind, "c")
    client.publish("a", b"slow", 1)
    client.publish("a", b"quick", 0)
    assert watcher.got == []
    gate[0].set()
    assert [one.payload for one in watcher.got] == [b"slow", b"quick"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_waits_for_the_commit(make: Make, kind: str, qos: int) -> None:
    store = SlowStore(DurableStore())
    store.slow = False
    harness = make(store=store)
    sleeper = connect(harness, "socket", "sleeper", expiry=60)
    sleeper.subscribe("a", 1)
    sleeper.drop()
    client = connect(harness, kind, "c")
    store.slow = True
    client.publish("a", b"x", qos)
    assert client.codes == []
    store.finish()
    assert client.codes == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_publishes_survive_a_crash(make: Make, kind: str) -> None:
    harness = make(store=DurableStore())
    client = connect(harness, kind, "c", expiry=600)
    client.subscribe("a/#", 2)
    client.drop()
    publisher = connect(harness, kind, "publisher")
    for qos in (1, 2):
        publisher.publish("a/b", b"%d" % qos, qos)
    assert publisher.codes == [0, 0]
    harness.restart()
    back = connect(harness, kind, "c", clean_start=False, expiry=600, auto_ack=False)
    assert [(one.payload, one.dup) for one in back.got] == [(b"1", False), (b"2", False)]
    harness.restart()
    back = connect(harness, kind, "c", clean_start=False, expiry=600)
    assert [(one.payload, one.dup) for one in back.got] == [(b"1", True), (b"2", True)]
    harness.restart()
    assert connect(harness, kind, "c", clean_start=False, expiry=600).got == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_disconnects_the_client(make: Make, kind: str) -> None:
    harness = make()
    client = connect(harness, kind, "c")
    assert harness.handle("gateway").disconnect("c", ReasonCode.BANNED)
    assert client.ended == (ReasonCode.NOT_AUTHORIZED if kind == "socket" else ReasonCode.BANNED)


@pytest.mark.parametrize("kind", KINDS)
def test_the_broker_stops(make: Make, kind: str) -> None:
    harness = make()
    client = connect(harness, kind, "c")
    harness.broker.drain("", lambda: None)
    assert client.ended == ReasonCode.SERVER_SHUTTING_DOWN
    if kind == "plugin":
        with pytest.raises(Refused) as refused:
            connect(harness, kind, "c")
        assert refused.value.args[0] in (ReasonCode.SERVER_BUSY, ReasonCode.SERVER_UNAVAILABLE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_permission_is_withdrawn(make: Make, kind: str) -> None:
    rules = HookRecorder("authorize", id="rules")
    rules.answer("authorize", Allow())
    harness = make(rules)
    client = connect(harness, kind, "c")
    client.subscribe("a", 1)
    client.publish("a", b"1", 1)
    client.publish("a", b"2", 1)
    rules.answer("authorize", lambda action: Deny() if action is Action.PUBLISH else Allow())
    harness.handle("gateway").invalidate_authz()
    client.publish("a", b"3", 1)
    assert client.codes == [0, 0, ReasonCode.NOT_AUTHORIZED]
    assert [one.payload for one in client.got] == [b"1", b"2"]


@pytest.mark.parametrize("kind", KINDS)
def test_on_deliver_sees_each_message(make: Make, kind: str) -> None:
    changes = HookRecorder("on_deliver", id="changes")
    changes.answer(
        "on_deliver",
        lambda message: Drop() if message.payload == b"no" else message.replace(payload=b"yes"),
    )
    harness = make(changes)
    client = connect(harness, kind, "c")
    client.subscribe("a", 1)
    client.publish("a", b"no", 1)
    client.publish("a", b"what", 1)
    assert [one.payload for one in client.got] == [b"yes"]


@pytest.mark.parametrize("kind", KINDS)
def test_observers_see_a_client_like_any_other(make: Make, kind: str) -> None:
    hooks = (
        "on_session", "on_subscribed", "on_unsubscribed", "on_published", "on_delivered", "on_disconnect",
    )  # fmt: skip
    seen = HookRecorder(*hooks, id="seen")
    harness = make(seen)
    client = connect(harness, kind, "c")
    client.subscribe("a", 1)
    client.publish("a", b"x", 1)
    client.publish("a", b"y", 0)
    assert len(client.got) == 2
    client.unsubscribe("a")
    client.disconnect()
    harness.settle()
    assert [call.event for call in seen.calls("on_session")] == ["created", "ended"]
    assert [call.message.payload for call in seen.calls("on_published")] == [b"x", b"y"]
    assert sorted(call.message.payload for call in seen.calls("on_delivered")) == [b"x", b"y"]
    assert len(seen.calls("on_subscribed")) == len(seen.calls("on_unsubscribed")) == 1
    (end,) = seen.calls("on_disconnect")
    assert (end.client.client_id, end.client.version, end.client.listener) == ("c", 5, "here")


def test_the_two_kinds_are_two(make: Make) -> None:
    """The two kinds of clients really differ. If they were the same, this suite would prove nothing."""
    harness = make()
    connect(harness, "socket", "one")
    connect(harness, "plugin", "two")
    assert not connection_of(harness, "one").in_process
    assert connection_of(harness, "two").in_process
