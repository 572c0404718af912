"""Test MQTT 3.1 as clients use it in practice, with protocol name MQIsdp and level 3."""

from typing import Any

import mqttbytes as m
import pytest
from bytememory import in_memory, join
from hookmq.plugin import Deny, Plugin, hookimpl
from hookmq_testing import Harness
from statements import edge, statement


@statement("MQTT311-3.1.2-1")
@edge(54)
def test_3_1_is_spoken(harness: Harness) -> None:
    client = join(harness, "c", 3)
    client.subscribe(("t", 2))
    client.publish("t", b"x", 1, 1)
    client.expect(m.publish("t", b"x", 1, 1, level=3), m.puback(1))
    client.goodbye()


@edge(54)
@pytest.mark.parametrize(
    ("name", "level"), [("MQIsdp", 4), ("MQIsdp", 2), ("MQIsdp", 5), ("MQTT", 3)]
)
def test_mismatched_name_and_level(harness: Harness, name: str, level: int) -> None:
    in_memory(harness, 3).send(m.connect(name=name, level=level)).ends(b"\x20\x02\x00\x01")


@edge(55)
@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_bridge_bit(harness: Harness, version: int, qos: int) -> None:
    """A bridge's subscriptions are No Local and keep RETAIN."""
    client = in_memory(harness, version)
    client.send(
        m.connect("bridge", level=version | 0x80, name="MQIsdp" if version == 3 else "MQTT")
    )
    client.accepted()
    client.subscribe(("t", qos))
    client.publish("t", b"mine")
    client.expect()
    number = 1 if qos else 0
    sender = join(harness, "sender")
    sender.publish("t", b"x", qos, 1, retain=True)
    client.expect(m.publish("t", b"x", qos, number, level=version, retain=True))
    sender.publish("t", b"y", qos, 2)
    client.expect(m.publish("t", b"y", qos, number and 2, level=version))


@edge(55)
@pytest.mark.parametrize(("name", "level"), [("MQTT", 0x83), ("MQIsdp", 0x84)])
def test_the_bridge_bit_does_not_mend_a_mismatch(harness: Harness, name: str, level: int) -> None:
    in_memory(harness, 3).send(m.connect(name=name, level=level)).ends(b"\x20\x02\x00\x01")


@edge(56)
@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_client_id(harness: Harness, clean: bool) -> None:
    in_memory(harness, 3).connect("", clean=clean).ends(b"\x20\x02\x00\x02")


@edge(56)
@pytest.mark.parametrize("size", [23, 24, 200])
def test_long_client_ids(harness: Harness, size: int) -> None:
    join(harness, "x" * size, 3)


@edge(57)
def test_connack_has_no_session_present(harness: Harness) -> None:
    client = in_memory(harness, 3).connect("c", clean=False)
    client.expect(b"\x20\x02\x00\x00")
    client.subscribe(("t", 1))
    client.close()
    join(harness, "sender").publish("t", b"x", 1, 1)
    client = in_memory(harness, 3).connect("c", clean=False)
    # No Session Present flag, although the session exists.
    client.expect(b"\x20\x02\x00\x00", m.publish("t", b"x", 1, 1, level=3))


class Censor(Plugin):
    @hookimpl
    def authorize(self, client: Any, action: Any, topic: str) -> Any:
        return Deny() if topic == "no" else None


@edge(58)
def test_suback_knows_no_failure(broker_harness: Any) -> None:
    harness = broker_harness([Censor])
    client = join(harness, "c", 3)
    client.send(m.subscribe(1, ("no", 1), ("yes", 2), ("no", 0), level=3))
    client.expect(m.suback(1, 1, 2, 0, level=3))
    join(harness, "sender").publish("no", b"x")
    client.expect()


@edge(59)
def test_dup_on_what_is_sent_again(harness: Harness) -> None:
    client = join(harness, "c", 3)
    client.send(b"\x8a" + m.subscribe(1, ("t", 1), level=3)[1:])
    client.expect(m.suback(1, 1, level=3))
    client.send(m.publish("x", b"", 2, 5, level=3))
    client.send(b"\x6a" + m.pubrel(5)[1:])
    client.expect(m.pubrec(5), m.pubcomp(5))
    client.send(b"\xaa" + m.unsubscribe(2, "t", level=3)[1:])
    client.expect(m.unsuback(2, level=3))


@edge(59)
def test_reserved_connect_flag_and_missing_fields(harness: Harness) -> None:
    for flags in (0x03, 0x82, 0xC2):
        client = in_memory(harness, 3).connect(flags=flags)
        client.expect(b"\x20\x02\x00\x00")
