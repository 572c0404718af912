"""Test that packets carry only reason codes that their tables permit, even if a plugin refuses with another code."""

from typing import Any

import mqttbytes as m
import pytest
from bytememory import in_memory, join
from hookmq.plugin import Deny, Plugin, ReasonCode, hookimpl
from hookmq_testing import Harness
from statements import edge, statement

CONNACK = {
    0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C,
    0x9D, 0x9F,
}  # fmt: skip
PUBACK = {0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
SUBACK = {0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
DISCONNECT = {0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3)}
REFUSALS = sorted(int(code) for code in ReasonCode if code >= 0x80)


class Denier(Plugin):
    """A plugin that denies with the code given in the user name or in a topic level."""

    @hookimpl
    def on_connect(self, client: Any, connect: Any) -> Any:
        return Deny(ReasonCode(int(client.username))) if client.username else None

    @hookimpl
    def authorize(self, client: Any, action: Any, topic: str) -> Any:
        what, _, code = topic.partition("/")
        if what not in ("deny", "kick"):
            return None
        return Deny(ReasonCode(int(code)), disconnect=what == "kick")


@pytest.fixture
def denier(broker_harness: Any) -> Harness:
    harness: Harness = broker_harness([Denier])
    return harness


def told(code: int, legal: set[int]) -> set[int]:
    """Return the codes that the broker may send for `code`: the code itself if it is legal, otherwise any legal code."""
    return {code} if code in legal else legal


@statement(
    "MQTT-3.2.2-8",
    "MQTT-3.2.2-6",
    "MQTT-3.2.2-7",
    "MQTT311-3.2.2-6",
    "MQTT311-3.2.2-4",
    "MQTT311-3.2.2-5",
)
def test_connack(denier: Harness) -> None:
    for code in REFUSALS:
        client = in_memory(denier).connect(username=str(code))
        client.not_accepted(*told(code, CONNACK))
        old = in_memory(denier, 4).connect(username=str(code))
        answer = old.take()
        assert old.wire.closed
        assert answer in (b"", *(bytes((0x20, 2, 0, number)) for number in range(1, 6)))


@statement("MQTT-3.4.2-1", "MQTT-3.5.2-1")
@edge(46)
def test_puback_and_pubrec(denier: Harness) -> None:
    client = join(denier)
    for code in REFUSALS:
        client.publish(f"deny/{code}", b"", 1, 7)
        found = client.take_one()
        assert (found[0], found[2:4]) == (0x40, b"\x00\x07")
        assert found[4] in told(code, PUBACK)
        client.publish(f"deny/{code}", b"", 2, 8)
        found = client.take_one()
        assert (found[0], found[2:4]) == (0x50, b"\x00\x08")
        assert found[4] in told(code, PUBACK)
        client.publish(f"deny/{code}")
        client.expect()


@statement("MQTT-3.9.3-2", "MQTT-3.8.4-7", "MQTT311-3.9.3-2", "MQTT311-3.8.4-5")
@edge(45)
def test_suback(denier: Harness) -> None:
    client, old = join(denier), join(denier, "old", 4)
    for code in REFUSALS:
        client.send(m.subscribe(7, ("ok", 1), (f"deny/{code}", 1), ("ok", 2)))
        found = client.take_one()
        assert found[:5] == b"\x90\x06\x00\x07\x00"
        assert (found[5], found[7]) == (1, 2)
        assert found[6] in told(code, SUBACK)
        old.send(m.subscribe(7, ("ok", 1), (f"deny/{code}", 1), ("ok", 2), level=4))
        old.expect(m.suback(7, 1, 0x80, 2, level=4))


@statement("MQTT-3.14.2-1", "MQTT-3.14.4-2", "MQTT-4.13.2-1")
def test_disconnect(denier: Harness) -> None:
    for code in REFUSALS:
        client = join(denier)
        client.publish(f"kick/{code}", b"", 1, 7)
        client.refused(*told(code, DISCONNECT))
        old = join(denier, "old", 4)
        old.publish(f"kick/{code}", b"", 1, 7)
        old.refused()
