"""Test chapter 3.1, the format of CONNECT: position, protocol name and version, flags, and order of
the fields.
"""

from typing import Any

import mqttbytes as m
import pytest
from bytememory import LEVELS, in_memory, join
from hookmq.model.client import Scope
from hookmq_testing import Harness
from statements import edge, one_broker, statement

FIRST_PACKETS = [
    m.PINGREQ, m.publish("t", b"x", level=4), m.publish("t", b"x"), m.subscribe(1, ("t", 0)), m.disconnect(),
    m.disconnect(0), m.auth(0x18, m.auth_method("x")), m.puback(1), m.pubrel(1), m.unsubscribe(1, "t"),
    b"\x20\x02\x00\x00", b"\x00\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
]  # fmt: skip


@statement("MQTT-3.1.0-1", "MQTT-3.14.0-1", "MQTT311-3.1.0-1")
@edge(7)
@pytest.mark.parametrize("packet", FIRST_PACKETS)
def test_anything_before_connect_ends_the_connection_silently(
    harness: Harness, packet: bytes
) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("#", 0))
    in_memory(harness).send(packet, m.connect("late")).not_accepted()
    assert list(harness.broker.sessions) == ["watcher"]
    watcher.expect()


@statement("MQTT-3.14.0-1", "MQTT-3.1.0-1")
@edge(7)
def test_nothing_at_all_ends_the_connection_silently(harness: Harness) -> None:
    client = in_memory(harness, scope=Scope(connect_timeout=10))
    client.send(m.connect()[:5])
    harness.advance(9.9)
    client.expect()
    harness.advance(0.2)
    client.not_accepted()


@statement("MQTT-3.1.0-2", "MQTT311-3.1.0-2", "MQTT-3.2.0-2")
@edge(9)
@LEVELS
@pytest.mark.parametrize("client_id", ["c", "other"])
def test_a_second_connect_ends_the_connection(harness: Harness, level: int, client_id: str) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("w", 0))
    client = join(harness, "c", level, will=("w", b"gone"))
    client.connect(client_id)
    client.refused(0x82)  # and no second CONNACK
    watcher.expect(m.publish("w", b"gone"))
    assert list(harness.broker.sessions) == ["watcher"]


NAMES = [
    ("MQTX", 5), ("mqtt", 5), ("", 5), ("MQTT\x00", 5), ("MQT", 4), ("MQTTT", 4), ("MQIsdq", 3), ("mqtt", 4)
]  # fmt: skip


@statement("MQTT-3.1.2-1", "MQTT311-3.1.2-1")
@edge(54)
@pytest.mark.parametrize(("name", "level"), NAMES)
def test_another_protocol_name_ends_the_connection(harness: Harness, name: str, level: int) -> None:
    in_memory(harness, level).connect(name=name).not_accepted()
    assert not harness.broker.sessions


@statement("MQTT-3.1.2-2", "MQTT311-3.1.2-2", "MQTT-3.2.2-7")
@edge(16)
@pytest.mark.parametrize(
    ("name", "version", "answer"),
    [
        ("MQTT", 0, b"\x20\x02\x00\x01"),
        ("MQTT", 1, b"\x20\x02\x00\x01"),
        ("MQTT", 3, b"\x20\x02\x00\x01"),
        ("MQIsdp", 4, b"\x20\x02\x00\x01"),
        ("MQIsdp", 5, b"\x20\x02\x00\x01"),
    ],
)
def test_unsupported_version_in_the_words_of_3(
    harness: Harness, name: str, version: int, answer: bytes
) -> None:
    in_memory(harness).send(m.connect(level=version, name=name)).ends(answer)
    assert not harness.broker.sessions


@statement("MQTT-3.1.2-2", "MQTT-3.2.2-7")
@edge(16)
@pytest.mark.parametrize("version", [6, 7, 100])
def test_unsupported_version_in_the_words_of_5(harness: Harness, version: int) -> None:
    client = in_memory(harness).send(m.connect(level=version, name="MQTT"))
    assert client.not_accepted(0x84)[2:4] == b"\x00\x84"


@statement("MQTT-3.1.2-2", "MQTT311-3.1.2-2")
@edge(16)
@pytest.mark.parametrize(("version", "start"), [(4, b"\x20\x02\x00\x01"), (5, b"\x00\x84")])
def test_a_version_that_is_switched_off(harness: Harness, version: int, start: bytes) -> None:
    scope = Scope(versions=frozenset({3, 4, 5} - {version}))
    client = in_memory(harness, version, scope).connect()
    data = client.take()
    assert data == start if version == 4 else data[2:4] == start
    assert client.wire.closed


WILL = m.text("w") + m.text(b"gone")
BAD_FLAGS = [
    pytest.param(0x03, b"", marks=statement("MQTT-3.1.2-3", "MQTT311-3.1.2-3")),
    pytest.param(0x1E, WILL, marks=statement("MQTT-3.1.2-12", "MQTT311-3.1.2-14")),
    pytest.param(
        0x0A, b"", marks=statement("MQTT-3.1.2-11", "MQTT311-3.1.2-11", "MQTT311-3.1.2-13")
    ),
    pytest.param(
        0x12, b"", marks=statement("MQTT-3.1.2-11", "MQTT311-3.1.2-11", "MQTT311-3.1.2-13")
    ),
    pytest.param(
        0x22, b"", marks=statement("MQTT-3.1.2-13", "MQTT311-3.1.2-11", "MQTT311-3.1.2-15")
    ),
    pytest.param(0x0A, WILL, marks=statement("MQTT-3.1.2-11", "MQTT311-3.1.2-13")),
]


@statement("MQTT-3.1.4-1", "MQTT311-3.1.4-1", "MQTT-4.13.1-1", "MQTT311-4.8.0-1")
@edge(8, 15)
@pytest.mark.parametrize(("flags", "rest"), BAD_FLAGS)
@LEVELS
def test_bad_connect_flags(harness: Harness, level: int, flags: int, rest: bytes) -> None:
    if level == 5 and rest:
        rest = m.section(b"") + rest
    client = in_memory(harness, level).connect(flags=flags, rest=rest)
    client.not_accepted(*([0x81, 0x82] if level == 5 else []))
    assert not harness.broker.sessions


@statement("MQTT-3.1.2-12", "MQTT311-3.1.2-14")
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_will_qos_0_to_2_is_accepted(harness: Harness, level: int, qos: int) -> None:
    join(harness, "c", level, will=("w", b"gone"), will_qos=qos)


FIELDS = [
    # the user name flag without a user name, and vice versa
    pytest.param(0x82, b"", marks=statement("MQTT-3.1.2-17", "MQTT311-3.1.2-19")),
    pytest.param(0x82, b"\x00\x05abc", marks=statement("MQTT-3.1.2-17", "MQTT311-3.1.2-19")),
    pytest.param(0x02, m.text("u"), marks=statement("MQTT-3.1.2-16", "MQTT311-3.1.2-18")),
    # the same for the password
    pytest.param(0xC2, m.text("u"), marks=statement("MQTT-3.1.2-19", "MQTT311-3.1.2-21")),
    pytest.param(
        0xC2, m.text("u") + b"\x00\x02a", marks=statement("MQTT-3.1.2-19", "MQTT311-3.1.2-21")
    ),
    pytest.param(
        0x82, m.text("u") + m.text("p"), marks=statement("MQTT-3.1.2-18", "MQTT311-3.1.2-20")
    ),
    # a missing will, an incomplete will, and a will without its flag
    pytest.param(0x06, b"", marks=statement("MQTT-3.1.2-9", "MQTT311-3.1.2-9")),
    pytest.param(0x06, b"\x00\x01w", marks=statement("MQTT-3.1.2-9", "MQTT311-3.1.2-9")),
    pytest.param(0x06, b"\x00\x01w\x00\x03x", marks=statement("MQTT-3.1.2-9", "MQTT311-3.1.2-9")),
    pytest.param(0x02, WILL, marks=statement("MQTT311-3.1.2-11")),
    # anything after the last field
    pytest.param(0x02, b"\x00", marks=statement("MQTT-3.1.2-16", "MQTT311-3.1.2-18")),
]


@statement("MQTT-3.1.4-1", "MQTT311-3.1.4-1", "MQTT-3.1.3-1", "MQTT311-3.1.3-1")
@edge(8)
@pytest.mark.parametrize(("flags", "rest"), FIELDS)
@LEVELS
def test_fields_and_flags_that_disagree(
    harness: Harness, level: int, flags: int, rest: bytes
) -> None:
    client = in_memory(harness, level).connect(flags=flags, rest=rest)
    client.not_accepted(*([0x81] if level == 5 else []))
    assert not harness.broker.sessions


@statement("MQTT-3.1.3-3", "MQTT311-3.1.3-3", "MQTT311-3.1.4-1")
@LEVELS
def test_a_client_id_that_is_missing(harness: Harness, level: int) -> None:
    whole = m.body(m.connect("", level=level))
    for cut in (1, 2):
        client = in_memory(harness, level).send(m.packet(0x10, whole[:-cut]))
        client.not_accepted(*([0x81] if level == 5 else []))


@statement("MQTT-3.1.4-1", "MQTT311-3.1.4-1")
@LEVELS
def test_connect_cut_anywhere_is_refused(harness: Harness, level: int) -> None:
    whole = m.body(m.connect(level=level, will=("w", b"x"), username="u", password=b"p"))
    for size in range(len(whole)):
        client = in_memory(harness, level).send(m.packet(0x10, whole[:size]))
        harness.settle()
        assert client.wire.closed
        data = client.take()
        if level == 4 or size < 7:  # without the version, the broker cannot send a reason
            assert data == b""
        else:
            assert data[2:4] == b"\x00\x81"
    assert not harness.broker.sessions


@statement("MQTT-3.1.3-1", "MQTT311-3.1.3-1", "MQTT-3.1.2-17", "MQTT-3.1.2-19", "MQTT-3.1.2-9")
@LEVELS
def test_the_order_of_the_fields(harness: Harness, level: int) -> None:
    """The fields are read in the order client id, will properties, will topic, will payload, user
    name, password.
    """
    watcher = join(harness, "watcher", level)
    watcher.subscribe(("will topic", 0))
    rest = m.section(m.content_type("kind"), level)
    rest += m.text("will topic") + m.text("will payload") + m.text("me") + m.text("secret")
    client = in_memory(harness, level).connect("the id", flags=0xC6, rest=rest)
    client.accepted()
    (session,) = [one for name, one in harness.broker.sessions.items() if name != "watcher"]
    assert session.client_id == "the id"
    assert session.client.username == "me"
    client.close()
    properties = m.content_type("kind") if level == 5 else b""
    watcher.expect(m.publish("will topic", b"will payload", level=level, properties=properties))


@statement("MQTT-3.1.2-19")
@edge(12)
def test_password_without_user_name_is_legal_in_5(harness: Harness) -> None:
    join(harness, password=b"p")
    join(harness, password=b"")


@statement("MQTT311-3.1.2-22", "MQTT311-3.1.4-1")
@edge(12)
def test_password_without_user_name_is_illegal_in_3(harness: Harness) -> None:
    in_memory(harness, 4).connect(password=b"p").not_accepted()
    join(harness, "c", 4, username="u", password=b"p")
    join(harness, "c", 4, username="", password=b"")
    join(harness, "c", 4, username="u")


@statement("MQTT-3.3.2-2", "MQTT-4.7.0-1", "MQTT311-4.7.1-1", "MQTT-3.3.2-14")
@edge(35)
@LEVELS
def test_will_topics_without_wildcards(harness: Harness, level: int) -> None:
    for topic in ("#", "a/+", "a/#/b", ""):
        client = in_memory(harness, level).connect(will=(topic, b"x"))
        client.not_accepted(*([0x81, 0x82, 0x90] if level == 5 else []))
    if level == 5:
        client = in_memory(harness).connect(
            will=("w", b"x"), will_properties=m.response_topic("a/+")
        )
        client.not_accepted(0x82)
    assert not harness.broker.sessions


CLIENT_IDS = [
    "a", "Z9", "0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ"
]  # fmt: skip


@statement("MQTT-3.1.3-5", "MQTT311-3.1.3-5")
@LEVELS
@pytest.mark.parametrize("client_id", CLIENT_IDS)
def test_client_ids_that_must_be_accepted(harness: Harness, level: int, client_id: str) -> None:
    assert len(client_id) <= 23
    join(harness, client_id, level)
    assert list(harness.broker.sessions) == [client_id]


@statement("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
@edge(10)
@pytest.mark.parametrize("clean", [True, False])
def test_mqtt_5_assigns_a_client_id_if_it_is_empty(harness: Harness, clean: bool) -> None:
    assigned = []
    for _ in range(3):
        client = in_memory(harness).connect("", clean=clean, properties=m.session_expiry(60))
        (found,) = [one for one in client.accepted() if one[0] == 0x12]
        assigned.append(found[3:].decode())
    assert len(set(assigned)) == 3
    assert sorted(harness.broker.sessions) == sorted(assigned)
    # The client can resume its session with the assigned client id.
    client.close()
    again = in_memory(harness).connect(assigned[2], clean=False, properties=m.session_expiry(60))
    properties = again.accepted(present=True)
    # Only sent if the broker chose the client id.
    assert not [one for one in properties if one[0] == 0x12]


@statement("MQTT-3.1.3-6", "MQTT-3.2.2-16")
@one_broker("nodes only draw client ids at random")
def test_an_assigned_client_id_is_unique(broker_harness: Any) -> None:
    """The broker never assigns a client id that is in use. Two brokers draw the same random id, and
    one of them finds that it is taken.
    """

    def assigned(harness: Harness) -> str:
        properties = in_memory(harness).connect("").accepted()
        (found,) = [one for one in properties if one[0] == 0x12]
        return found[3:].decode()

    first = assigned(broker_harness(seed=7))
    assert assigned(broker_harness(seed=7)) == first
    harness = broker_harness(seed=7)
    owner = join(harness, first)
    assert assigned(harness) != first
    owner.expect()


@statement("MQTT311-3.1.3-6")
def test_an_empty_client_id_in_3_with_clean_session(harness: Harness) -> None:
    one, two = join(harness, "", 4), join(harness, "", 4)
    assert len(harness.broker.sessions) == 2
    one.expect()
    two.expect()


@statement("MQTT311-3.1.3-7", "MQTT311-3.1.3-8", "MQTT311-3.1.3-9", "MQTT311-3.2.2-5")
@edge(10)
def test_an_empty_client_id_in_3_without_clean_session(harness: Harness) -> None:
    in_memory(harness, 4).connect("", clean=False).ends(b"\x20\x02\x00\x02")
    assert not harness.broker.sessions
