"""Test that packets of other nodes are delivered, and that waiting messages of shared subscriptions are offered to
other nodes."""

from collections.abc import Iterator
from typing import Any

import pytest
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Publish
from hookmq.mqtt.properties import Properties
from hookmq.storage.records import group_owner
from hookmq_testing import ClusterRecorder, DurableStore, Harness, HookRecorder

OWNER = group_owner("g", "t")
COUNT = 300
"""More messages than go to other nodes in one turn."""


@pytest.fixture
def cluster() -> ClusterRecorder:
    return ClusterRecorder()


@pytest.fixture
def harness(cluster: ClusterRecorder) -> Iterator[Harness]:
    """Return a broker of a cluster, with messages that wait for a member of a shared subscription."""
    with Harness([cluster], store=DurableStore()) as harness:
        member = harness.connect("m", session_expiry_interval=3600)
        member.subscribe("$share/g/t", 1)
        member.disconnect()
        publisher = harness.connect("p")
        for number in range(COUNT):
            publisher.publish("t", b"%d" % number, 1)
        yield harness


def offered(cluster: ClusterRecorder) -> list[bytes]:
    """Return the payloads that were offered to other nodes."""
    return [message.payload for _, _, message in cluster.calls("hand_on")]


def test_messages_wait_if_no_other_node_has_a_member(
    cluster: ClusterRecorder, harness: Harness
) -> None:
    cluster.node.hand_on(OWNER)
    harness.settle()
    assert offered(cluster) == [b"0"]
    back = harness.connect("m", session_expiry_interval=3600, clean_start=False)
    harness.settle()
    assert [one.payload for one in back.messages] == [b"%d" % number for number in range(COUNT)]


def test_all_messages_go_to_another_node_in_order(
    cluster: ClusterRecorder, harness: Harness
) -> None:
    cluster.groups_elsewhere.add(OWNER)
    cluster.node.hand_on(OWNER)
    harness.settle()
    assert offered(cluster) == [b"%d" % number for number in range(COUNT)]
    back = harness.connect("m", session_expiry_interval=3600, clean_start=False)
    harness.settle()
    assert back.messages == []
    assert harness.broker.state.queued_bytes == 0


def test_a_member_here_keeps_the_messages(cluster: ClusterRecorder, harness: Harness) -> None:
    back = harness.connect("m", session_expiry_interval=3600, clean_start=False)
    cluster.groups_elsewhere.add(OWNER)
    cluster.node.hand_on(OWNER)
    harness.settle()
    assert offered(cluster) == []
    assert len(back.messages) == COUNT


def test_messages_of_a_member_that_leaves_are_offered(
    cluster: ClusterRecorder, harness: Harness
) -> None:
    back = harness.connect(
        "m", session_expiry_interval=3600, clean_start=False, receive_maximum=9, auto_ack=False
    )
    cluster.groups_elsewhere.add(OWNER)
    back.drop()
    harness.settle()
    assert len(offered(cluster)) == COUNT


def test_an_unknown_shared_subscription_is_ignored(
    cluster: ClusterRecorder, harness: Harness
) -> None:
    cluster.node.hand_on(group_owner("g", "other/#"))
    assert offered(cluster) == []


# packets of other nodes ----------------------------------------------------------------------------------------------


def packets(version: int, *payloads: bytes, topic: str = "t/1", **properties: Any) -> bytes:
    given = Properties(**properties)
    return b"".join(encode(Publish(topic, one, properties=given), version) for one in payloads)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("others", [True, False])
def test_packets_reach_the_sessions_of_all_versions_in_order(
    cluster: ClusterRecorder, version: int, others: bool
) -> None:
    with Harness([cluster]) as harness:
        receivers = [harness.connect(f"c{n}", version=v) for n, v in enumerate((version, version))]
        if others:
            receivers.append(harness.connect("other", version=9 - version))
        for receiver in receivers:
            receiver.subscribe("t/#", 1)
        data = packets(version, b"0", b"1") + packets(version, b"no", topic="u")
        cluster.node.deliver_packets("sender", version == 5, data + packets(version, b"2"), None)
        cluster.node.flush()
        harness.settle()
        for receiver in receivers:
            assert [one.payload for one in receiver.messages] == [b"0", b"1", b"2"]
            assert {(one.topic, one.qos, one.retain) for one in receiver.messages} == {
                ("t/1", 0, False)
            }
        assert harness.metrics.messages_delivered == 3 * len(receivers)
        assert cluster.calls("forward") == []


def test_packets_keep_their_properties_and_their_sender(cluster: ClusterRecorder) -> None:
    plugin = HookRecorder("on_deliver")
    with Harness([cluster, plugin]) as harness:
        receiver = harness.connect("c")
        receiver.subscribe("t/1", identifier=7)
        data = packets(5, b"x", content_type="text", message_expiry_interval=60)
        cluster.node.deliver_packets("sender", True, data, None)
        cluster.node.flush()
        harness.settle()
        [got] = receiver.messages
        assert got.properties.content_type == "text"
        assert got.properties.message_expiry_interval == 60
        [call] = plugin.calls("on_deliver")
        assert (call.message.sender, call.message.origin, call.message.qos) == (
            "sender", "client", 0,
        )  # fmt: skip
        assert call.message.expires_at == call.message.received_at + 60


def test_a_slow_session_gets_packets_later_and_an_offline_one_none(
    cluster: ClusterRecorder,
) -> None:
    with Harness([cluster], store=DurableStore()) as harness:
        slow, quick = harness.connect("slow", high_water=50), harness.connect("quick")
        gone = harness.connect("gone", session_expiry_interval=60)
        for one in (slow, quick, gone):
            one.subscribe("t/1", 1)
        gone.disconnect()
        slow.pause()
        expected = [b"%d" % number + bytes(100) for number in range(5)]
        for payload in expected:
            cluster.node.deliver_packets("sender", True, packets(5, payload), None)
            cluster.node.flush()
            harness.settle()
        assert [one.payload for one in quick.messages] == expected
        slow.resume()
        harness.settle()
        assert [one.payload for one in slow.messages] == expected
        assert harness.metrics.messages_delivered == 10


def test_packets_reach_only_wanted_sessions(cluster: ClusterRecorder) -> None:
    with Harness([cluster], store=DurableStore()) as harness:
        clients = [harness.connect(f"c{n}", session_expiry_interval=60 * n) for n in range(2)]
        asked: list[tuple[str, bool, int]] = []

        def wanted(client_id: str, durable: bool, qos: int) -> bool:
            asked.append((client_id, durable, qos))
            return client_id == "c1"

        for qos, one in enumerate(clients):
            one.subscribe("t/1", qos)
        cluster.node.deliver_packets("sender", True, packets(5, b"0", b"1"), wanted)
        cluster.node.flush()
        harness.settle()
        assert [[one.payload for one in two.messages] for two in clients] == [[], [b"0", b"1"]]
        assert sorted(asked) == [("c0", False, 0)] * 2 + [("c1", True, 1)] * 2


def test_packets_follow_a_large_fan_out(cluster: ClusterRecorder) -> None:
    with Harness([cluster], config={"broker": {"fan_out_batch": 2}}) as harness:
        clients = [harness.connect(f"c{number}") for number in range(7)]
        for one in clients:
            one.subscribe("t/1")
        with harness.together():
            for number in range(3):
                cluster.node.deliver_packets("sender", True, packets(5, b"%d" % number), None)
            cluster.node.flush()
        harness.settle()
        for one in clients:
            assert [message.payload for message in one.messages] == [b"0", b"1", b"2"]


def test_the_packets_before_a_damaged_one_are_delivered(cluster: ClusterRecorder) -> None:
    with Harness([cluster]) as harness:
        receiver = harness.connect("c")
        receiver.subscribe("t/1")
        good = packets(5, b"x")
        for bad in (good[:-1], good[:1], b"\x31" + good[1:], b"\x30\xff\xff\xff\xff\x01"):
            with pytest.raises(ProtocolError):
                cluster.node.deliver_packets("sender", True, good + bad, None)
        cluster.node.flush()
        harness.settle()
        assert [one.payload for one in receiver.messages] == [b"x"] * 4
