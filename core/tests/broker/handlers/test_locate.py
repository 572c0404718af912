"""Test how a CONNECT finds the node of the cluster that has the client's session."""

from collections.abc import Iterator

import pytest
from hookmq.cluster_api import Here, Redirect, Refused, Transfer
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connack, Connect, Disconnect, Pingreq, Pingresp
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import ClientRequest, Peer, Scope
from hookmq_testing import Harness, MemoryClient
from scripted_cluster import ScriptedCluster

ELSEWHERE = Refused(ReasonCode.SERVER_BUSY, "being moved")


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster()


@pytest.fixture
def clustered(cluster: ScriptedCluster) -> Iterator[Harness]:
    with Harness([cluster]) as harness:
        yield harness


def asking(cluster: ScriptedCluster, harness: Harness, client_id: str = "c") -> MemoryClient:
    """Return a client whose CONNECT waits for the cluster."""
    cluster.place = None
    client = harness.connect(client_id, expect=None)
    client.expect_nothing()
    return client


def test_a_client_that_belongs_here_is_accepted(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    client = clustered.connect("c")
    client.ping()
    assert cluster.asked == ["c"]
    assert client.connection.relay is None


def test_the_client_waits_for_the_answer(cluster: ScriptedCluster, clustered: Harness) -> None:
    client = asking(cluster, clustered)
    cluster.answer(Here())
    assert client.expect(Connack).code == 0
    client.ping()
    assert client.connection.relay is None


@pytest.mark.parametrize(("version", "code"), [(5, 0x89), (4, 3), (3, 3)])
def test_a_client_is_refused(
    cluster: ScriptedCluster, clustered: Harness, version: int, code: int
) -> None:
    cluster.place = ELSEWHERE
    clustered.connect("c", version, expect=code)
    [logged] = clustered.logged("connect.refused")
    assert logged["reason"] == "being moved"
    assert not clustered.broker.connections


def test_a_client_is_refused_later(cluster: ScriptedCluster, clustered: Harness) -> None:
    client = asking(cluster, clustered)
    cluster.answer(ELSEWHERE)
    assert client.expect(Connack).code == 0x89
    client.expect_closed()


def test_packets_sent_meanwhile_are_handled_afterwards(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    watcher = clustered.connect("watcher")
    watcher.subscribe("a")
    client = asking(cluster, clustered)
    client.publish("a", b"1")
    client.raw(b"\xc0")
    watcher.expect_nothing()
    cluster.answer(Here())
    client.raw(b"\x00")
    assert client.expect(Connack).code == 0
    client.expect(Pingresp)
    watcher.expect_message("a", b"1")


def test_packets_in_the_segment_of_connect_are_handled(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    for place in (Here(), None):
        cluster.place = place
        client = clustered.open()
        packets = b"".join(encode(packet, 5) for packet in (client.connect, Pingreq()))
        client.raw(_named(packets))
        if place is None:
            client.expect_nothing()
            cluster.answer(Here())
        assert client.expect(Connack).code == 0
        client.expect(Pingresp)
        client.disconnect()


def _named(packets: bytes) -> bytes:
    """Return `packets` with the client id c in the CONNECT, which has none."""
    size = packets[1]
    return packets[:1] + bytes((size + 1,)) + packets[2 : size + 1] + b"\x01c" + packets[size + 2 :]


def test_a_client_that_says_goodbye_meanwhile_is_still_served(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    watcher = clustered.connect("watcher")
    watcher.subscribe("a")
    client = asking(cluster, clustered)
    client.publish("a", b"1")
    client.send(Disconnect(0))
    client.wire.lose()
    assert client.wire.connection is not None
    watcher.expect_nothing()
    cluster.answer(Here())
    watcher.expect_message("a", b"1")
    assert len(clustered.broker.connections) == 1
    assert list(clustered.broker.sessions) == ["watcher"]


def test_an_answer_after_the_end_is_ignored(cluster: ScriptedCluster, clustered: Harness) -> None:
    client = asking(cluster, clustered)
    client.connection.disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
    cluster.answer(Here())
    clustered.settle()
    assert not clustered.broker.sessions


def test_an_answer_that_never_comes_refuses_the_client(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    client = asking(cluster, clustered)
    clustered.advance(9.9)
    client.expect_nothing()
    clustered.advance(0.2)
    assert client.expect(Connack).code == 0x88
    client.expect_closed()
    assert not clustered.broker.connections


def test_a_closed_client_that_waits_for_an_answer_is_forgotten_in_time(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    asking(cluster, clustered).wire.lose()
    clustered.advance(10.1)
    assert not clustered.broker.connections


def test_reading_stops_above_the_limit_and_goes_on_after_the_answer(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    client = asking(cluster, clustered)
    client.publish("a", bytes(30_000))
    assert client.wire.reading
    client.publish("a", bytes(60_000))
    assert not client.wire.reading
    client.publish("a", bytes(60_000), qos=1)
    cluster.answer(Here())
    assert client.expect(Connack).code == 0
    assert client.wire.reading
    assert clustered.metrics.messages_received == 3


def test_no_question_for_an_assigned_or_a_local_client_id(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    clustered.connect("")
    assert cluster.asked == []
    clustered.connect("c", session_expiry_interval=60)
    clustered.connect("c", clean_start=True)
    assert cluster.asked == ["c"]


def test_an_invalid_client_costs_no_question(cluster: ScriptedCluster, clustered: Harness) -> None:
    clustered.connect("", 4, clean_start=False, expect=2)
    assert cluster.asked == []


def test_an_error_in_the_cluster_ends_the_connection(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    clustered.allow_errors = True
    client = asking(cluster, clustered)

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    cluster.answer(broken)  # type: ignore[arg-type]
    client.expect_closed()
    assert clustered.logged("internal.error")
    assert not clustered.broker.connections


def test_a_plugin_client_is_not_relayed(cluster: ScriptedCluster) -> None:
    with Harness([cluster]) as harness:
        told: list[BaseException | None] = []
        for place in (cluster.relaying, Redirect("b.example:1883", cluster.relaying), Here()):
            cluster.place = place
            request = harness.handle("cluster").connect(ClientRequest("inner"))
            harness.clock.spawn(request, lambda _, error: told.append(error))
            harness.settle()
        assert "another node" in str(told[0])
        assert str(told[1]) == str(told[0])
        assert told[2] is None
        assert cluster.relays == []


def test_a_relayed_client_is_not_relayed_again(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    cluster.place = cluster.relaying
    client = clustered.open()
    accept = clustered.broker.accept
    wire = client.wire
    wire.connection = client.connection = accept(wire, client.peer, client.scope, relayed=True)
    client.raw(_named(encode(client.connect, 5)))
    assert client.expect(Connack).code == ReasonCode.USE_ANOTHER_SERVER
    assert cluster.relays == []


@pytest.mark.parametrize(("version", "code"), [(5, 0x9C), (4, 3)])
def test_a_refused_client_learns_which_server_to_use(
    cluster: ScriptedCluster, clustered: Harness, version: int, code: int
) -> None:
    cluster.place = Refused(ReasonCode.USE_ANOTHER_SERVER, "drained", "b.example:1883")
    client = clustered.connect("c", version, expect=code)
    assert client.connack is not None
    reference = client.connack.properties.server_reference
    assert reference == ("b.example:1883" if version == 5 else None)


def test_a_refused_claim_names_the_server(cluster: ScriptedCluster, clustered: Harness) -> None:
    cluster.refused = Refused(ReasonCode.USE_ANOTHER_SERVER, "drained", "b.example:1883")
    client = clustered.connect("c", expect=0x9C)
    assert client.connack is not None
    assert client.connack.properties.server_reference == "b.example:1883"


def test_an_mqtt5_client_is_redirected(cluster: ScriptedCluster, clustered: Harness) -> None:
    cluster.place = Redirect("b.example:1883", cluster.relaying)
    client = clustered.connect("c", expect=0x9C)
    assert client.connack is not None
    assert client.connack.properties.server_reference == "b.example:1883"
    assert cluster.relays == []


def test_an_older_client_is_relayed_instead(cluster: ScriptedCluster, clustered: Harness) -> None:
    cluster.place = Redirect("b.example:1883", cluster.relaying)
    client = clustered.connect("c", version=4, expect=None)
    client.expect_nothing()
    [relay] = cluster.relays
    assert relay.received


class Transfers:
    """The other process: it takes clients if `takes` is true."""

    def __init__(self, takes: bool) -> None:
        self.takes = takes
        self.sent: list[tuple[int, str, bytes]] = []

    def send(self, descriptor: int, peer: Peer, scope: Scope, data: bytes) -> bool:
        self.sent.append((descriptor, scope.name, data))
        return self.takes


@pytest.mark.parametrize("waits", [False, True])
def test_a_client_is_transferred_with_all_its_bytes(
    cluster: ScriptedCluster, clustered: Harness, waits: bool
) -> None:
    other = Transfers(True)
    place = Transfer(other.send, cluster.relaying)
    client = clustered.open()
    client.wire.descriptor = 7  # type: ignore[attr-defined]
    cluster.place = None if waits else place
    data = encode(Connect("c", 5, True, 30), 5) + encode(Pingreq(), 5)
    client.raw(data)
    if waits:
        client.raw(b"more")
        data += b"more"
        cluster.answer(place)
    assert other.sent == [(7, client.scope.name, data)]
    assert client.wire.aborted
    assert not client.wire.writes
    assert not clustered.broker.connections
    assert not cluster.relays
    assert not clustered.logged("connect.refused")


@pytest.mark.parametrize("descriptor", [None, 7])
def test_a_client_that_cannot_be_transferred_is_relayed_or_stays(
    cluster: ScriptedCluster, clustered: Harness, descriptor: int | None
) -> None:
    other = Transfers(False)
    for otherwise, relays in ((cluster.relaying, 1), (Here(), 0)):
        cluster.place = Transfer(other.send, otherwise)
        client = clustered.open()
        client.wire.descriptor = descriptor  # type: ignore[attr-defined]
        client.raw(encode(Connect("c", 5, True, 30), 5))
        assert len(cluster.relays) == relays
        cluster.relays.clear()
        if not relays:
            assert client.expect(Connack).code == 0
            client.ping()
    assert len(other.sent) == (0 if descriptor is None else 2)


def test_a_client_of_a_plugin_is_not_transferred(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    other = Transfers(True)
    cluster.place = Transfer(other.send, Here())
    clustered.connect("c").ping()  # its wire has no socket
    assert not other.sent
