"""The broker acknowledges only what the store has committed. These tests use a slow store."""

from typing import Any

import mqttbytes as m
import pytest
from bytememory import LEVELS, in_memory, join
from hookmq_testing import DurableStore, Harness, SlowStore
from statements import edge, one_broker, statement


@pytest.fixture
def store() -> SlowStore:
    return SlowStore(DurableStore(), slow=False)


@pytest.fixture
def harness(store: SlowStore, broker_harness: Any) -> Harness:
    made: Harness = broker_harness(store=store)
    return made


def keep(level: int) -> dict[str, Any]:
    return {
        "level": level, "clean": False, "properties": m.session_expiry(1000) if level == 5 else b""
    }  # fmt: skip


def away(harness: Harness, level: int, qos: int = 2) -> None:
    """Create an offline session that is subscribed to "t"."""
    client = join(harness, "away", **keep(level))
    client.subscribe(("t", qos))
    client.close()


@statement("MQTT-4.3.2-4", "MQTT-4.3.3-8", "MQTT311-4.3.2-2", "MQTT311-4.3.3-2")
@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
@one_broker("its store is not the cluster's")
def test_an_acknowledgement_waits_for_the_store(
    harness: Harness, store: SlowStore, level: int, qos: int
) -> None:
    away(harness, level)
    sender = join(harness, "sender", level)
    store.slow = True
    sender.publish("t", b"x", qos, 7)
    sender.expect()
    store.finish()
    sender.expect(m.puback(7) if qos == 1 else m.pubrec(7))
    store.slow = False


@statement("MQTT-3.3.4-7", "MQTT-4.9.0-1")
@edge(19)
@one_broker("its store is not the cluster's")
def test_unanswered_publishes_count_against_receive_maximum(
    store: SlowStore, broker_harness: Any
) -> None:
    harness = broker_harness(store=store, config={"broker": {"receive_maximum": 2}})
    away(harness, 5)
    sender = join(harness, "sender")
    store.slow = True
    sender.publish("t", b"1", 1, 1)
    sender.publish("t", b"2", 1, 2)
    sender.publish("t", b"", 0)
    sender.expect()
    sender.publish("t", b"3", 1, 3)
    sender.refused(0x93)
    store.slow = False
    store.finish()


@statement("MQTT-4.6.0-5", "MQTT311-4.6.0-6")
@LEVELS
@one_broker("its store is not the cluster's")
def test_acknowledgements_keep_their_order(harness: Harness, store: SlowStore, level: int) -> None:
    """Acknowledgements keep their order even if a later one is ready first."""
    away(harness, level)
    join(harness, "here", level).subscribe(("u", 0))
    sender = join(harness, "sender", level)
    store.slow = True
    sender.publish("t", b"x", 1, 1)
    sender.publish("u", b"x", 1, 2)
    sender.expect()
    store.finish()
    sender.expect(m.puback(1), m.puback(2))
    store.slow = False


@statement("MQTT-3.2.0-1", "MQTT311-3.2.0-1", "MQTT-3.1.4-4", "MQTT311-3.1.4-3")
@LEVELS
@one_broker("its store is not the cluster's")
def test_connack_waits_for_the_store_and_comes_first(
    harness: Harness, store: SlowStore, level: int
) -> None:
    away(harness, level)
    sender = join(harness, "sender", level)
    sender.publish("t", b"queued", 1, 1)
    sender.expect(m.puback(1))
    store.slow = True
    client = in_memory(harness, level).connect(
        "away", clean=False, properties=keep(level)["properties"]
    )
    sender.publish("t", b"live", 1, 2)
    client.expect()
    store.finish()
    client.accepted(present=True)
    store.slow = False
    store.finish()
    client.expect(
        m.publish("t", b"queued", 1, 1, level=level), m.publish("t", b"live", 1, 2, level=level)
    )


@statement("MQTT-3.8.4-1", "MQTT-3.10.4-4", "MQTT311-3.8.4-1", "MQTT311-3.10.4-4")
@LEVELS
@one_broker("its store is not the cluster's")
def test_suback_and_unsuback_wait_for_the_store(
    harness: Harness, store: SlowStore, level: int
) -> None:
    client = join(harness, "c", **keep(level))
    store.slow = True
    client.send(m.subscribe(1, ("t", 1), level=level))
    client.expect()
    store.finish()
    client.expect(m.suback(1, 1, level=level))
    client.send(m.unsubscribe(2, "t", level=level))
    client.expect()
    store.finish()
    client.expect(m.unsuback(2, 0, level=level))
    store.slow = False


@statement(
    "MQTT-4.1.0-1", "MQTT-3.1.2-23", "MQTT-4.3.2-3", "MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-4.3.3-6",
    "MQTT-4.3.3-10", "MQTT-3.3.1-5", "MQTT311-4.1.0-1", "MQTT311-3.1.2-4", "MQTT311-4.3.3-1", "MQTT311-4.3.3-2",
    "MQTT311-3.3.1-5", "MQTT311-4.4.0-1",
)  # fmt: skip
@LEVELS
@one_broker("its store is not the cluster's")
def test_all_of_it_survives_a_crash(harness: Harness, level: int) -> None:
    client = join(harness, "c", **keep(level))
    client.subscribe(("t", 2))
    sender = join(harness, "sender", **keep(level))
    sender.publish("t", b"1", 1, 1)
    sender.publish("t", b"2", 2, 2)
    sender.publish("t", b"3", 2, 3)
    sender.publish("r", b"kept", retain=True)
    client.take()
    client.send(m.pubrec(2))
    client.expect(m.pubrel(2))
    harness.restart()
    client = join(harness, "c", present=True, **keep(level))
    client.expect(
        m.publish("t", b"1", 1, 1, level=level, dup=True),
        m.pubrel(2),
        m.publish("t", b"3", 2, 3, level=level, dup=True),
    )
    sender = join(harness, "sender", present=True, **keep(level))
    sender.publish("t", b"2", 2, 2, dup=True)  # taken before the crash
    sender.expect(m.pubrec(2))
    sender.send(m.pubrel(2))
    sender.expect(m.pubcomp(2))
    client.expect()
    sender.publish("t", b"4", 2, 2)
    client.expect(m.publish("t", b"4", 2, 4, level=level))
    client.subscribe(("r", 0))
    client.expect(m.publish("r", b"kept", level=level, retain=True))
