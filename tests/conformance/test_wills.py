"""Test chapters 3.1.2.5 to 3.1.3.3 and 3.14.4: when a will is published, and with what contents."""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import LEVELS, join
from hookmq_testing import Harness
from statements import edge, statement

WILL = ("w", b"gone")
GONE = m.publish("w", b"gone")


def watch(harness: Harness) -> ByteClient:
    """Return a subscriber that receives wills with their original QoS and RETAIN."""
    watcher = join(harness, "watcher")
    watcher.subscribe(("w", 0x0A))  # QoS 2, RAP
    return watcher


@statement("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT311-3.1.2-8", "MQTT311-3.1.2-10")
@LEVELS
def test_a_will_is_published_once_when_the_connection_breaks(harness: Harness, level: int) -> None:
    watcher = watch(harness)
    client = join(harness, "c", level, clean=False, will=WILL)
    harness.advance(1000)
    watcher.expect()
    client.close()
    watcher.expect(GONE)
    join(harness, "c", level, clean=False, present=level == 4).close()
    harness.advance(1000)
    watcher.expect()  # not again


@statement("MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.14.4-3", "MQTT311-3.1.2-10", "MQTT311-3.14.4-3")
@edge(5)
@LEVELS
def test_a_normal_disconnect_drops_the_will(harness: Harness, level: int) -> None:
    watcher = watch(harness)
    goodbyes = [m.disconnect()] + ([m.disconnect(0)] if level == 5 else [])
    for goodbye in goodbyes:
        join(harness, "c", level, clean=False, will=WILL).goodbye(goodbye)
        harness.advance(10_000)
        join(harness, "c", level).close()  # the end of the session changes nothing
    watcher.expect()


@statement("MQTT-3.14.4-3")
@edge(5)
@pytest.mark.parametrize("code", [0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x98])
def test_any_other_disconnect_keeps_the_will(harness: Harness, code: int) -> None:
    watcher = watch(harness)
    join(harness, "c", will=WILL).goodbye(m.disconnect(code))
    watcher.expect(GONE)


@statement("MQTT311-3.1.2-12")
@LEVELS
def test_without_a_will_nothing_is_published(harness: Harness, level: int) -> None:
    watcher = join(harness, "watcher")
    watcher.subscribe(("#", 0))
    join(harness, "c", level).close()
    client = join(harness, "c", level)
    client.send(b"\xff")
    assert client.wire.closed
    watcher.expect()


ENDS = {
    "network": lambda harness, client: client.close(),
    "protocol error": lambda harness, client: client.send(m.publish("a/#", b"")),
    "malformed": lambda harness, client: client.send(b"\xd5\x00"),
    "bad flags on DISCONNECT": lambda harness, client: client.send(b"\xe1\x00"),
    "keep alive": lambda harness, client: harness.advance(16),
    "take over": lambda harness, client: join(harness, "c", client.level, present=False),
    "administrator": lambda harness, client: client.connection.disconnect(0x98),
}  # type: Any


@statement("MQTT-3.1.2-8", "MQTT-3.14.1-1", "MQTT311-3.1.2-8", "MQTT311-3.14.1-1")
@edge(5)
@LEVELS
@pytest.mark.parametrize("how", ENDS)
def test_every_other_end_publishes_the_will(harness: Harness, level: int, how: str) -> None:
    watcher = watch(harness)
    client = join(harness, "c", level, keep_alive=10, will=WILL)
    ENDS[how](harness, client)
    harness.settle()
    assert client.wire.closed
    watcher.expect(GONE)


@statement("MQTT-3.1.2-14", "MQTT-3.1.2-15", "MQTT311-3.1.2-16", "MQTT311-3.1.2-17")
@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_will_qos_and_will_retain(harness: Harness, level: int, qos: int, retain: bool) -> None:
    watcher = watch(harness)
    join(harness, "c", level, will=WILL, will_qos=qos, will_retain=retain).close()
    number = 1 if qos else 0
    watcher.expect(m.publish("w", b"gone", qos, number, retain=retain))
    late = join(harness, "late")
    late.subscribe(("w", 2))
    late.expect(*([m.publish("w", b"gone", qos, number, retain=True)] if retain else []))


@statement("MQTT-3.1.3-10", "MQTT-3.3.2-18", "MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16")
def test_a_wills_properties(harness: Harness) -> None:
    watcher = watch(harness)
    pairs = [m.user("z", "1"), m.user("a", "2"), m.user("z", "1"), m.user("", "")]
    others = [
        m.payload_format(1), m.content_type("text"), m.response_topic("back"), m.correlation(b"\xff\0"), m.expiry(50)
    ]  # fmt: skip
    properties = b"".join(pairs[:2] + others + [m.will_delay(5)] + pairs[2:])
    client = join(
        harness, "c", properties=m.session_expiry(100), will=WILL, will_properties=properties
    )
    client.close()
    harness.advance(4.9)
    watcher.expect()
    harness.advance(0.2)
    _, _, _, found, payload = watcher.take_publish()
    assert payload == b"gone"
    assert [one for one in found if one[0] == 0x26] == pairs
    assert sorted(one for one in found if one[0] != 0x26) == sorted(others)


@statement("MQTT-3.1.2-8")
@edge(4)
@pytest.mark.parametrize(
    ("expiry", "delay", "at"), [(0, 50, 0), (100, 0, 0), (100, 30, 30), (20, 30, 20), (20, 20, 20)]
)
def test_a_will_is_due_at_its_delay_or_the_sessions_end(
    harness: Harness, expiry: int, delay: int, at: int
) -> None:
    watcher = watch(harness)
    join(
        harness,
        "c",
        properties=m.session_expiry(expiry),
        will=WILL,
        will_properties=m.will_delay(delay),
    ).close()
    if at:
        harness.advance(at - 0.1)
        watcher.expect()
        harness.advance(0.2)
    watcher.expect(GONE)
    harness.advance(1000)
    watcher.expect()


DELAYED: Any = {
    "properties": m.session_expiry(100), "will": WILL, "will_properties": m.will_delay(30)
}  # fmt: skip


@statement("MQTT-3.1.3-9", "MQTT-3.1.2-8")
@edge(4)
def test_coming_back_in_time_suppresses_the_will(harness: Harness) -> None:
    watcher = watch(harness)
    join(harness, "c", **DELAYED).close()
    harness.advance(29)
    client = join(harness, "c", clean=False, present=True, properties=m.session_expiry(100))
    harness.advance(1000)
    watcher.expect()
    client.close()
    harness.advance(1000)
    watcher.expect()  # the new connection had no will


@statement("MQTT-3.1.3-9", "MQTT-3.1.2-7", "MQTT-3.1.2-8")
@edge(4)
def test_the_delay_of_an_older_will_does_not_hurry_the_next(harness: Harness) -> None:
    watcher = watch(harness)
    join(harness, "c", **DELAYED).close()
    harness.advance(20)
    client = join(harness, "c", clean=False, present=True, **{**DELAYED, "will": ("w", b"2")})
    harness.advance(1000)
    watcher.expect()  # it is connected
    client.close()
    harness.advance(29)
    watcher.expect()
    harness.advance(2)
    watcher.expect(m.publish("w", b"2"))


@statement("MQTT-3.1.3-9")
@edge(4)
def test_taking_over_in_time_suppresses_a_delayed_will(harness: Harness) -> None:
    watcher = watch(harness)
    old = join(harness, "c", **DELAYED)
    join(harness, "c", clean=False, present=True, properties=m.session_expiry(100))
    old.refused(0x8E)
    harness.advance(1000)
    watcher.expect()


@statement("MQTT-3.1.2-8", "MQTT-3.1.4-3")
@edge(4)
def test_a_clean_start_ends_the_session_and_so_publishes_the_will(harness: Harness) -> None:
    watcher = watch(harness)
    join(harness, "c", **DELAYED).close()
    harness.advance(10)
    watcher.expect()
    join(harness, "c")
    watcher.expect(GONE)
    old = join(harness, "d", **DELAYED)
    join(harness, "d")
    old.refused(0x8E)
    watcher.expect(GONE)


@statement("MQTT-3.1.2-7", "MQTT-3.1.2-10")
def test_the_newest_connections_will_holds(harness: Harness) -> None:
    watcher = watch(harness)
    join(harness, "c", **DELAYED).close()
    client = join(
        harness, "c", clean=False, present=True, properties=m.session_expiry(9), will=("w", b"2")
    )
    client.close()
    watcher.expect(m.publish("w", b"2"))
    harness.advance(1000)
    watcher.expect()


@edge(1)
def test_an_expiry_that_was_0_cannot_be_raised(harness: Harness) -> None:
    watcher = watch(harness)
    for properties in (b"", m.session_expiry(0)):
        client = join(harness, "c", properties=properties, will=WILL)
        client.send(m.disconnect(0, m.session_expiry(10)))
        client.refused(0x82)
        watcher.expect(GONE)  # the DISCONNECT was not valid, so the will is published
    assert list(harness.broker.sessions) == ["watcher"]


@edge(1)
@pytest.mark.parametrize(("before", "after"), [(100, 0), (100, 10), (10, 100), (0, 0)])
def test_any_other_change_of_expiry_is_legal(harness: Harness, before: int, after: int) -> None:
    watcher = watch(harness)
    client = join(harness, "c", properties=m.session_expiry(before), will=WILL)
    client.goodbye(m.disconnect(0, m.session_expiry(after)))
    for seconds, present in ((after - 1, True), (after + 1, False)):
        if seconds < 0:
            continue
        harness.advance(seconds)
        back = join(harness, "c", clean=False, present=present, properties=m.session_expiry(after))
        back.goodbye()
    watcher.expect()
