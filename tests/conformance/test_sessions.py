"""Test chapters 3.1.2, 3.1.4 and 4.1: keep alive, and how sessions are kept, resumed, discarded, taken over and
expired.
"""

from typing import Any

import mqttbytes as m
import pytest
from bytememory import LEVELS, in_memory, join
from hookmq.plugin import Deny, Plugin, ReasonCode, hookimpl
from hookmq_testing import Harness
from statements import edge, one_broker, statement

KEEP = m.session_expiry(100)


def keep(level: int) -> dict[str, Any]:
    """Return CONNECT options for a session that outlives its connection."""
    return {"level": level, "clean": False, "properties": KEEP if level == 5 else b""}


def fill(harness: Harness, level: int) -> None:
    """Create a session with a subscription, a message in flight and a queued message."""
    client = join(harness, "c", **keep(level))
    client.subscribe(("t", 1))
    sender = join(harness, "sender", level)
    sender.publish("t", b"in flight", 1, 1)
    client.expect(m.publish("t", b"in flight", 1, 1, level=level))
    client.close()
    sender.publish("t", b"queued", 1, 2)
    sender.expect(m.puback(1), m.puback(2))
    sender.goodbye()


@statement(
    "MQTT-3.1.2-5", "MQTT-3.1.2-23", "MQTT-3.2.2-3", "MQTT-4.5.0-1", "MQTT-3.1.4-5", "MQTT-3.1.3-2",
    "MQTT311-3.1.2-4", "MQTT311-3.1.2-5", "MQTT311-3.2.2-2", "MQTT311-3.1.4-4", "MQTT311-4.1.0-1",
    "MQTT311-4.5.0-1", "MQTT311-3.1.3-2", "MQTT-3.2.0-1", "MQTT311-3.2.0-1",
)  # fmt: skip
@LEVELS
def test_a_session_goes_on(harness: Harness, level: int) -> None:
    fill(harness, level)
    client = join(harness, "c", present=True, **keep(level))  # CONNACK is the first packet
    client.expect(
        m.publish("t", b"in flight", 1, 1, level=level, dup=True),
        m.publish("t", b"queued", 1, 2, level=level),
    )
    join(harness, "sender", level).publish("t", b"new", 1, 1)
    client.expect(m.publish("t", b"new", 1, 3, level=level))


@statement(
    "MQTT-3.1.2-4", "MQTT-3.2.2-2", "MQTT-3.1.4-4", "MQTT311-3.1.2-6", "MQTT311-3.2.2-1", "MQTT311-3.1.4-3"
)  # fmt: skip
@edge(11)
@LEVELS
def test_clean_start_discards_the_session(harness: Harness, level: int) -> None:
    fill(harness, level)
    client = join(harness, "c", level, present=False)
    client.expect()
    join(harness, "sender", level).publish("t", b"new", 1, 1)
    client.expect()
    client.close()
    # nor does it leave messages for a later session
    client = join(harness, "c", present=False, **keep(level))
    client.expect()


@statement("MQTT-3.1.2-4", "MQTT311-3.1.2-6", "MQTT311-3.1.2-4", "MQTT-4.1.0-2")
@LEVELS
def test_a_clean_session_is_not_kept(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.subscribe(("t", 1))
    client.close()
    assert not harness.broker.sessions
    client = join(harness, "c", level, clean=False, present=False)
    join(harness, "sender", level).publish("t", b"x", 1, 1)
    client.expect()


@statement(
    "MQTT-3.1.2-6", "MQTT-3.2.2-3", "MQTT-3.2.2-1", "MQTT311-3.1.2-4", "MQTT311-3.2.2-3", "MQTT311-3.1.4-4"
)  # fmt: skip
@LEVELS
def test_without_a_stored_session_one_is_made(harness: Harness, level: int) -> None:
    client = in_memory(harness, level).connect("c", clean=False)
    frame = client.take_one()
    assert frame[0] == 0x20
    assert m.body(frame)[:2] == b"\x00\x00"  # all other bits of the flags are 0 too
    if level == 4:
        assert frame == b"\x20\x02\x00\x00"


@statement("MQTT-3.1.3-2", "MQTT311-3.1.3-2")
@LEVELS
def test_a_session_is_its_client_ids_alone(harness: Harness, level: int) -> None:
    fill(harness, level)
    for other in ("C", "c ", "cc", "c\u0301"):
        join(harness, other, present=False, **keep(level)).expect()
    join(harness, "c", present=True, **keep(level))


@statement("MQTT311-3.1.2-7", "MQTT-3.3.1-8")
@LEVELS
def test_retained_messages_outlive_sessions(harness: Harness, level: int) -> None:
    client = join(harness, "c", level)
    client.publish("r", b"kept", 0, 0, retain=True)
    client.close()
    client = join(harness, "c", level)
    client.subscribe(("r", 0))
    client.expect(m.publish("r", b"kept", level=level, retain=True))


@statement("MQTT-3.1.2-23", "MQTT-4.1.0-2")
@edge(2)
def test_a_session_expires(harness: Harness) -> None:
    for seconds, present in ((99, True), (101, False)):
        join(harness, "c", clean=True, properties=KEEP).close()
        harness.advance(seconds)
        join(harness, "c", clean=False, properties=KEEP, present=present).close()
        harness.advance(1000)


@statement("MQTT-4.1.0-1", "MQTT311-4.1.0-2")
@LEVELS
@one_broker("weeks pass, and nodes do something every second")
def test_a_connected_session_does_not_expire(harness: Harness, level: int) -> None:
    properties = m.session_expiry(5) if level == 5 else b""
    client = join(harness, "c", level, properties=properties)
    client.subscribe(("t", 0))
    harness.advance(1_000_000)
    client.publish("t", b"still here")
    client.expect(m.publish("t", b"still here", level=level))


@edge(2)
@one_broker("weeks pass, and nodes do something every second")
def test_session_expiry_of_every_kind(broker_harness: Any) -> None:
    harness = broker_harness(config={"session": {"max_expiry": float("inf")}})
    join(harness, "absent").close()
    join(harness, "zero", properties=m.session_expiry(0)).close()
    join(harness, "never", properties=m.session_expiry(0xFFFFFFFF)).close()
    join(harness, "old", 4, clean=False).close()
    join(harness, "old clean", 4, clean=True).close()
    assert sorted(harness.broker.sessions) == ["never", "old"]
    harness.advance(10**7)
    join(harness, "never", clean=False, present=True)
    join(harness, "old", 4, clean=False, present=True)


@edge(2)
def test_the_granted_expiry_is_reported(broker_harness: Any) -> None:
    harness = broker_harness(config={"session": {"max_expiry": 50.0}})
    client = in_memory(harness).connect("c", properties=m.session_expiry(0xFFFFFFFF))
    assert m.session_expiry(50) in client.accepted()
    client.close()
    harness.advance(51)
    join(harness, "c", clean=False, present=False)


@statement("MQTT-3.1.2-5", "MQTT-3.2.2-3")
@edge(3)
def test_an_older_session_is_resumed_and_then_ends(harness: Harness) -> None:
    join(harness, "c", properties=KEEP).close()
    join(harness, "c", clean=False, present=True).close()  # no expiry: it ends now
    join(harness, "c", clean=False, present=False)


@statement("MQTT-3.1.4-3", "MQTT-3.2.2-3", "MQTT-3.14.4-2", "MQTT311-3.1.4-2")
@edge(6)
@LEVELS
def test_take_over(harness: Harness, level: int) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("w", 0))
    old = join(harness, "c", will=("w", b"gone"), **keep(level))
    old.subscribe(("t", 1))
    new = join(harness, "c", present=True, **keep(level))
    old.refused(0x8E)
    watcher.expect(m.publish("w", b"gone"))
    new.publish("t", b"x", 1, 1)
    new.expect(m.publish("t", b"x", 1, 1, level=level), m.puback(1))
    old.ends()


@statement("MQTT-3.1.4-3", "MQTT311-3.1.4-2")
@LEVELS
def test_take_over_with_clean_start(harness: Harness, level: int) -> None:
    old = join(harness, "c", **keep(level))
    old.subscribe(("t", 1))
    new = join(harness, "c", level, present=False)
    old.refused(0x8E)
    new.publish("t", b"x")
    new.expect()


class Doorman(Plugin):
    """A plugin that refuses the user names "banned" and "busy", and wrong passwords."""

    @hookimpl
    def on_connect(self, client: Any, connect: Any) -> Any:
        codes = {"banned": ReasonCode.BANNED, "busy": ReasonCode.SERVER_BUSY}
        if client.username in codes:
            return Deny(codes[client.username])
        if connect.password != b"right":
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        return None


@statement(
    "MQTT-3.1.4-2", "MQTT-3.2.2-6", "MQTT-3.2.2-7", "MQTT-3.2.2-8", "MQTT-4.13.2-1", "MQTT-3.14.0-1",
    "MQTT311-3.2.2-4", "MQTT311-3.2.2-5", "MQTT311-3.2.2-6",
)  # fmt: skip
@edge(11)
@pytest.mark.parametrize(
    ("name", "code", "v3"),
    [
        ("me", 0x86, b"\x20\x02\x00\x04"),
        ("banned", 0x8A, b"\x20\x02\x00\x05"),
        ("busy", 0x89, b"\x20\x02\x00\x03"),
    ],
)
def test_refused_clients(broker_harness: Any, name: str, code: int, v3: bytes) -> None:
    harness = broker_harness([Doorman])
    good: dict[str, Any] = {"username": "me", "password": b"right"}
    bad: dict[str, Any] = {"username": name, "password": b"wrong"}
    join(harness, "c", properties=KEEP, **good).close()
    in_memory(harness).connect("c", clean=False, **bad).not_accepted(code)  # Session Present 0
    in_memory(harness, 4).connect("c", clean=False, **bad).ends(v3)
    join(harness, "c", clean=False, present=True, **good)  # nothing happened to the session


@statement("MQTT-3.1.3-8", "MQTT311-3.1.3-9", "MQTT-3.2.2-7", "MQTT311-3.2.2-5")
@one_broker("duplicate_client_id applies to each node")
def test_a_refused_client_id(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"duplicate_client_id": "reject"}})
    first = join(harness, "c")
    in_memory(harness).connect("c").not_accepted(0x85)
    in_memory(harness, 4).connect("c").ends(b"\x20\x02\x00\x02")
    first.expect()


@statement("MQTT-3.1.4-6", "MQTT311-3.1.4-5")
@edge(14)
@LEVELS
def test_packets_behind_a_refused_connect_have_no_effect(broker_harness: Any, level: int) -> None:
    harness = broker_harness([Doorman])
    watcher = join(harness, "watcher", username="w", password=b"right")
    watcher.subscribe(("#", 0))
    client = in_memory(harness, level)
    client.send(
        m.connect("c", level=level, username="me", password=b"wrong"),
        m.subscribe(1, ("t", 0), level=level),
        m.publish("t", b"x", level=level, retain=True),
    )
    if level == 5:
        client.not_accepted(0x86)
    else:
        client.ends(b"\x20\x02\x00\x04")
    client.send(m.publish("t", b"late", level=level))
    watcher.expect()
    assert len(harness.broker.sessions) == 1
    watcher.subscribe(("t", 0))
    watcher.expect()  # nothing was retained


@statement("MQTT-3.2.0-1", "MQTT311-3.2.0-1")
@edge(14)
@LEVELS
def test_packets_behind_an_accepted_connect_are_handled(harness: Harness, level: int) -> None:
    client = in_memory(harness, level)
    client.send(
        m.connect("c", level=level),
        m.subscribe(1, ("t", 0), level=level),
        m.publish("t", b"x", level=level),
    )
    client.accepted()
    # A server may send messages before the SUBACK, as the nodes of a cluster do.
    assert sorted(client.take_frames()) == [
        m.publish("t", b"x", level=level),
        m.suback(1, 0, level=level),
    ]


@statement("MQTT-3.1.2-22", "MQTT-3.2.2-22", "MQTT311-3.1.2-24")
@edge(13)
@LEVELS
def test_keep_alive(harness: Harness, level: int) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("w", 0))
    client = join(harness, "c", level, keep_alive=10, will=("w", b"gone"))
    for packet in (
        m.PINGREQ,
        m.publish("x", b"", level=level),
        m.subscribe(1, ("y", 0), level=level),
    ):
        harness.advance(14.9)  # each packet restarts the timer
        client.send(packet)
    client.take()
    harness.advance(14.9)
    client.send(m.PINGREQ[:1])  # half a packet does not count
    client.expect()
    watcher.expect()
    harness.advance(0.2)
    client.refused(0x8D)
    watcher.expect(m.publish("w", b"gone"))


@statement("MQTT-3.1.2-22", "MQTT311-3.1.2-24")
@edge(13)
@LEVELS
@one_broker("weeks pass, and nodes do something every second")
def test_keep_alive_0_is_off(harness: Harness, level: int) -> None:
    client = join(harness, "c", level, keep_alive=0)
    harness.advance(1_000_000)
    client.expect()


@statement("MQTT-3.1.2-22", "MQTT-3.2.2-22")
@edge(13)
def test_server_keep_alive(broker_harness: Any) -> None:
    harness = broker_harness(config={"broker": {"server_keep_alive": 4}})
    client = in_memory(harness).connect("c", keep_alive=100)
    assert b"\x13\x00\x04" in client.accepted()
    harness.advance(5.9)
    client.expect()
    harness.advance(0.2)
    client.refused(0x8D)
    # The broker cannot announce another value to a 3.1.1 client, so the client's own value applies.
    old = join(harness, "old", 4, keep_alive=100)
    harness.advance(149)
    old.expect()


@statement("MQTT-3.2.2-22")
def test_no_server_keep_alive_means_the_clients_own(harness: Harness) -> None:
    client = in_memory(harness).connect("c", keep_alive=100)
    assert not [one for one in client.accepted() if one[0] == 0x13]
    harness.advance(149)
    client.expect()
    harness.advance(2)
    client.refused(0x8D)
