"""Test CONNECT in all three versions: which packets are accepted, and the codes that refuse all others."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept, Allow, Deny, Limits
from hookmq.model.client import Certificate, Peer, Scope
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Connack,
    Connect,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import Action
from hookmq_testing import Harness, HookRecorder, MemoryClient, will

Make = Callable[..., Harness]

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
OLD = pytest.mark.parametrize("version", [3, 4])


def connect_body(
    version: int = 5,
    flags: int = 0x02,
    client_id: bytes = b"c",
    rest: bytes = b"",
    name: bytes | None = None,
    level: int | None = None,
    properties: bytes = b"\0",
) -> bytes:
    """Encode a CONNECT with any flags and fields."""
    name = name if name is not None else (b"MQIsdp" if version == 3 else b"MQTT")
    body = len(name).to_bytes(2, "big") + name
    body += bytes((version if level is None else level, flags)) + b"\0\x3c"
    if version == 5:
        body += properties
    body += len(client_id).to_bytes(2, "big") + client_id + rest
    return b"\x10" + bytes((len(body),)) + body


def sent(client: MemoryClient, data: bytes) -> MemoryClient:
    client.raw(data)
    return client


# --- versions -----------------------------------------------------------------------------------------------------------


@VERSIONS
def test_a_client_is_welcome(harness: Harness, version: int) -> None:
    client = harness.connect("c", version)
    assert client.connack is not None
    assert client.connack.code == 0
    assert not client.session_present
    client.ping()
    assert list(harness.broker.sessions) == ["c"]
    assert harness.metrics.connections_accepted == 1
    [said] = harness.logged("client.connected")
    assert (said["client_id"], said["version"], said["session"]) == ("c", version, "created")


@OLD
def test_connack_of_3_is_two_bytes(harness: Harness, version: int) -> None:
    client = harness.connect("c", version)
    assert client.raw_received == b"\x20\x02\x00\x00"


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        (b"MQTT", 3, b"\x20\x02\x00\x01"),
        (b"MQTT", 0, b"\x20\x02\x00\x01"),
        (b"MQIsdp", 4, b"\x20\x02\x00\x01"),
        (b"MQIsdp", 5, b"\x20\x02\x00\x01"),
        (b"MQTX", 4, b""),
        (b"", 4, b""),
        (b"mqtt", 5, b""),
    ],
)
def test_unknown_versions_are_told_in_the_words_of_3(
    harness: Harness, name: bytes, level: int, answer: bytes
) -> None:
    # Edge cases 16 and 54; [MQTT311-3.1.2-1, 3.1.2-2]
    client = harness.open(version=4)
    client.raw(connect_body(4, name=name, level=level))
    assert client.raw_received == answer
    assert client.closed
    assert not harness.broker.sessions


@pytest.mark.parametrize("level", [6, 7, 0x7F])
def test_a_later_version_is_refused_in_the_words_of_5(harness: Harness, level: int) -> None:
    client = harness.open()
    client.raw(connect_body(5, level=level))
    assert client.expect(Connack).code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    client.expect_closed()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_listener_may_speak_some_versions_only(harness: Harness, version: int) -> None:
    scope = Scope(versions=frozenset({3, 4, 5} - {version}))
    code = 0x84 if version == 5 else 1
    client = harness.connect("c", version, scope=scope, expect=code)
    client.expect_closed()
    other = 4 if version != 4 else 3
    harness.connect("d", other, scope=scope)


@pytest.mark.parametrize("level", [0x83, 0x84])
def test_the_bridge_bit_is_no_version(harness: Harness, level: int) -> None:
    # Edge case 55: no-local and retain as published, as bridges of 3.x expect
    version = level & 0x7F
    client = harness.connect("bridge", version, bridge=True)
    client.subscribe("a", 1)
    client.publish("a", b"mine", 1, expect=0)
    client.expect_nothing()
    harness.connect("other", version).publish("a", b"kept", 1, retain=True)
    client.expect_message("a", b"kept", 1, retain=True)


def test_the_bridge_bit_does_not_exist_in_5(harness: Harness) -> None:
    client = harness.open()
    client.raw(connect_body(5, level=0x85))
    assert client.expect(Connack).code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    client.expect_closed()


# --- malformed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "rest"),
    [
        (0x03, b""),  # the reserved flag
        (0x1E, b"\0\0\1t\0\0"),  # will QoS 3
        (0x0A, b""),  # a will QoS without a will
        (0x22, b""),  # will retain without a will
        (0x82, b""),  # a missing user name
        (0x02, b"more"),  # extra bytes
        (0xC2, b"\0\1u\0\5abc"),  # a truncated password
    ],
)
def test_a_malformed_connect(harness: Harness, flags: int, rest: bytes) -> None:
    # Edge cases 8 and 15: an MQTT 5 client gets the reason, a 3.1.1 client does not [MQTT311-3.1.4-1]
    client = harness.open()
    client.raw(connect_body(5, flags, rest=rest))
    assert client.expect(Connack).code == ReasonCode.MALFORMED_PACKET
    client.expect_closed()
    client = harness.open(version=4)
    client.raw(connect_body(4, flags, rest=rest))
    client.expect_closed()
    assert client.raw_received == b""
    assert not harness.broker.sessions
    assert harness.metrics.protocol_errors == 2
    assert harness.metrics.connections_refused == 2


def test_mqtt_3_1_is_lenient(harness: Harness) -> None:
    # Edge case 59: the reserved flag, and a flagged user name that was left out
    client = harness.open(version=3)
    client.raw(connect_body(3, 0x83))
    assert client.expect(Connack).code == 0


@pytest.mark.parametrize("client_id", [b"a\0b", b"\xed\xa0\x80", b"\xc0\x80", b"\xff"])
def test_a_client_id_that_is_not_utf8(harness: Harness, client_id: bytes) -> None:
    client = harness.open()
    client.raw(connect_body(5, client_id=client_id))
    assert client.expect(Connack).code == ReasonCode.MALFORMED_PACKET
    client.expect_closed()
    client = harness.open(version=4)
    client.raw(connect_body(4, client_id=client_id))
    client.expect_closed()


def test_password_without_user_name(harness: Harness) -> None:
    # Edge case 12
    harness.connect("five", 5, password=b"x")
    client = harness.open(version=4)
    client.raw(connect_body(4, 0x42, rest=b"\0\1x"))
    client.expect_closed()


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"\x03\x21\0\0", ReasonCode.PROTOCOL_ERROR),  # receive maximum 0 (edge case 17)
        (b"\x05\x27\0\0\0\0", ReasonCode.PROTOCOL_ERROR),  # maximum packet size 0 (20)
        (b"\x02\x17\x02", ReasonCode.PROTOCOL_ERROR),  # not a boolean (38)
        (b"\x04\x17\x01\x17\x01", ReasonCode.PROTOCOL_ERROR),  # twice
        (b"\x03\x23\0\1", ReasonCode.MALFORMED_PACKET),  # a property of PUBLISH
        (b"\x02\x7f\x00", ReasonCode.MALFORMED_PACKET),  # unknown
        (b"\x04\x16\0\1x", ReasonCode.PROTOCOL_ERROR),  # data without a method (50)
        (b"\x09\x11\0", ReasonCode.MALFORMED_PACKET),  # longer than the packet
    ],
)
def test_wrong_properties(harness: Harness, properties: bytes, code: ReasonCode) -> None:
    client = harness.open()
    client.raw(connect_body(5, properties=properties))
    assert client.expect(Connack).code == code
    client.expect_closed()


# --- client ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_5_is_given_a_client_id(harness: Harness, clean: bool) -> None:
    # Edge case 10 [MQTT-3.1.3-6, 3.1.3-7, 3.2.2-16]
    one, two = (harness.connect("", clean_start=clean) for _ in range(2))
    assert one.connack is not None
    assert two.connack is not None
    ids = {one.client_id, two.client_id}
    assert len(ids) == 2
    assert ids == set(harness.broker.sessions)
    assert one.connack.properties.assigned_client_identifier == one.client_id


def test_a_given_client_id_can_be_used_again(harness: Harness) -> None:
    one = harness.connect("", session_expiry_interval=60)
    given = one.client_id
    one.drop()
    two = harness.connect(given, clean_start=False, session_expiry_interval=60)
    assert two.session_present
    assert two.connack is not None
    assert two.connack.properties.assigned_client_identifier is None


def test_a_client_id_is_not_given_to_who_has_one(harness: Harness) -> None:
    client = harness.connect("mine")
    assert client.connack is not None
    assert client.connack.properties.assigned_client_identifier is None


def test_empty_client_ids_of_3_1_1(harness: Harness) -> None:
    # [MQTT311-3.1.3-6, 3.1.3-7, 3.1.3-8]
    one, two = harness.connect("", 4), harness.connect("", 4)
    one.ping()
    two.ping()
    assert len(harness.broker.sessions) == 2
    client = harness.connect("", 4, clean_start=False, expect=2)
    client.expect_closed()


@pytest.mark.parametrize("clean", [True, False])
def test_3_1_knows_no_empty_client_id(harness: Harness, clean: bool) -> None:
    # Edge case 56
    harness.connect("", 3, clean_start=clean, expect=2).expect_closed()


@VERSIONS
def test_long_client_ids(harness: Harness, version: int) -> None:
    harness.connect("x" * 24, version)
    harness.connect("\N{SNOWMAN} /+#$" * 100, version)
    harness.connect("x" * 60000, version)


# --- CONNACK's properties -----------------------------------------------------------------------------------------------


def connack(client: MemoryClient) -> Properties:
    assert client.connack is not None
    return client.connack.properties


# --- keep alive ---------------------------------------------------------------------------------------------------------


# --- in time and within bounds ------------------------------------------------------------------------------------------


def test_too_many_connections(broker_harness: Make) -> None:
    harness = broker_harness(config={"broker": {"max_connections": 2}})
    one = harness.connect("1")
    harness.connect("2")
    client = harness.open()
    client.expect_closed()
    assert harness.metrics.connections_refused == 1
    one.disconnect()
    harness.connect("3")


@pytest.mark.parametrize(("version", "code"), [(3, 3), (4, 3), (5, 0x97)])
def test_too_many_sessions(broker_harness: Make, version: int, code: int) -> None:
    harness = broker_harness(config={"broker": {"max_sessions": 2}})
    harness.connect("1", session_expiry_interval=100).drop()
    harness.connect("2")
    harness.connect("3", version, expect=code).expect_closed()
    harness.connect("1", clean_start=False)
    harness.connect("", 5, expect=0x97)


@pytest.mark.parametrize(("version", "code"), [(3, 3), (4, 3), (5, 0x88)])
def test_nobody_comes_in_while_the_broker_drains(harness: Harness, version: int, code: int) -> None:
    client = harness.open(version)
    with harness.together():
        client.wire.send(encode(Connect("late", version, True, 0), version))
        harness.broker.state.draining = True
    assert client.expect(Connack).code == code
    client.expect_closed()


# --- on_connect ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_connect", "on_auth_failed", "on_session", "on_disconnect")


def test_nobody_decides(broker_harness: Make, recorder: HookRecorder) -> None:
    allows = broker_harness([recorder])
    allows.connect("c")
    denies = broker_harness([HookRecorder("on_connect")], config={"auth": {"default": "deny"}})
    denies.connect("c", expect=ReasonCode.NOT_AUTHORIZED).expect_closed()
    assert not denies.broker.sessions
    broker_harness(config={"auth": {"default": "deny"}}).connect("c", 4, expect=5)


def test_accept_is_enough(broker_harness: Make, recorder: HookRecorder) -> None:
    recorder.answer("on_connect", Accept("somebody", {"role": "boss"}))
    harness = broker_harness([recorder], config={"auth": {"default": "deny"}})
    harness.connect("c", username="u", password=b"p")
    [call] = recorder.calls("on_connect")
    assert (call.connect.username, call.connect.password) == ("u", b"p")
    client = harness.broker.sessions["c"].client
    assert (client.identity, client.claims) == ("somebody", {"role": "boss"})
    assert (client.username, client.version, client.listener) == ("u", 5, "default")


@pytest.mark.parametrize(
    ("code", "old"),
    [
        (ReasonCode.NOT_AUTHORIZED, 5),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4),
        (ReasonCode.BANNED, 5),
        (ReasonCode.SERVER_BUSY, 3),
        (ReasonCode.QUOTA_EXCEEDED, 3),
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 2),
    ],
)
def test_deny_in_every_version(
    broker_harness: Make, recorder: HookRecorder, code: ReasonCode, old: int
) -> None:
    recorder.answer("on_connect", Deny(code, "no"))
    harness = broker_harness([recorder])
    for version, expected in ((3, old), (4, old), (5, code)):
        client = harness.connect("c", version, expect=expected)
        assert not client.session_present  # edge case 11 [MQTT-3.2.2-6]
        client.expect_closed()
    assert not harness.broker.sessions
    harness.settle()
    assert [(c.code, c.reason) for c in recorder.calls("on_auth_failed")] == [(code, "no")] * 3
    assert not recorder.calls("on_session", "on_disconnect")
    assert harness.metrics.connections_refused == 3
    assert [fields["plugin"] for fields in harness.logged("auth.failed")] == ["recorder"] * 3


@pytest.mark.parametrize("fault", [RuntimeError("broken"), "nonsense", "timeout"])
@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, 0x88)])
def test_a_plugin_that_fails_to_decide_lets_no_client_in(
    broker_harness: Make, recorder: HookRecorder, fault: Any, version: int, code: int
) -> None:
    harness = broker_harness([recorder])
    harness.fail("recorder", "on_connect", fault)
    client = harness.connect("c", version, expect=None)
    harness.advance(5.1)
    assert client.expect(Connack).code == code
    client.expect_closed()
    harness.heal()
    client.reconnect()


@VERSIONS
def test_a_plugin_may_take_its_time(
    broker_harness: Make, recorder: HookRecorder, version: int
) -> None:
    harness = broker_harness([recorder])
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client = harness.connect("c", version, expect=None)
    harness.advance(4)
    client.expect_nothing()
    assert not harness.broker.sessions
    verdict.set(Accept("late"))
    assert client.expect(Connack).code == 0
    assert harness.broker.sessions["c"].client.identity == "late"


def test_a_decision_may_take_longer_than_connect(broker_harness: Make) -> None:
    # The listener's timeout limits the client; the hook's timeout limits the plugin.
    recorder = HookRecorder("on_connect")
    harness = broker_harness([recorder])
    recorder.answer("on_connect", harness.clock.event())
    client = harness.connect("c", scope=Scope(connect_timeout=1), expect=None)
    harness.advance(4.9)
    client.expect_nothing()
    harness.advance(0.2)
    assert client.expect(Connack).code == ReasonCode.SERVER_UNAVAILABLE


@VERSIONS
def test_a_client_that_leaves_is_not_decided_on(
    broker_harness: Make, recorder: HookRecorder, version: int
) -> None:
    harness = broker_harness([recorder])
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client = harness.connect("c", version, expect=None)
    assert harness.clock.tasks
    client.drop()
    assert not harness.clock.tasks
    verdict.set(Accept())
    harness.settle()
    assert not harness.broker.sessions
    assert not harness.broker.connections
    assert not recorder.calls("on_session", "on_disconnect", "on_auth_failed")


def test_two_decisions_for_one_client_id(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    first, second = harness.clock.event(), harness.clock.event()
    recorder.answer("on_connect", first, second)
    one = harness.connect("c", expect=None)
    two = harness.connect("c", expect=None)
    second.set(Accept())
    assert two.expect(Connack).code == 0
    one.expect_nothing()
    first.set(Accept())
    assert one.expect(Connack).code == 0
    two.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    assert len(harness.broker.connections) == 1


def test_limits_of_one_client(broker_harness: Make, recorder: HookRecorder) -> None:
    limits = Limits(
        max_packet_size=300,
        receive_maximum=2,
        session_expiry=60,
        queue_messages=1,
        max_subscriptions=1,
    )
    recorder.answer("on_connect", Accept(limits=limits))
    harness = broker_harness([recorder])
    client = harness.connect("c", session_expiry_interval=100)
    told = connack(client)
    assert told.maximum_packet_size == 300
    assert told.receive_maximum == 2
    assert told.session_expiry_interval == 60
    assert client.subscribe("a", 1).codes == (1,)
    assert client.subscribe("b", 1).codes == (ReasonCode.QUOTA_EXCEEDED,)
    client.drop()
    recorder.answer("on_connect", Accept())
    other = harness.connect("d")
    for number in range(3):
        other.publish("a", b"%d" % number, 1)
    assert harness.metrics.dropped == {("queue_full", "out"): 2}
    recorder.answer("on_connect", Accept(limits=limits))
    client.reconnect()
    client.expect_message("a", b"0")
    client.expect_nothing()
    client.raw(b"\x30\xad\x02")
    client.expect_disconnect(ReasonCode.PACKET_TOO_LARGE)
    harness.advance(61)
    assert "c" not in harness.broker.sessions


def test_limits_cannot_raise_what_is_configured(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    limits = Limits(10**9, 65535, 10**9, 10**9, 10**9)
    recorder.answer("on_connect", Accept(limits=limits))
    config = {
        "broker": {"max_packet_size": 1000, "receive_maximum": 5},
        "session": {"max_expiry": 10, "max_subscriptions": 1, "queue_messages": 7},
    }
    harness = broker_harness([recorder], config=config)
    client = harness.connect("c", session_expiry_interval=100)
    told = connack(client)
    assert told.maximum_packet_size == 1000
    assert told.receive_maximum == 5
    assert told.session_expiry_interval == 10
    session = harness.broker.sessions["c"]
    assert (session.queue_messages, session.max_subscriptions) == (7, 1)


def test_a_credential_that_ends(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    recorder.answer("on_connect", Accept(expires_at=harness.clock.time() + 30))
    clients = [harness.connect(f"c{version}", version) for version in (3, 4, 5)]
    harness.advance(29.9)
    for client in clients:
        client.expect_nothing()
    harness.advance(0.2)
    for client in clients:
        client.expect_disconnect(ReasonCode.MAXIMUM_CONNECT_TIME)


def test_a_credential_that_has_ended(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    recorder.answer("on_connect", Accept(expires_at=harness.clock.time() - 1))
    client = harness.connect("c")
    client.expect_disconnect(ReasonCode.MAXIMUM_CONNECT_TIME)


def test_the_first_to_identify_is_believed_and_any_may_deny(broker_harness: Make) -> None:
    one, two = HookRecorder("on_connect", id="one"), HookRecorder("on_connect", id="two")
    one.answer("on_connect", Accept("first", limits=Limits(receive_maximum=9)))
    two.answer("on_connect", Accept("second", {"x": 1}, limits=Limits(receive_maximum=5)))
    harness = broker_harness([one, two])
    assert connack(harness.connect("c")).receive_maximum == 5
    client = harness.broker.sessions["c"].client
    assert (client.identity, client.claims) == ("first", {"x": 1})
    two.answer("on_connect", Deny())
    harness.connect("d", expect=0x87)


# --- the will -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(4, 5), (5, 0x87)])
def test_a_will_must_be_allowed(broker_harness: Make, version: int, code: int) -> None:
    recorder = HookRecorder("authorize", "on_denied")
    recorder.answer("authorize", Deny())
    harness = broker_harness([recorder])
    client = harness.connect("c", version, will=will("w/x", b"x", 1, True), expect=code)
    client.expect_closed()
    [call] = recorder.calls("authorize")
    assert (call.action, call.topic, call.message.retain) == (Action.WILL, "w/x", True)
    assert call.message.qos == 1
    assert not harness.broker.sessions
    harness.connect("c", version)
    [denied] = recorder.calls("on_denied")
    assert (denied.action, denied.topic, denied.rule) == (Action.WILL, "w/x", "recorder")


def test_a_will_may_be_decided_on_later(broker_harness: Make) -> None:
    recorder = HookRecorder("authorize")
    harness = broker_harness([recorder])
    verdict = harness.clock.event()
    recorder.answer("authorize", verdict)
    client = harness.connect("c", will=will("w"), expect=None)
    client.expect_nothing()
    verdict.set(Deny())
    assert client.expect(Connack).code == 0x87
    client.expect_closed()


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, 0x9B)])
def test_a_will_above_the_qos_that_is_allowed(
    broker_harness: Make, version: int, code: int
) -> None:
    recorder = HookRecorder("authorize", "on_denied")
    recorder.answer("authorize", Allow(max_qos=1))
    harness = broker_harness([recorder])
    harness.connect("c", version, will=will("w", qos=2), expect=code).expect_closed()
    harness.connect("c", version, will=will("w", qos=1))
    assert [call.rule for call in recorder.calls("on_denied")] == ["recorder"]


@pytest.mark.parametrize(("version", "codes"), [(4, (3, 3)), (5, (0x9B, 0x9A))])
def test_a_will_beyond_what_is_offered(
    broker_harness: Make, version: int, codes: tuple[int, int]
) -> None:
    # [MQTT-3.2.2-12, 3.2.2-13]
    harness = broker_harness(config={"broker": {"max_qos": 1, "retain_available": False}})
    harness.connect("c", version, will=will("w", qos=2), expect=codes[0]).expect_closed()
    harness.connect("c", version, will=will("w", retain=True), expect=codes[1]).expect_closed()
    harness.connect("c", version, will=will("w", qos=1))


def test_a_will_for_no_topic(harness: Harness) -> None:
    for topic, code in (("a/#", 0x90), ("+", 0x90), ("a/" * 201 + "b", 0x90)):
        harness.connect("c", will=will(topic), expect=code).expect_closed()
    body = connect_body(5, 0x06, rest=b"\0\0\0\0\0")
    client = harness.open()
    client.raw(body)
    assert client.expect(Connack).code == ReasonCode.PROTOCOL_ERROR


def test_a_will_that_is_not_utf8(broker_harness: Make) -> None:
    harness = broker_harness(config={"broker": {"check_payload_format": True}})
    harness.connect("c", will=will("w", b"\xff", payload_format_indicator=1), expect=0x99)
    harness.connect("c", will=will("w", b"\xff", payload_format_indicator=0))
    harness.connect("d", will=will("w", "ü".encode(), payload_format_indicator=1))


# --- what comes behind CONNECT ------------------------------------------------------------------------------------------


# --- certificates -------------------------------------------------------------------------------------------------------


CERTIFICATE = Certificate("bob", "CN=bob", ("bob.example", "b"), "ab12")


@pytest.mark.parametrize(
    ("field", "name"),
    [("common_name", "bob"), ("san", "bob.example"), ("fingerprint", "ab12")],
)
def test_the_certificate_is_the_user(harness: Harness, field: str, name: str) -> None:
    scope = Scope(identity=field)
    peer = Peer("192.0.2.9", 1, "tls", CERTIFICATE)
    harness.connect("c", username="mallory", scope=scope, peer=peer)
    assert harness.broker.sessions["c"].client.username == name


@pytest.mark.parametrize("certificate", [None, Certificate()])
@pytest.mark.parametrize("field", ["common_name", "san", "fingerprint"])
def test_no_certificate_no_user(
    harness: Harness, certificate: Certificate | None, field: str
) -> None:
    peer = Peer("192.0.2.9", 1, "tls", certificate)
    client = harness.connect(
        "c", username="bob", scope=Scope(identity=field), peer=peer, expect=0x87
    )
    client.expect_closed()


# --- one write a turn ---------------------------------------------------------------------------------------------------
