"""Test what each of the broker's counters counts, and that the fast path and the slow path count in the same way."""

from collections.abc import Callable

import pytest
from hookmq.hooks.verdicts import Deny
from hookmq.model.metrics import HELP, Metrics
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Pingreq, Publish
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, will

Make = Callable[..., Harness]


def test_everything_begins_at_nothing() -> None:
    assert set(Metrics().snapshot().values()) == {0}


def test_connections_and_sessions(broker_harness: Make) -> None:
    plugin = HookRecorder("on_connect")
    harness = broker_harness(plugins=[plugin], config={"broker": {"max_connections": 3}})
    metrics = harness.metrics
    one = harness.connect("one", session_expiry_interval=10)
    harness.connect("two")
    assert (metrics.connections_accepted, metrics.sessions_created) == (2, 2)
    harness.connect("one", session_expiry_interval=10, clean_start=False)
    assert one.closed
    assert (metrics.takeovers, metrics.sessions_resumed, metrics.sessions_created) == (1, 1, 2)
    assert metrics.connections_accepted == 3
    plugin.answer("on_connect", Deny())
    harness.connect("three", expect=0x87)
    assert metrics.connections_refused == 1
    harness.open().raw(b"\xff" * 10)
    assert metrics.connections_refused == 2
    harness.open()
    harness.open()
    assert metrics.connections_refused == 3  # over the limit
    assert metrics.connections_accepted == 3
    harness.clients[2].drop()
    harness.advance(11)
    assert metrics.sessions_expired == 1
    assert metrics.sessions_created == 2


def test_a_restart_creates_no_sessions(broker_harness: Make) -> None:
    harness = broker_harness(store=DurableStore())
    one = harness.connect("one", session_expiry_interval=60)
    harness.restart()
    assert set(harness.metrics.snapshot().values()) == {0}
    one.reconnect()
    assert (harness.metrics.sessions_created, harness.metrics.sessions_resumed) == (0, 1)


def exchange(harness: Harness) -> tuple[MemoryClient, MemoryClient]:
    """Exchange packets of every type that clients send."""
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe([("t", 2), ("u", 1)])
    for number in range(6):
        for qos in (0, 1, 2):
            pub.publish("t", b"%d" % number, qos, expect=0)
            pub.publish("u", b"x" * 200, qos, expect=0)
    pub.publish("nobody", b"", 1, expect=0x10)
    with harness.together():
        for _ in range(5):
            pub.publish("t", b"together", 0)
    pub.ping()
    return sub, pub


@pytest.mark.parametrize("hooks", [(), ("on_publish",), ("on_deliver",), ("on_published",)])
def test_traffic(broker_harness: Make, hooks: tuple[str, ...]) -> None:
    harness = broker_harness(plugins=[HookRecorder(*hooks)] if hooks else [])
    clients = exchange(harness)
    metrics = harness.metrics
    assert metrics.messages_received == 42
    assert metrics.messages_delivered == 41
    assert metrics.packets_received == sum(_sent(client) for client in clients)
    assert metrics.bytes_sent == sum(len(w.data) for c in clients for w in c.wire.writes)
    assert metrics.bytes_sent == sum(len(client.raw_received) for client in clients)
    assert metrics.writes == sum(len(client.wire.writes) for client in clients)
    assert metrics.dropped == {}
    assert metrics.protocol_errors == 0


def _sent(client: MemoryClient) -> int:
    """Return the number of packets that a client of `exchange` sent."""
    got = [type(packet).__name__ for packet in client.received]
    answers = got.count("Publish") - sum(
        isinstance(packet, Publish) and packet.qos == 0 for packet in client.received
    )
    answers += got.count("Pubrel") + got.count("Pubrec")
    own = {"sub": 2, "pub": 1 + 36 + 1 + 5 + 1}[client.client_id]
    return answers + own


def test_bytes_received(broker_harness: Make) -> None:
    harness = broker_harness()
    one = harness.connect("one")
    before = harness.metrics.bytes_received
    packet = encode(Publish("t", bytes(1000)), 5)
    one.raw(packet[:300])
    one.raw(packet[300:])
    one.send(Pingreq())
    assert harness.metrics.bytes_received == before + len(packet) + 2
    assert harness.metrics.messages_received == 1


def test_faults(broker_harness: Make) -> None:
    config = {"broker": {"receive_maximum": 2}}
    harness = broker_harness(config=config)
    metrics = harness.metrics
    harness.connect("one").raw(b"\x00\x00")
    assert metrics.protocol_errors == 1
    silent = harness.connect("silent", keep_alive=10)
    harness.advance(16)
    silent.expect_disconnect(0x8D)
    assert (metrics.keep_alive_timeouts, metrics.protocol_errors) == (1, 1)
    greedy = harness.connect("greedy", auto_ack=False)
    for _ in range(3):
        greedy.publish("t", b"", 2)
    greedy.expect_disconnect(0x93)
    assert (metrics.receive_maximum_exceeded, metrics.protocol_errors) == (1, 2)


def test_wills(broker_harness: Make) -> None:
    harness = broker_harness()
    harness.connect("one", will=will("bye")).drop()
    harness.connect("two", will=will("bye")).disconnect()
    harness.connect("three").drop()
    assert harness.metrics.wills_published == 1


def test_messages_delivered_counts_messages_sent(broker_harness: Make) -> None:
    """As the metric's help text says, a delivered message is counted once, when it is first sent. Retransmissions are
    not counted.
    """
    harness = broker_harness()
    sub = harness.connect("sub", session_expiry_interval=60, auto_ack=False)
    sub.subscribe("t", 1)
    harness.connect("pub").publish("t", b"x", 1)
    harness.settle()
    assert harness.metrics.messages_delivered == 1
    assert "sent" in HELP["messages_delivered"]
    assert "acknowledged" not in HELP["messages_delivered"]
    sub.drop()
    sub.reconnect()
    sub.expect_message("t", b"x", 1, dup=True)
    assert harness.metrics.messages_delivered == 1
