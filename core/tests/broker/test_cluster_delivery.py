"""Test that waiting messages of shared subscriptions are offered to other nodes."""

from collections.abc import Iterator

import pytest
from hookmq.storage.records import group_owner
from hookmq_testing import ClusterRecorder, DurableStore, Harness

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
