"""Test connections whose bytes pass to another node of the cluster."""

from collections.abc import Iterator

import pytest
from hookmq.model.client import Scope
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connack, Connect, Pingreq
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, MemoryClient
from scripted_cluster import RecordingRelay, ScriptedCluster

CONNACK = b"\x20\x03\x00\x00\x00"


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster()


@pytest.fixture
def clustered(cluster: ScriptedCluster) -> Iterator[Harness]:
    with Harness([cluster]) as harness:
        yield harness


def relayed(
    cluster: ScriptedCluster, harness: Harness, version: int = 5, answered: bool = True
) -> tuple[MemoryClient, RecordingRelay]:
    """Return a client that is relayed, and the relay."""
    cluster.place = cluster.relaying
    client = harness.connect("c", version, expect=None)
    relay = cluster.relays[-1]
    if answered:
        relay.wire.write(CONNACK if version == 5 else b"\x20\x02\x00\x00")
        assert client.expect(Connack).code == 0
    return client, relay


def test_the_relay_gets_the_bytes_as_received(cluster: ScriptedCluster, clustered: Harness) -> None:
    connect = encode(Connect("c", 5, True, 30, "user", b"secret"), 5)
    rest = bytes(range(256))  # need not be packets
    for cuts in ((len(connect) + 256,), (1, 2, 9), (len(connect),), (len(connect) - 1,)):
        for waits in (False, True):
            cluster.place = None if waits else cluster.relaying
            client = clustered.open()
            data = connect + rest
            start = 0
            for end in (*cuts, len(data)):
                if data[start:end]:
                    client.raw(data[start:end])
                start = end
            if waits:
                cluster.answer(cluster.relaying)
            relay = cluster.relays.pop()
            assert relay.received == data
            assert relay.peer == client.peer
            assert relay.scope is client.scope
            client.drop()


def test_bytes_pass_in_both_directions(cluster: ScriptedCluster, clustered: Harness) -> None:
    client, relay = relayed(cluster, clustered)
    relay.fed.clear()
    client.raw(b"\x30")
    client.raw(bytes(100_000))
    assert relay.received == b"\x30" + bytes(100_000)
    relay.wire.write(b"\xd0")
    relay.wire.write(b"\x00" + b"\xd0\x00")
    clustered.settle()
    assert client.raw_received == CONNACK + b"\xd0\x00\xd0\x00"
    assert not clustered.broker.sessions


def test_the_traffic_counts_for_the_listener(cluster: ScriptedCluster, clustered: Harness) -> None:
    cluster.place = cluster.relaying
    client = clustered.connect("c", expect=None, scope=Scope("front"))
    client.raw(bytes(1000))
    cluster.relays[0].wire.write(b"\xd0\x00" * 100)
    traffic = clustered.metrics.listeners["front"]
    assert traffic.bytes_received == 1000 + len(encode(client.connect, 5))
    assert traffic.bytes_sent == 200
    assert clustered.metrics.packets_received == 1  # CONNECT


def test_back_pressure_passes_in_both_directions(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    client, relay = relayed(cluster, clustered)
    client.pause()
    relay.wire.write(b"\xd0\x00" * 35_000)
    assert relay.events == ["pause"]
    client.wire.unblock()
    clustered.settle()
    assert relay.events == ["pause", "resume"]
    relay.wire.pause_reading()
    before = len(relay.received)
    client.raw(bytes(10))
    assert len(relay.received) == before
    relay.wire.resume_reading()
    clustered.settle()
    assert len(relay.received) == before + 10


def test_a_client_that_already_reads_too_slowly_pauses_the_relay(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    cluster.place = None
    client = clustered.connect("c", expect=None)
    client.connection.pause_writing()
    cluster.answer(cluster.relaying)
    assert cluster.relays[0].events == ["pause"]
    client.connection.resume_writing()
    assert cluster.relays[0].events == ["pause", "resume"]


def test_reading_goes_on_after_a_large_first_burst(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    cluster.place = None
    client = clustered.connect("c", expect=None)
    client.raw(bytes(70_000))
    assert not client.wire.reading
    client.raw(bytes(5))
    cluster.answer(cluster.relaying)
    clustered.settle()
    assert client.wire.reading
    assert len(cluster.relays[0].received) == len(encode(client.connect, 5)) + 70_005


def test_the_end_of_the_client_closes_the_relay(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    client, relay = relayed(cluster, clustered)
    client.drop()
    assert relay.events == ["closed"]
    assert not clustered.broker.connections
    relay.wire.write(b"late")
    relay.wire.close()
    relay.wire.pause_reading()
    relay.wire.resume_reading()
    assert relay.events == ["closed"]


def test_a_client_that_has_left_is_relayed_to_the_end(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    cluster.place = None
    client = clustered.connect("c", expect=None)
    client.publish("a", b"1")
    client.wire.lose()
    clustered.settle()
    cluster.answer(cluster.relaying)
    [relay] = cluster.relays
    assert relay.received.endswith(b"1")
    assert relay.events == ["closed"]
    assert not clustered.broker.connections


def test_the_end_of_the_relay_closes_the_client(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    client, relay = relayed(cluster, clustered)
    relay.wire.write(b"\xe0\x02\x8e\x00")
    relay.wire.close()
    client.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    client.expect_closed()
    assert relay.events == ["closed"]
    assert not clustered.broker.connections


def test_an_aborted_relay_aborts_the_client(cluster: ScriptedCluster, clustered: Harness) -> None:
    client, relay = relayed(cluster, clustered, answered=False)
    relay.wire.abort()
    client.expect_closed()
    assert client.wire.aborted
    assert relay.events == ["closed"]


@pytest.mark.parametrize(("version", "code"), [(5, 0x88), (4, 3)])
def test_a_node_that_cannot_be_reached_refuses_the_client(
    cluster: ScriptedCluster, clustered: Harness, version: int, code: int
) -> None:
    client, relay = relayed(cluster, clustered, version, answered=False)
    relay.wire.close()
    assert client.expect(Connack).code == code
    client.expect_closed()
    assert relay.events == ["closed"]
    assert clustered.metrics.connections_refused == 1
    [logged] = clustered.logged("connect.refused")
    assert logged["reason"] == "the node with the session did not answer"


def test_a_relay_may_fail_at_once(cluster: ScriptedCluster, clustered: Harness) -> None:
    class Failing(RecordingRelay):
        def __init__(self, wire, peer, scope) -> None:  # type: ignore[no-untyped-def]
            super().__init__(wire, peer, scope)
            cluster.relays.append(self)
            wire.close()

    cluster.place = Failing
    clustered.connect("c", expect=0x88)
    [relay] = cluster.relays
    assert relay.events == ["closed"]
    assert relay.fed == []


def test_an_error_of_the_relay_ends_the_connection(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    clustered.allow_errors = True
    client, relay = relayed(cluster, clustered)

    def fail(data: bytes) -> None:
        raise RuntimeError("broken")

    relay.feed = fail  # type: ignore[method-assign]
    client.raw(b"x")
    client.expect_closed()
    assert relay.events == ["closed"]


def test_a_silent_node_refuses_the_client_in_time(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    client, relay = relayed(cluster, clustered, answered=False)
    clustered.advance(9.9)
    client.expect_nothing()
    clustered.advance(0.2)
    assert client.expect(Connack).code == 0x88
    client.expect_closed()
    assert relay.events == ["closed"]


def test_an_answered_client_may_be_silent(cluster: ScriptedCluster, clustered: Harness) -> None:
    client, _ = relayed(cluster, clustered)
    clustered.advance(100_000)
    assert not client.closed
    assert client.connection.accepted


def test_a_drain_closes_relays(cluster: ScriptedCluster, clustered: Harness) -> None:
    client, relay = relayed(cluster, clustered)
    early, _ = relayed(cluster, clustered, answered=False)
    drained: list[bool] = []
    clustered.broker.drain("", lambda: drained.append(True))
    client.expect_closed()  # no DISCONNECT: it might end up within another packet
    assert early.expect(Connack).code == 0x88
    assert relay.events == ["closed"]
    assert drained == [True]


def test_relays_count_towards_the_connection_limit(cluster: ScriptedCluster) -> None:
    with Harness([cluster], config={"broker": {"max_connections": 1}}) as harness:
        relayed(cluster, harness)
        harness.open().expect_closed()


def test_a_reload_keeps_relays(cluster: ScriptedCluster, clustered: Harness) -> None:
    client, relay = relayed(cluster, clustered)
    clustered.reload({"broker": {"max_qos": 1}})
    client.send(Pingreq())
    assert relay.fed[-1] == b"\xc0\x00"
