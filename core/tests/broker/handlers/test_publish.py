"""Test PUBLISH from a client: how it is acknowledged, forwarded and refused."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.events import Action
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]
VERSIONS = (3, 4, 5)
NO_MATCH = 0x10


def text(data: bytes) -> bytes:
    """Encode a string or binary field. The data may be invalid."""
    return len(data).to_bytes(2, "big") + data


def packet(header: int, body: bytes) -> bytes:
    """Encode a packet with a body of less than 128 bytes."""
    assert len(body) < 128
    return bytes((header, len(body))) + body


# --- from everybody to everybody ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_receives_its_own(harness: Harness, version: int, qos: int) -> None:
    """Without No Local, a client receives its own messages."""
    client = harness.connect("c", version)
    client.subscribe("#", 2)
    for number in range(3):
        client.publish("x", b"%d" % number, qos, expect=0)
        client.expect_message("x", b"%d" % number, qos)
    client.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("to", [4, 5])
def test_order_per_topic(harness: Harness, qos: int, to: int) -> None:
    """[MQTT-4.6.0-5, 4.6.0-6] [MQTT311-4.6.0-5, 4.6.0-6] Messages on one topic stay in order, even if 300 of them (more
    than a window) arrive in one segment.
    """
    subscriber = harness.connect("s", to)
    subscriber.subscribe("t/+", 2)
    publisher = harness.connect("p", 5)
    sent = [(f"t/{n % 3}", b"%d" % n) for n in range(300)]
    publisher.send(
        *(Publish(topic, data, qos, packet_id=n + 1 if qos else 0) for n, (topic, data) in enumerate(sent))
    )  # fmt: skip
    assert [(m.topic, m.payload) for m in subscriber.messages] == sent
    assert {m.qos for m in subscriber.messages} == {qos}
    kind = Puback if qos == 1 else Pubrec
    answers = [a.packet_id for a in publisher.received if isinstance(a, kind)]
    assert answers == (list(range(1, 301)) if qos else [])


def test_dup_of_the_publisher_is_its_own(harness: Harness) -> None:
    """[MQTT-3.3.1-3] [MQTT311-3.3.1-3] The publisher's DUP flag is not forwarded."""
    for version in VERSIONS:
        subscriber = harness.connect("s", 5)
        subscriber.subscribe("t", 2)
        publisher = harness.connect("p", version)
        for qos in (1, 2):
            for _ in range(2):
                publisher.publish("t", b"", qos, dup=True, expect=0)
                subscriber.expect_message("t", qos=qos, dup=False)
        subscriber.expect_nothing()


def test_no_matching_subscriber(harness: Harness) -> None:
    """[MQTT-3.4.2-1, 3.5.2-1], edge case 47: if no subscription matches, an MQTT 5 publisher receives code 0x10."""
    five = harness.connect("five", 5)
    four = harness.connect("four", 4)
    for _ in range(3):
        five.publish("t", b"", 1, expect=NO_MATCH)
        five.publish("t", b"", 2, expect=NO_MATCH)
        four.publish("t", b"", 1, expect=0)
        four.publish("t", b"", 2, expect=0)
    assert four.raw_received.count(bytes((NO_MATCH,))) == 0


def test_a_durable_session_gets_what_came_while_it_was_away(harness: Harness) -> None:
    """[MQTT-4.5.0-1, 3.1.2-23] [MQTT311-4.5.0-1] A durable session receives the QoS 1 and 2
    messages that were published while it was offline. QoS 0 messages are not queued.
    """
    publisher = harness.connect("p", 5)
    for version in VERSIONS:
        client = harness.connect(f"c{version}", version, clean_start=False, **_kept(version))
        client.subscribe("t", 2)
        client.drop()
        for qos in (0, 1, 2):
            publisher.publish("t", b"%d" % qos, qos, expect=0 if qos else None)
        client.reconnect()
        assert client.session_present == (version != 3)
        assert [(m.payload, m.qos, m.dup) for m in client.messages] == [
            (b"1", 1, False),
            (b"2", 2, False),
        ]
        client.unsubscribe("t")
        client.drop()
    assert harness.metrics.dropped == {("offline_qos0", "out"): 3}


def _kept(version: int) -> dict[str, Any]:
    return {"session_expiry_interval": 1000} if version == 5 else {}


def test_dollar_topics_are_not_matched_by_wildcards(harness: Harness) -> None:
    """[MQTT-4.7.2-1] [MQTT311-4.7.2-1], edge case 34: a leading wildcard does not match topics that
    start with $.
    """
    wild = harness.connect("wild", 5)
    wild.subscribe(["#", "+/x", "+/+/#"])
    exact = harness.connect("exact", 4)
    exact.subscribe(["$own/#", "$own/x"])
    publisher = harness.connect("p")
    for _ in range(2):
        publisher.publish("$own/x")
        exact.expect_message("$own/x")
    wild.expect_nothing()


@pytest.mark.parametrize(
    ("topic_filter", "topic", "fits"),
    [
        ("sport/#", "sport", True), ("sport/#", "sport/a/b", True), ("sport/+", "sport", False),
        ("sport/+", "sport/", True), ("+/+", "/finance", True), ("/+", "/finance", True),
        ("+", "/finance", False), ("#", "/", True), ("a//b", "a//b", True), ("a/b", "a//b", False),
        ("Sport", "sport", False), ("\u00e5", "a\u030a", False), ("\ufeffa", "a", False),
        ("\ufeffa", "\ufeffa", True), ("a b/c", "a b/c", True),
    ],
)  # fmt: skip
def test_matching_is_exact(harness: Harness, topic_filter: str, topic: str, fits: bool) -> None:
    """[MQTT-3.3.2-3, 4.7.3-4, 1.5.4-3] [MQTT311-3.3.2-3, 4.7.3-4] Topics are matched exactly, without case folding or
    normalization. A BOM is treated as data.
    """
    subscriber = harness.connect("s")
    subscriber.subscribe(topic_filter)
    publisher = harness.connect("p", 4)
    publisher.publish(topic)
    publisher.publish(topic)
    assert [m.topic for m in subscriber.messages] == [topic] * 2 * fits


def test_the_longest_topic(harness: Harness) -> None:
    """[MQTT-4.7.3-3] [MQTT311-4.7.3-3] A topic of 65,535 bytes is accepted."""
    topic = "t" * 65535
    for version in VERSIONS:
        client = harness.connect("c", version)
        assert client.subscribe(topic, 1).codes == (1,)
        client.publish(topic, b"x", 1, expect=0)
        client.expect_message(topic, b"x", 1)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(packet(0x36, text(b"t") + b"\0\x01\0"), 0x81, id="QoS 3 [MQTT-3.3.1-4]"),
        pytest.param(packet(0x3E, text(b"t") + b"\0\x01\0"), 0x81, id="QoS 3, DUP"),
        pytest.param(packet(0x32, text(b"t") + b"\0\0\0"), 0x82, id="id 0, QoS 1 [MQTT-2.2.1-3]"),
        pytest.param(packet(0x34, text(b"t") + b"\0\0\0"), 0x82, id="id 0, QoS 2"),
        pytest.param(packet(0x30, text(b"") + b"\0"), 0x82, id="empty topic [MQTT-4.7.3-1]"),
        pytest.param(packet(0x30, text(b"a/+") + b"\0"), 0x90, id="+ [MQTT-3.3.2-2, 4.7.0-1]"),
        pytest.param(packet(0x30, text(b"#") + b"\0"), 0x90, id="# [MQTT-3.3.2-2]"),
        pytest.param(packet(0x30, text(b"a\0") + b"\0"), 0x81, id="U+0000 [MQTT-4.7.3-2]"),
        pytest.param(packet(0x30, text(b"\xed\xa0\x80") + b"\0"), 0x81, id="surrogate [1.5.4-1]"),
        pytest.param(packet(0x30, text(b"\xc0\x80") + b"\0"), 0x81, id="over-long [MQTT-3.3.2-1]"),
        pytest.param(packet(0x30, b""), 0x81, id="length 0"),
        pytest.param(packet(0x30, b"\0"), 0x81, id="length 1"),
        pytest.param(packet(0x30, b"\0\x01"), 0x81, id="length 2, no topic"),
        pytest.param(packet(0x30, b"\0\x02t"), 0x81, id="length 3, half a topic"),
        pytest.param(packet(0x32, text(b"t") + b"\0"), 0x81, id="half an id"),
        pytest.param(packet(0x32, text(b"t")), 0x81, id="no id"),
        pytest.param(packet(0x30, text(b"a/" * 40)[:-1]), 0x81, id="topic beyond the packet"),
        pytest.param(b"\x30\xff\xff\xff\xff\x01", 0x81, id="length of five bytes [1.5.5-1]"),
        pytest.param(b"\x30\x83\x00" + text(b"t"), 0x81, id="over-long length [MQTT-1.5.5-1]"),
        pytest.param(b"\x00\x00", 0x81, id="reserved type 0"),
        pytest.param(b"\x20\x02\x00\x00", 0x82, id="CONNACK from a client"),
        pytest.param(b"\x90\x03\x00\x01\x00", 0x82, id="SUBACK from a client"),
        pytest.param(b"\xb0\x02\x00\x01", 0x82, id="UNSUBACK from a client"),
        pytest.param(b"\xd0\x00", 0x82, id="PINGRESP from a client"),
        pytest.param(b"\xc1\x00", 0x81, id="PINGREQ flags [MQTT-2.1.3-1]"),
        pytest.param(b"\xc0\x01\x00", 0x81, id="PINGREQ with a body"),
        pytest.param(b"\x41\x02\x00\x01", 0x81, id="PUBACK flags"),
        pytest.param(b"\x51\x02\x00\x01", 0x81, id="PUBREC flags"),
        pytest.param(b"\x60\x02\x00\x01", 0x81, id="PUBREL flags [MQTT-3.6.1-1]"),
        pytest.param(b"\x71\x02\x00\x01", 0x81, id="PUBCOMP flags"),
        pytest.param(b"\x40\x02\x00\x00", 0x82, id="PUBACK of id 0"),
        pytest.param(b"\x62\x02\x00\x00", 0x82, id="PUBREL of id 0"),
        pytest.param(b"\x40\x01\x00", 0x81, id="PUBACK cut short"),
        pytest.param(b"\x40\x00", 0x81, id="PUBACK of nothing"),
    ],
)
def test_malformed_and_wrong(harness: Harness, version: int, data: bytes, code: int) -> None:
    """[MQTT-4.13.1-1] [MQTT311-4.8.0-1, 3.3.1-4, 3.3.2-1, 3.3.2-2, 4.7.1-1, 4.7.3-1, 4.7.3-2, 3.6.1-1] A malformed or
    invalid PUBLISH ends the connection. In MQTT 5, the client receives a reason code. Other clients are not affected.
    """
    subscriber = harness.connect("s")
    subscriber.subscribe("#")
    client = harness.connect("c", version)
    client.publish("t", b"before")
    client.raw(data)
    client.expect_disconnect(code)
    subscriber.expect_message("t", b"before")
    subscriber.expect_nothing()
    assert harness.metrics.protocol_errors == 1


def test_dup_with_qos_0(harness: Harness) -> None:
    """[MQTT-3.3.1-2] [MQTT311-3.3.1-2] Some MQTT 3.1 devices set DUP at QoS 0. Subscribers receive a copy without it."""
    subscriber = harness.connect("s", 4)
    subscriber.subscribe("t")
    for version in (4, 5):
        client = harness.connect("c", version)
        client.raw(packet(0x38, text(b"t") + b"\0"))
        client.expect_disconnect(0x81)
    client = harness.connect("c", 3)
    for _ in range(3):
        client.raw(packet(0x38, text(b"t") + b"x"))
        client.raw(packet(0x30, text(b"t") + b"x"))
    assert [m.dup for m in subscriber.messages] == [False] * 6


def test_too_many_levels(broker_harness: Make) -> None:
    harness = broker_harness(config={"broker": {"max_topic_levels": 3}})
    client = harness.connect("c")
    client.publish("a/b/c/d", b"", 1, expect=NO_MATCH)
    client.publish("a/b/c/d/e")
    client.expect_disconnect(ReasonCode.TOPIC_NAME_INVALID)


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_that_is_not_offered(broker_harness: Make, version: int) -> None:
    """[MQTT-3.2.2-11], edge case 23: the broker disconnects a client whose PUBLISH exceeds Maximum QoS."""
    harness = broker_harness(config={"broker": {"max_qos": 1}})
    client = harness.connect("c", version)
    assert client.subscribe("t", 2).codes == (1,)  # [MQTT-3.2.2-10]
    client.publish("t", b"", 1, expect=0)
    client.expect_message("t", qos=1)
    client.publish("t", b"", 2)
    client.expect_disconnect(ReasonCode.QOS_NOT_SUPPORTED)


@pytest.mark.parametrize("version", VERSIONS)
def test_retain_that_is_not_offered(broker_harness: Make, version: int) -> None:
    """[MQTT-3.2.2-14] If retained messages are not available, the broker disconnects a client that sends one."""
    harness = broker_harness(config={"broker": {"retain_available": False}})
    client = harness.connect("c", version)
    client.publish("t", b"x", 1)
    client.publish("t", b"x", 1, retain=True)
    client.expect_disconnect(ReasonCode.RETAIN_NOT_SUPPORTED)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_broker_owns_sys(harness: Harness, version: int) -> None:
    client = harness.connect("c", version)
    client.subscribe("$SYS/#")
    for _ in range(2):
        client.publish("$SYS/x", b"lie", 1, expect=0x87 if version == 5 else 0)
        client.publish("$SYS/x", b"lie", 0)
    client.expect_nothing()
    assert harness.metrics.dropped == {("denied", "in"): 4}


# --- denied ---------------------------------------------------------------------------------------------------------


def denier(verdict: Deny) -> HookRecorder:
    recorder = HookRecorder("authorize")
    recorder.answer(
        "authorize", lambda action, topic: verdict if (action, topic) == (Action.PUBLISH, "no") else Allow()
    )  # fmt: skip
    return recorder


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", VERSIONS)
def test_denied(broker_harness: Make, version: int, qos: int) -> None:
    """Edge case 46 [MQTT311-3.3.5-2]: if a PUBLISH is denied, an MQTT 5 client gets the reason code, and an MQTT 3
    client gets an ordinary acknowledgement. Repeated attempts are denied as well.
    """
    harness = broker_harness(plugins=[denier(Deny(reason="not you"))])
    subscriber = harness.connect("s")
    subscriber.subscribe("#", 2)
    client = harness.connect("c", version)
    for number in range(4):
        client.publish("no", b"x", qos, packet_id=number + 1 if qos else 0)
        if qos and version == 5:
            answer = client.next()
            assert isinstance(answer, Puback if qos == 1 else Pubrec)
            assert (answer.packet_id, answer.code) == (number + 1, 0x87)
            assert answer.properties.reason_string == "not you"
        elif qos:
            answer = client.next()
            assert answer == (Puback(number + 1) if qos == 1 else Pubrec(number + 1))
            if qos == 2:
                assert client.next() == Pubcomp(number + 1)
        client.expect_nothing()
    subscriber.expect_nothing()
    assert harness.metrics.dropped == {("denied", "in"): 4}
    client.publish("yes")
    subscriber.expect_message("yes")


@pytest.mark.parametrize("version", VERSIONS)
def test_denied_and_disconnected(broker_harness: Make, version: int) -> None:
    """Edge case 46: a denial can also end the connection, if the plugin requests it or if the setting for MQTT 3
    clients does.
    """
    quiet = broker_harness(
        plugins=[denier(Deny())], config={"broker": {"mqtt3_denied_publish": "disconnect"}}
    )
    client = quiet.connect("c", version)
    client.publish("no", b"x", 1, expect=0x87 if version == 5 else None)
    if version < 5:
        client.expect_disconnect()
    strict = broker_harness(plugins=[denier(Deny(disconnect=True))])
    client = strict.connect("c", version)
    client.publish("no")
    client.expect_disconnect(0x87)


def test_default_deny(broker_harness: Make) -> None:
    """If no plugin decides and the default is to deny, no code path lets a message through."""
    harness = broker_harness(config={"authz": {"default": "deny"}})
    client = harness.connect("c")
    assert client.subscribe("t", 1).codes == (0x87,)
    for _ in range(3):
        client.publish("t", b"x", 1, expect=0x87)
        client.publish("t", b"x")
    assert harness.metrics.dropped == {("denied", "in"): 6}


def test_a_right_that_is_asked_about_every_time(broker_harness: Make) -> None:
    """With `cache_for=0`, or with a plugin that reads messages, each message is authorized on every code path."""
    for recorder, verdict in (
        (HookRecorder("authorize"), Allow(cache_for=0)),
        (HookRecorder("authorize", cached=False), Allow()),
        (HookRecorder("authorize"), Allow(cache_for=5)),
    ):
        recorder.answer("authorize", verdict)
        harness = broker_harness(plugins=[recorder])
        subscriber = harness.connect("s")
        subscriber.subscribe("t")
        recorder.clear()
        client = harness.connect("c")
        for _ in range(3):
            client.publish("t", b"x", 1)
            harness.advance(5)
        assert len(recorder.calls("authorize")) == 3
        recorder.answer("authorize", Deny())
        client.publish("t", b"x", 1)
        assert len(subscriber.messages) == 3


def test_a_lower_qos_is_all_that_is_allowed(broker_harness: Make) -> None:
    recorder = HookRecorder("authorize")
    recorder.answer("authorize", Allow(max_qos=1))
    harness = broker_harness(plugins=[recorder])
    client = harness.connect("c")
    assert client.subscribe("t", 2).codes == (1,)
    for _ in range(2):
        client.publish("t", b"1", 1, expect=0)
        client.publish("t", b"2", 2, expect=0x87)
    assert [m.payload for m in client.messages] == [b"1", b"1"]


def test_reasons_in_words_are_for_who_wants_them(broker_harness: Make) -> None:
    """[MQTT-3.1.2-29, 3.4.2-2, 3.5.2-2], edge cases 20 and 48: the reason string is omitted if the
    client does not want it or if it does not fit.
    """
    harness = broker_harness(plugins=[denier(Deny(reason="x" * 50))])
    cases: list[dict[str, Any]] = [{"request_problem_information": 0}, {"maximum_packet_size": 40}]
    for options in cases:
        client = harness.connect("c", **options)
        for qos, kind in ((1, Puback), (2, Pubrec)):
            client.publish("no", b"", qos, packet_id=9)
            assert client.next() == kind(9, 0x87)
    client = harness.connect("c", maximum_packet_size=59)
    client.publish("no", b"", 1, packet_id=9)
    assert client.expect(Puback).properties.reason_string == "x" * 50


# --- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        pytest.param(b"\x0b\x01", 0x82, id="subscription identifier [MQTT-3.3.4-6]"),
        pytest.param(b"\x08" + text(b"a/#"), 0x82, id="response topic # [MQTT-3.3.2-14]"),
        pytest.param(b"\x08" + text(b"+"), 0x82, id="response topic +"),
        pytest.param(b"\x08" + text(b"\xff"), 0x81, id="response topic UTF-8 [MQTT-3.3.2-13]"),
        pytest.param(b"\x03" + text(b"\xc3"), 0x81, id="content type UTF-8 [MQTT-3.3.2-19]"),
        pytest.param(
            b"\x26" + text(b"k") + text(b"\xff"), 0x81, id="user property UTF-8 [1.5.7-1]"
        ),
        pytest.param(b"\x01\x02", 0x82, id="payload format 2"),
        pytest.param(b"\x01\x00\x01\x00", 0x82, id="payload format twice"),
        pytest.param(b"\x11\x00\x00\x00\x01", 0x81, id="session expiry"),
        pytest.param(b"\x7f\x00", 0x81, id="unknown property"),
        pytest.param(b"\x02\x00\x00", 0x81, id="cut short"),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_wrong_properties(harness: Harness, properties: bytes, code: int, qos: int) -> None:
    """Invalid properties are refused (edge cases 29, 35, 36 and 38), whether or not the fast path already knows the
    topic.
    """
    middle = b"\0\x05" if qos else b""
    for learned in range(3):
        client = harness.connect("c")
        for _ in range(learned):
            client.publish("t", b"", qos)
        body = text(b"t") + middle + bytes((len(properties),)) + properties
        client.raw(packet(0x30 | qos << 1, body))
        client.expect_disconnect(code)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payload_format_is_checked_where_asked_for(broker_harness: Make, qos: int) -> None:
    harness = broker_harness(config={"broker": {"check_payload_format": True}})
    client = harness.connect("c")
    client.subscribe("t", 2)
    client.publish("t", b"\xff", qos, payload_format_indicator=1, expect=0x99)
    client.expect_nothing()
    client.publish("t", b"\xff", qos, payload_format_indicator=0)
    client.publish("t", "ü".encode(), qos, payload_format_indicator=1)
    assert [m.payload for m in client.messages] == [b"\xff", "ü".encode()]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_refused_for_its_format_is_counted_and_logged(
    broker_harness: Make, qos: int
) -> None:
    harness = broker_harness(config={"broker": {"check_payload_format": True}})
    client = harness.connect("c")
    client.publish("t", b"\xff", qos, payload_format_indicator=1, expect=0x99)
    assert harness.metrics.dropped == {("denied", "in"): 1}
    [denied] = harness.logged("authz.denied")
    assert (denied["topic"], denied["code"], denied["rule"]) == ("t", "0x99", "broker")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_reload_that_checks_payload_formats_holds_for_open_connections(
    broker_harness: Make, qos: int
) -> None:
    """If a reload enables checks of payload formats, they also apply to open connections. The fast path forgets the
    property sections that it accepted before.
    """
    harness = broker_harness()
    client = harness.connect("c")
    client.subscribe("t", 2)
    for _ in range(3):
        client.publish("t", b"\xff", qos, payload_format_indicator=1)
    harness.reload(config={"broker": {"check_payload_format": True}})
    for _ in range(3):
        client.publish("t", b"good", qos, payload_format_indicator=0)
    client.publish("t", b"\xfe", qos, payload_format_indicator=1)
    assert harness.metrics.dropped == {("denied", "in"): 1}
    assert b"\xfe" not in [message.payload for message in client.messages]


# --- the end of a segment -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("learned", [0, 1, 2])
@pytest.mark.parametrize("end", ["disconnect", "malformed", "too large", "cut"])
def test_a_message_before_invalid_data_is_delivered(
    broker_harness: Make, version: int, qos: int, learned: int, end: str
) -> None:
    """A message that precedes invalid data in the same segment is delivered and counted."""
    harness = broker_harness(config={"broker": {"max_packet_size": 1024}})
    subscribers = [harness.connect(f"s{v}", v) for v in VERSIONS]
    for subscriber in subscribers:
        subscriber.subscribe("t", 2)
    client = harness.connect("c", version)
    for _ in range(learned):
        client.publish("t", b"before", qos)
    before = harness.metrics.messages_received, harness.metrics.messages_delivered
    last = {
        "disconnect": encode(Disconnect(), version),
        "malformed": b"\x36\x00",
        "too large": b"\x30\xff\x7f",
        "cut": b"\x30\x05",
    }[end]
    client.raw(encode(Publish("t", b"last", qos, packet_id=9 if qos else 0), version) + last)
    for subscriber in subscribers:
        assert [m.payload for m in subscriber.messages] == [b"before"] * learned + [b"last"]
    now = harness.metrics.messages_received, harness.metrics.messages_delivered
    assert (now[0] - before[0], now[1] - before[1]) == (1, 3)


def test_acknowledged_before_the_disconnect(harness: Harness) -> None:
    """[MQTT-3.3.4-1] An accepted message is acknowledged even if the client violates the protocol
    afterwards.
    """
    client = harness.connect("c", 4)
    for _ in range(3):
        client.publish("t", b"", 1, expect=0)
    client.raw(encode(Publish("t", b"", 1, packet_id=77), 4) + b"\xc1\x00")
    assert client.expect(Puback).packet_id == 77
    client.expect_disconnect()
