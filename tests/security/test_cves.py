"""Test vulnerabilities of other brokers. The name or docstring of each test identifies the
vulnerability.
"""

import gc
import itertools
from collections.abc import Callable
from typing import Any

import mqttbytes as m
import pytest
from attacks import HOSTILE_NAMES, at_rest
from byteclient import ByteClient
from bytememory import LEVELS, in_memory, join
from hookmq.broker.connection_state import Phase
from hookmq.model.client import Scope
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.mqtt.packets import Publish
from hookmq.mqtt.topics import compile_filter, contains, matches
from hookmq.plugin import Accept, Allow, Challenge, Deny, Plugin, hookimpl
from hookmq.routing.subscription_tree import SubscriptionTree
from hookmq_testing import DurableStore, Harness, HookRecorder, will

ELSEWHERE = {
    "CVE-2017-7650, CVE-2026-85724, CVE-2026-44838, CVE-2026-67407": "wildcards in names put into ACL patterns: the core "
    "substitutes nothing; the ACL plugin's own tests",
    "CVE-2018-12550, CVE-2018-12551, CVE-2017-7652": "files of passwords and ACLs: the plugins' own tests; that a plugin "
    "which cannot load or reload opens nothing is in test_fail_closed.py",
    "emqx 9217": "JWT without exp, alg none, HS/RS, kid: the JWT plugin's own tests",
    "CVE-2026-58214, CVE-2026-33217": "subjects of a cluster's engine: the cluster plugin's own tests",
    "CVE-2021-33175, CVE-2021-33176": "memory under untrusted input: test_resources.py, with a real process",
    "CVE-2026-25627, CVE-2026-27889, CVE-2026-27571, CVE-2026-33219": "WebSocket framing: test_listeners.py",
    "CVE-2017-7653, CVE-2026-67418": "poison for other clients: test_poison.py",
    "CVE-2024-8376": "sequences of packets: test_sequences.py",
    "CVE-2026-67411": "PROXY headers: test_listeners.py",
}
"""Vulnerabilities that are tested elsewhere, each with its subject and the place of the tests."""
TOLERANT = {"broker": {"text": "tolerant"}}
"""Accepts control characters and non-characters, which are refused by default."""


def refused_early(client: ByteClient) -> None:
    """Assert that the connection ended and that no received data is kept."""
    assert client.wire.closed
    assert client.connection.partial is None
    assert client.connection.held is None


# --- before CONNECT ---------------------------------------------------------------------------------------------------


def test_cve_2017_7651_a_big_length_reserves_nothing(harness: Harness) -> None:
    for size in (65536, 1 << 20, 268_435_455):
        client = in_memory(harness)
        client.send(b"\x10" + m.varint(size))
        refused_early(client)
    client = in_memory(harness)
    client.send(b"\x10" + m.varint(60000))
    assert client.connection.partial is not None
    assert len(client.connection.partial) == 4


def test_cve_2017_7651_a_big_length_after_connect(harness: Harness) -> None:
    client = join(harness)
    client.send(b"\x30" + m.varint(268_435_455))
    client.refused(0x95)
    refused_early(client)


# A CONNECT of MQTT 3.1 may have QoS bits, and the version comes after them.
CONNECTS = (0x10, 0x12, 0x14, 0x16)


@pytest.mark.parametrize("first", [byte for byte in range(256) if byte not in CONNECTS])
def test_cve_2023_0809_the_first_byte_of_another_packet_ends_it(
    harness: Harness, first: int
) -> None:
    client = in_memory(harness)
    client.send(bytes((first,)))
    client.ends()
    refused_early(client)


def test_cve_2026_58210_half_a_connect_is_kept_in_bounds_and_not_for_ever(harness: Harness) -> None:
    before = at_rest(harness)
    scope = Scope(connect_timeout=10.0, connect_bytes=1000)
    whole = m.connect("x" * 900)
    clients = [in_memory(harness, scope=scope) for _ in range(50)]
    for client in clients:
        for at in range(0, 500, 100):
            client.send(whole[at : at + 100])
        assert client.connection.partial is not None
        assert len(client.connection.partial) == 500
    harness.advance(9)
    clients[0].send(whole[500:600])  # more bytes do not extend the time
    assert not clients[0].wire.closed
    harness.advance(2)
    for client in clients:
        client.ends()
    assert at_rest(harness) == before
    big = in_memory(harness, scope=scope)
    big.send(m.connect("x" * 2000)[:10])
    refused_early(big)


def test_cve_2026_58210_what_follows_connect_while_a_plugin_decides(harness: Harness) -> None:
    """Packets sent between CONNECT and CONNACK are held within the same memory limit that applies before CONNECT."""
    recorder = HookRecorder("on_connect")
    harness.reload(plugins=[recorder])
    never = harness.clock.event()
    recorder.answer("on_connect", never)
    client = in_memory(harness)
    client.send(m.connect("c") + m.PINGREQ * 100_000)
    held = client.connection.held
    assert held is not None
    assert 0 < len(held) <= client.connection.scope.connect_bytes // 64 + 1
    assert not client.wire.reading
    assert client.connection.rest is not None
    assert len(client.connection.rest) + 2 * len(held) == 200_000
    never.set(None)
    client.accepted()
    assert client.take() == m.PINGRESP * 100_000  # no PINGREQ was lost
    assert client.wire.reading


def test_cve_2020_13849_slow_connect_and_long_keep_alive(broker_harness: Any) -> None:
    """A client cannot occupy a connection by sending CONNECT byte by byte, or with a keep alive of
    18 hours (SlowITe).
    """
    harness = broker_harness(config={"broker": {"max_connections": 3, "max_keep_alive": 60}})
    slow = [in_memory(harness) for _ in range(3)]
    packet = m.connect("slow")
    for at in range(10):
        for client in slow:
            client.send(packet[at : at + 1])
        harness.advance(0.5)
    in_memory(harness).ends()  # the connection limit is reached
    harness.advance(6)
    for client in slow:
        client.ends()
    client = join(harness, keep_alive=65535)
    harness.advance(91)
    client.refused(0x8D)


@LEVELS
def test_cve_2025_56352_whoever_is_refused_is_closed(harness: Harness, level: int) -> None:
    """A refused client is disconnected. tinyMQTT answered with an error but kept the socket open."""
    reasons: list[bytes] = [
        m.connect("", level=3),
        m.connect("c", level=6),
        m.connect("c", level=level, will=("a/+", b"")),
        m.connect("c", level=level, flags=0xFF),
        m.connect("c", level=level, name="HTTP"),
        m.connect("c", level=level, rest=b"more"),
        m.connect(b"\xff\xfe", level=level),
        m.connect("c\0", level=level),
        b"\x10\x00",
        b"\x10\x80\x80\x80\x80\x01",
    ]
    before = at_rest(harness)
    for reason in reasons:
        client = in_memory(harness, level)
        client.send(reason)
        assert client.wire.closed, reason.hex(" ")
    assert at_rest(harness) == before
    assert harness.metrics.connections_refused == len(reasons)


# --- packets ----------------------------------------------------------------------------------------------------------

OVERLONG = b"\x80\x80\x80\x80\x01"


def test_cve_2026_21888_five_byte_integers_in_every_place(harness: Harness) -> None:
    """Variable byte integers of five bytes are refused. NanoMQ accepted a fifth byte."""
    head = m.text("MQTT") + b"\x05\x02\0\0"
    for data in (
        b"\x10" + OVERLONG,
        m.packet(0x10, head, OVERLONG, m.text("c")),
        m.packet(
            0x10, m.text("MQTT"), b"\x05\x06\0\0\0", m.text("c"), OVERLONG, m.text("w"), b"\0\0"
        ),
    ):
        client = in_memory(harness)
        client.send(data)
        assert client.wire.closed, data.hex(" ")
    topic = m.text("t")
    for data in (
        b"\x30" + OVERLONG,
        m.packet(0x30, topic, OVERLONG),
        m.packet(0x82, b"\0\1", OVERLONG, topic, b"\0"),
        m.packet(0x82, b"\0\1", b"\x06\x0b" + OVERLONG, topic, b"\0"),
        m.packet(0xA2, b"\0\1", OVERLONG, topic),
        m.packet(0x40, b"\0\1\0", OVERLONG),
        m.packet(0x62, b"\0\1\0", OVERLONG),
        m.packet(0xE0, b"\0", OVERLONG),
        b"\xe0\x80\x00",
    ):
        client = join(harness)
        client.send(data)
        client.refused(0x81)


def test_cve_2021_41039_user_properties_are_counted(harness: Harness) -> None:
    """The number of user properties is limited. mosquitto compared each user property with all
    others.
    """
    few = b"".join(m.user(str(n), "v") for n in range(64))
    many = few + m.user("k", "v")
    subscriber = join(harness, "s")
    subscriber.subscribe(("t", 0))
    sender = join(harness, "p", properties=few)
    sender.publish("t", properties=few)
    assert len(subscriber.take_publish()[3]) == 64
    sender.publish("t", properties=many)
    sender.refused(0x97)
    client = in_memory(harness)
    client.connect("q", properties=many)
    client.not_accepted(0x97)
    client = in_memory(harness)
    client.connect("q", properties=few, will=("t", b""), will_properties=m.user("k", "v"))
    client.not_accepted(0x97)
    subscriber.expect()


def test_cve_2023_3592_malformed_wills_leave_nothing(harness: Harness) -> None:
    """A malformed will uses no memory. mosquitto leaked a will whose properties it refused."""
    wrong = [
        m.connect("c", will=("t", b"x"), will_properties=properties)
        for properties in (m.alias(1), m.user("a", "b") + b"\x26", m.will_delay(1) * 2, b"\x7f", b"\x08\0\1+")
    ]  # fmt: skip

    def attack() -> int:
        for data in wrong * 40:
            client = in_memory(harness)
            client.send(data)
            assert client.wire.closed
        harness.clock.logged.clear()
        gc.collect()
        return len(gc.get_objects())

    attack()
    first = attack()
    assert attack() - first < 50
    assert at_rest(harness)["sessions"] == 0


def test_cve_2019_11779_and_2026_95844_levels_beyond_count(harness: Harness) -> None:
    """The number of topic levels is limited. A topic with 65,535 levels caused deep recursion in
    mosquitto and Moquette.
    """
    deep = "/" * 65534
    client = join(harness)
    client.send(m.subscribe(1, (deep + "#", 0), ("+/" * 300 + "+", 0), ("ok", 0)))
    assert m.body(client.take_one())[-3:] == b"\x8f\x8f\x00"
    client.send(m.unsubscribe(2, deep + "#"))
    assert m.body(client.take_one())[-1] == 0x11
    client.publish(deep, b"", 1, 3)
    client.refused(0x90)
    other = in_memory(harness)
    other.connect("w", will=(deep[:60000], b""))
    other.not_accepted(0x90)


def test_cve_2019_11779_nothing_about_topics_recurses() -> None:
    deep = "/" * 65534
    router: SubscriptionTree[str, int, Any] = SubscriptionTree(
        lambda topic, found: None, max_levels=65536
    )
    for filter in (deep + "#", "+" + "/+" * 32766, "#"):
        router.subscribe(filter, "s", 1)
    assert len(router.match(deep + "x")) == 2
    assert matches(deep + "#", deep)
    assert contains("#", deep + "#")
    assert compile_filter(deep + "#")(deep)
    for filter in (deep + "#", "+" + "/+" * 32766, "#"):
        assert router.unsubscribe(filter, "s") == 1
    assert len(router) == 0


MALFORMED = [
    (m.publish(""), (0x82,)),
    (m.publish("", properties=m.alias(0)), (0x94,)),
    (m.publish("t", properties=m.alias(0)), (0x94,)),
    (m.publish("", properties=m.alias(7)), (0x82,)),
    (m.publish("t", properties=m.alias(65535)), (0x94,)),
    (m.publish("t", properties=m.alias(1) * 2), (0x82,)),
    (m.publish("a/+"), (0x90,)),
    (m.publish("#"), (0x90,)),
    (m.publish("a\0b"), (0x81,)),
    (m.publish(b"\xed\xa0\x80"), (0x81,)),
    (m.publish(b"\xc0\x80"), (0x81,)),
    (m.publish(b"\xf4\x90\x80\x80"), (0x81,)),
    (m.publish("t", b"", 1, 0), (0x82,)),
    (m.packet(0x36, m.text("t"), b"\0\1\0"), (0x81,)),
    (m.packet(0x38, m.text("t"), b"\0"), (0x81,)),
    (m.packet(0x30), (0x81,)),
    (m.packet(0x30, b"\0\5a"), (0x81,)),
    (m.packet(0x32, m.text("t"), b"\0"), (0x81,)),
    (m.packet(0x30, m.text("t"), b"\x05\x01"), (0x81,)),
    (m.publish("t", properties=m.identifier(1)), (0x82,)),
    (m.publish("t", properties=m.response_topic("a/#")), (0x82, 0x90)),
    (m.publish("t", properties=m.payload_format(2)), (0x82,)),
    (m.publish("t", properties=m.session_expiry(1)), (0x81, 0x82)),
    (m.publish("t", properties=b"\x7f\x01"), (0x81, 0x82)),
]


@pytest.mark.parametrize(("data", "codes"), MALFORMED, ids=[d.hex()[:40] for d, _ in MALFORMED])
def test_cve_2021_34432_malformed_publish(
    harness: Harness, data: bytes, codes: tuple[int, ...]
) -> None:
    """A PUBLISH with an empty topic is refused, and so are undefined topic aliases. An empty topic
    crashed mosquitto.
    """
    witness = join(harness, "witness")
    witness.subscribe(("#", 0))
    client = join(harness)
    client.send(data)
    client.refused(*codes)
    witness.expect()


@pytest.mark.parametrize("topic", ["$", "$x", "$SYS", "$share/g/t", "$share", "$queue/t", "$SYS/x"])
def test_cve_2018_12543_topics_with_a_dollar(harness: Harness, topic: str) -> None:
    """A topic that starts with $ causes no error. In mosquitto, it triggered an assertion."""
    witness = join(harness, "witness")
    witness.subscribe(("#", 0), ("+/x", 0), ("$SYS/#", 0))
    client = join(harness)
    for qos in (0, 1, 2):
        client.publish(topic, b"x", qos, qos, retain=qos == 1)
    assert not client.wire.closed
    client.send(m.PINGREQ)
    assert client.take().endswith(m.PINGRESP)
    witness.send(m.PINGREQ)
    witness.expect(*([m.publish(topic, b"x")] * 3 if topic == "$SYS" else []), m.PINGRESP)


class Challenges(Plugin):
    """A plugin that challenges the client once."""

    @hookimpl
    def on_auth(self) -> Any:
        return Challenge(b"?")


@pytest.mark.parametrize("phase", [Phase.NEW, Phase.DECIDING, Phase.CHALLENGED, Phase.OPEN])
def test_cve_2021_28166_every_packet_in_every_phase(broker_harness: Any, phase: Phase) -> None:
    """Every packet is handled in every phase without an internal error. A CONNACK from a client
    crashed mosquitto.
    """
    bodies = (b"", b"\0\1", b"\0\1\0", b"\0\1t\0", b"\0\1\0\0\1t\0", m.connect("x")[2:])
    recorder = HookRecorder("on_connect")
    harness = broker_harness(plugins=[Challenges, recorder])
    for first, body in itertools.product(range(256), bodies):
        if first == 0x10 and phase is Phase.NEW:
            continue
        never = harness.clock.event()
        recorder.answer("on_connect", never if phase is Phase.DECIDING else None)
        client = in_memory(harness)
        if phase is Phase.CHALLENGED:
            client.connect("c", properties=m.auth_method("x"))
            assert client.take_one()[0] == 0xF0
        elif phase is not Phase.NEW:
            client.connect("c")
            client.take()
        assert client.connection.phase is phase
        client.send(m.packet(first, body))
        data = client.take()
        if (
            first >> 4 in (2, 9, 11, 13) or not first >> 4
        ):  # only servers send it, or it is not a packet
            assert client.wire.closed
        for frame in m.frames(data):
            assert frame[0] >> 4 not in (1, 8, 10, 12)
        never.set(None)
        client.close()
    assert not harness.broker.connections


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_cve_2023_28366_packet_ids_are_bounded(broker_harness: Any) -> None:
    """The number of packet ids in use is limited. mosquitto kept every QoS 2 message whose PUBREL
    never arrived.
    """
    harness = broker_harness(config={"broker": {"receive_maximum": 10}})
    client = join(harness)
    client.send(*(m.publish("t", b"x", 2, number) for number in range(1, 11)))
    # Sends the same packet ids again.
    client.send(*(m.publish("t", b"x", 2, number) for number in range(1, 11)))
    assert len(harness.broker.sessions["c"].received or ()) == 10
    client.take()
    client.send(m.publish("t", b"x", 2, 11))
    client.refused(0x93)
    old = join(harness, "old", 4)
    for _ in range(2):
        old.send(*(m.publish("t", b"x", 2, number, level=4) for number in range(1, 2000)))
    assert len(harness.broker.sessions["old"].received or ()) == 1999
    old.close()
    assert "old" not in harness.broker.sessions


EVENTS = ("delay", "expire", "resume", "clean", "take over", "leave", "reload")


@pytest.mark.parametrize("delay", [0, 5, 0xFFFFFFFF])
@pytest.mark.parametrize("expiry", [0, 3, 10, 0xFFFFFFFF])
def test_cve_2019_11778_wills_and_expiry_in_every_order(
    harness: Harness, delay: int, expiry: int
) -> None:
    """mosquitto used a will after freeing it if its delay exceeded the session expiry. Here, a will
    is published at most once, and not at all if the client reconnects in time.
    """
    witness = harness.connect("witness")
    witness.subscribe("w", 1)
    for order in itertools.permutations(EVENTS[1:], 3):
        client = harness.connect(
            "c", will=will("w", b"x", 1, delay=delay), session_expiry_interval=expiry
        )
        client.drop()
        back = None
        for event in order:
            if event == "expire":
                harness.advance(4)
            elif event == "resume":
                back = harness.connect("c", clean_start=False, session_expiry_interval=expiry)
            elif event == "clean":
                back = harness.connect("c")
            elif event == "take over":
                back = harness.connect("c", 4, clean_start=False)
            elif event == "leave" and back is not None:
                back.drop()
            elif event == "reload":
                harness.reload()
        harness.advance(20)
        assert len([one for one in witness.unread if isinstance(one, Publish)]) <= 1
        witness.unread.clear()
        harness.connect("c").disconnect()
        harness.advance(20)
        assert "c" not in harness.broker.sessions
        witness.unread.clear()
    assert harness.broker.state.queued_bytes == 0


def test_cve_2026_95845_and_2024_48077_who_neither_reads_nor_acknowledges(
    broker_harness: Any,
) -> None:
    """The queue of a client that neither reads nor acknowledges is limited in messages and bytes,
    including topics and properties. Dropped messages are counted.
    """
    config = {
        "session": {"queue_messages": 1000, "queue_bytes": 100_000, "max_inflight": 10},
        "broker": {"max_queue_bytes": 250_000},
    }
    harness = broker_harness(config=config)
    lazy = [harness.connect(f"l{n}", auto_ack=False, session_expiry_interval=9) for n in range(4)]
    for client in lazy:
        client.subscribe("t/#", 1)
    sender = harness.connect("p")
    for number in range(200):
        kind: dict[str, Any] = (
            {"user_property": (("k", "v" * 5000),)} if number % 3 == 0
            else {"correlation_data": b"c" * 5000} if number % 3 == 1 else {}
        )  # fmt: skip
        topic = "t/" + ("x" * 5000 if number % 3 == 2 else "y")
        sender.publish(topic, b"", qos=1, expect=0, **kind)
    core = harness.broker.state
    for client in lazy:
        session = harness.broker.sessions[client.client_id]
        assert len(session.inflight) == 10
        assert 50_000 < session.queued_bytes <= 100_000
    assert 200_000 < core.queued_bytes <= 250_000
    queued = sum(harness.broker.sessions[client.client_id].queued for client in lazy)
    assert harness.metrics.dropped["queue_bytes", "out"] == 4 * (200 - 10) - queued
    for client in lazy:
        client.drop()
    harness.advance(10)
    assert core.queued_bytes == 0


def test_retained_messages_are_bounded_by_all_that_makes_them_large(broker_harness: Any) -> None:
    """Topics and properties of retained messages count against the limits (CVE-2021-33175)."""
    harness = broker_harness(config={"broker": {"max_retained_bytes": 100_000}})
    sender = harness.connect("p")
    for number in range(60):
        sender.publish(f"t/{number}", b"x", retain=True, user_property=(("k", "v" * 5000),))
        sender.publish(f"{number}/" + "t" * 5000, b"x", retain=True)
    assert 90_000 < harness.broker.state.retained_bytes <= 100_000
    assert harness.metrics.dropped["retain_limit", "in"] == 120 - len(harness.broker.state.retained)


def test_long_topics_are_not_remembered(harness: Harness) -> None:
    """Long topics are not cached (CVE-2021-33176). A limit on the number of entries alone would
    allow 65,535 bytes in each.
    """
    client = join(harness)
    core = harness.broker.state
    for number in range(50):
        client.publish(f"{number}/" + "t" * 60_000, b"x")
        client.publish(f"{number}", b"x")
    assert len(client.connection.memo) == 50
    assert max(map(len, client.connection.memo)) == 2
    assert core.remembered == 50
    assert max(map(len, core.router._routes)) == 2


@pytest.mark.parametrize("at_fire", [False, True])
def test_cve_2026_95846_a_will_needs_the_right_to_publish(
    broker_harness: Any, at_fire: bool
) -> None:
    """A will needs permission to publish, at CONNECT and again when it is due. Moquette published a
    will without authorization.
    """
    rights = {"open", "$SYS/x"}

    class Rights(Plugin):
        @hookimpl
        def authorize(self, action: Action, topic: str) -> Any:
            return Deny() if action is Action.WILL and topic not in rights else None

    harness = broker_harness(plugins=[Rights])
    witness = harness.connect("witness")
    witness.subscribe("#")
    harness.connect("bad", will=will("shut", b"x"), expect=0x87)
    client = harness.connect("good", will=will("open", b"x"))
    if at_fire:
        rights.discard("open")
    client.drop()
    if at_fire:
        witness.expect_nothing()
        assert harness.metrics.dropped == {("denied", "in"): 1}
    else:
        witness.expect_message("open", b"x")
    harness.connect("sys", will=will("$SYS/x", b"x")).drop()
    witness.expect_nothing()


def test_cve_2018_12546_retained_messages_are_asked_about_when_delivered(
    broker_harness: Any,
) -> None:
    """A plugin can deny a retained message whose publisher has lost its permission, because it receives the publisher's
    identity.
    """
    gone: set[str] = set()

    class Rights(Plugin):
        authorize_actions = frozenset({Action.DELIVER})

        @hookimpl
        def authorize(self, action: Action, message: Message) -> Any:
            assert action is Action.DELIVER
            return Deny() if message.sender in gone else Allow()

    harness = broker_harness(plugins=[Rights])
    for name in ("a", "b"):
        harness.connect(name).publish(f"t/{name}", b"x", retain=True)
    gone.add("a")
    client = harness.connect("s")
    client.subscribe("t/#")
    client.expect_message("t/b")
    client.expect_nothing()


def test_cve_2021_34434_a_kept_subscription_does_not_outlive_its_right(broker_harness: Any) -> None:
    revoked = False

    class Rights(Plugin):
        @hookimpl
        def authorize(self, action: Action) -> Any:
            return Deny() if revoked and action is Action.SUBSCRIBE else None

    harness = broker_harness(plugins=[Rights])
    client = harness.connect("s", session_expiry_interval=100)
    client.subscribe("t", 1)
    client.drop()
    harness.connect("p").publish("t", b"secret", qos=1)
    revoked = True
    client.reconnect(expect=None)
    harness.settle()
    assert client.messages == []
    assert harness.broker.sessions["s"].subscriptions == {}
    assert harness.broker.state.queued_bytes == 0


def test_cve_2016_9877_absent_and_empty_passwords_are_told_apart(broker_harness: Any) -> None:
    """An absent password and an empty one are different. RabbitMQ accepted a missing password as
    correct.
    """

    class Checks(Plugin):
        @hookimpl
        def on_connect(self, connect: Any) -> Any:
            return Accept() if connect.password == b"right" else None

    harness = broker_harness(plugins=[Checks], config={"auth": {"default": "deny"}})
    for version in (3, 4, 5):
        for password in (None, b"", b"\0", b"righ", b"right\0", b"RIGHT"):
            expect = 0x87 if version == 5 else 5
            harness.connect("c", version, username="u", password=password, expect=expect)
        harness.connect("c", version, username="u", password=b"right")
        harness.connect("c", version, username="u", password=b"right").disconnect()
    harness.connect("c", 5, password=b"", expect=0x87)
    lenient = in_memory(harness, 3)
    lenient.connect("c", flags=0xC2)  # MQTT 3.1: flags of fields that are left out
    lenient.not_accepted(5)
    method = in_memory(harness)
    method.connect("c", properties=m.auth_method(""))
    method.not_accepted(0x8C)


def test_cve_2026_95847_client_ids_are_no_paths_and_no_patterns() -> None:
    """A client id is never used as a path or a pattern. Moquette used it as a file name. Two
    different ids never share a session, in memory or in a store.
    """
    store = DurableStore()
    with Harness(config=TOLERANT, store=store) as harness:
        for number, name in enumerate(HOSTILE_NAMES):
            client = harness.connect(name, session_expiry_interval=1000)
            client.subscribe(f"own/{number}", 1)
            client.drop()
        sender = harness.connect("p")
        for number in range(len(HOSTILE_NAMES)):
            sender.publish(f"own/{number}", b"%d" % number, qos=1)
        assert len(harness.broker.sessions) == len(HOSTILE_NAMES) + 1
        harness.restart()
        assert set(harness.broker.sessions) == set(HOSTILE_NAMES)
        for number, name in enumerate(HOSTILE_NAMES):
            client = harness.connect(name, clean_start=False)
            assert client.session_present
            client.expect_message(f"own/{number}", b"%d" % number)
            client.expect_nothing()


def test_ghsa_52qw_whmv_87c5_names_of_attributes(broker_harness: Callable[..., Harness]) -> None:
    """Client ids, topics and other names may be the same as names of JavaScript attributes. aedes
    looked up filters in a JavaScript object with inherited attributes. The test uses such names as
    client ids, user names, topics, filters, share names and property names.
    """
    harness = broker_harness(config=TOLERANT)
    witness = harness.connect("witness")
    witness.subscribe("#", 1)
    for name in HOSTILE_NAMES:
        topic = not set(name) & set("+#") and not name.startswith("$")
        client = harness.connect(name, username=name[:1000], password=b"x")
        client.subscribe([name, f"$share/{name}/t"] if topic else [name])
        if topic:
            client.publish(name, b"x", qos=1, expect=0, user_property=((name, name),))
            found = witness.expect_message(name, b"x")
            assert found.properties.user_property == ((name, name),)
        client.disconnect()
    witness.expect_nothing()
    assert at_rest(harness)["subscriptions"] == 1
    assert at_rest(harness)["groups"] == 0


MATRIX = [
    ("broker", {"max_packet_size": 256}), ("broker", {"max_qos": 0}), ("broker", {"max_filters": 1}),
    ("broker", {"max_topic_levels": 1}), ("broker", {"max_user_properties": 0}), ("broker", {"receive_maximum": 1}),
    ("broker", {"topic_alias_maximum": 0, "outbound_topic_alias": 0}), ("broker", {"topic_alias_maximum": 65535}),
    ("broker", {"fan_out_batch": 1}), ("broker", {"max_retained": 0}), ("broker", {"max_retained_bytes": 0}),
    ("broker", {"max_queue_bytes": 0}), ("broker", {"max_write_buffer": 1024}),
    ("broker", {"max_held_inbound_bytes": 1024}),
    ("broker", {"authz_cache": 0}), ("broker", {"authz_cache": 1}), ("broker", {"authz_cache_total": 0}),
    ("broker", {"flapping_takeovers": 1, "flapping_delay": 0.0}), ("broker", {"server_keep_alive": 65535}),
    ("broker", {"hold_timeout": 0.0}), ("broker", {"publish_depth": 1}), ("broker", {"async_fan_out": True}),
    ("session", {"max_expiry": 0.0}), ("session", {"max_inflight": 1}), ("session", {"max_inflight": 65535}),
    ("session", {"queue_messages": 0}), ("session", {"queue_bytes": 0}), ("session", {"queue_page": 1}),
    ("session", {"queue_drop": "oldest", "queue_messages": 0}), ("session", {"max_will_delay": 0.0}),
    ("session", {"queue_drop": "oldest", "queue_bytes": 0}), ("session", {"queue_qos0": True, "queue_page": 1}),
    ("session", {"queue_drop": "disconnect", "queue_messages": 0}), ("session", {"max_subscriptions": 1}),
    ("session", {"inflight_overflow": "backpressure", "backpressure_timeout": 0.0}), ("session", {"retry_interval": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("section", "values"), MATRIX, ids=[str(v) for _, v in MATRIX])
def test_cve_2026_42209_every_setting_at_its_bounds(
    broker_harness: Any, section: str, values: dict[str, Any]
) -> None:
    """Settings at their limits cause no internal error and no hanging client. FlashMQ divided by a
    setting whose value was 0.
    """
    harness = broker_harness(config={section: values})
    limits = harness.settings.broker
    for version in (4, 5):
        keep = harness.connect(
            "keep", version, False, session_expiry_interval=50 if version == 5 else None
        )
        keep.subscribe("t", 1)
        other = harness.connect("other", version)
        other.subscribe("t", 2)
        sender = harness.connect("p", version)
        for number in range(6):
            for qos in range(limits.max_qos + 1):
                sender.publish("t", b"%d" % number, qos, retain=number % 2 == 0)
        keep.drop()
        sender.publish("t", b"later", limits.max_qos)
        harness.advance(30)
        keep.reconnect(clean_start=False)
        keep.subscribe("t", 1)
        harness.advance(1)
        for client in (keep, other, sender):
            if not client.closed:
                client.ping()
                client.disconnect()
        harness.advance(100)
    assert harness.broker.state.queued_bytes == 0
