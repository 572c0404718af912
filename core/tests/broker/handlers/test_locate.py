"""Test how a CONNECT finds the node of the cluster that has the client's session."""

from collections.abc import Callable, Iterator

import pytest
from hookmq.cluster_api import Here, Redirect, Refused, SendSocket, Transfer
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


class Process:
    """Another process of the machine. It takes clients if `takes` is true, and answers at once unless `waits`."""

    def __init__(self, takes: bool, waits: bool = False) -> None:
        self.takes = takes
        self.waits = waits
        self.asked: list[tuple[Peer, str]] = []
        self.sent: list[tuple[int, bytes]] = []
        self.answers: list[Callable[[SendSocket | None], None]] = []

    def ask(self, peer: Peer, scope: Scope, answered: Callable[[SendSocket | None], None]) -> None:
        self.asked.append((peer, scope.name))
        self.answers.append(answered)
        if not self.waits:
            self.answer()

    def answer(self, refuses: bool = False) -> None:
        self.answers.pop(0)(None if refuses else self.send)

    def send(self, descriptor: int, data: bytes) -> bool:
        self.sent.append((descriptor, data))
        return self.takes


def opened(harness: Harness, descriptor: int | None = 7) -> MemoryClient:
    """Return a client whose wire has a descriptor."""
    client = harness.open()
    client.wire.descriptor = descriptor  # type: ignore[attr-defined]
    return client


CONNECT = encode(Connect("c", 5, True, 30), 5)


@pytest.mark.parametrize("locating", [False, True])
@pytest.mark.parametrize("asking", [False, True])
def test_a_client_is_transferred_with_all_its_bytes(
    cluster: ScriptedCluster, clustered: Harness, locating: bool, asking: bool
) -> None:
    other = Process(True, asking)
    place = Transfer(other.ask, cluster.relaying)
    client = opened(clustered)
    cluster.place = None if locating else place
    data = CONNECT + encode(Pingreq(), 5)
    client.raw(data)
    if locating:
        client.raw(b"more")
        data += b"more"
        cluster.answer(place)
    assert other.asked == [(client.peer, client.scope.name)]
    if asking:
        client.raw(b"still more")
        data += b"still more"
        assert not other.sent
        other.answer()
    assert other.sent == [(7, data)]
    assert client.wire.aborted
    assert not client.wire.writes
    assert not clustered.broker.connections
    assert not cluster.relays
    assert not clustered.logged("connect.refused")


@pytest.mark.parametrize("why", ["no descriptor", "refused", "not sent"])
def test_a_client_that_cannot_be_transferred_is_relayed_or_stays(
    cluster: ScriptedCluster, clustered: Harness, why: str
) -> None:
    for otherwise, relays in ((cluster.relaying, 1), (Here(), 0)):
        other = Process(False, waits=True)
        cluster.place = Transfer(other.ask, otherwise)
        client = opened(clustered, None if why == "no descriptor" else 7)
        client.raw(CONNECT)
        if why == "no descriptor":
            assert not other.asked
        else:
            client.expect_nothing()
            other.answer(refuses=why == "refused")
        assert len(cluster.relays) == relays
        cluster.relays.clear()
        if not relays:
            assert client.expect(Connack).code == 0
            client.ping()
        assert len(other.sent) == (why == "not sent")


def test_a_client_that_leaves_while_the_other_process_is_asked(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    other = Process(True, waits=True)
    cluster.place = Transfer(other.ask, cluster.relaying)
    client = opened(clustered)
    client.raw(CONNECT)
    client.wire.descriptor = None  # type: ignore[attr-defined]
    client.drop()
    other.answer()
    assert not other.sent
    assert cluster.relays[0].events == ["closed"]
    assert not clustered.broker.connections


def test_a_silent_process_is_not_awaited_for_ever(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    other = Process(True, waits=True)
    cluster.place = Transfer(other.ask, Here())
    client = opened(clustered)
    client.raw(CONNECT)
    clustered.advance(client.scope.connect_timeout + 1)
    assert client.expect(Connack).code == ReasonCode.SERVER_UNAVAILABLE
    other.answer()
    assert not other.sent


def test_a_client_of_a_plugin_is_not_transferred(
    cluster: ScriptedCluster, clustered: Harness
) -> None:
    other = Process(True)
    cluster.place = Transfer(other.ask, Here())
    clustered.connect("c").ping()  # its wire has no socket
    assert not other.asked


@pytest.mark.parametrize("rest", [b"", encode(Pingreq(), 5)])
def test_a_relayed_client_may_send_before_it_is_located(
    cluster: ScriptedCluster, clustered: Harness, rest: bytes
) -> None:
    other = Process(True)
    wire = opened(clustered).wire
    connection = clustered.broker.accept(wire, clustered.open().peer, Scope(), relayed=True)
    cluster.place = None
    connection.feed(CONNECT + rest)
    connection.feed(encode(Pingreq(), 5))
    clustered.settle()
    assert not wire.writes
    cluster.answer(Transfer(other.ask, Here()))
    clustered.settle()
    answers = b"".join(write.data for write in wire.writes)
    assert answers[:1] == b"\x20"
    assert answers.count(b"\xd0\x00") == (2 if rest else 1)
    assert not other.asked
