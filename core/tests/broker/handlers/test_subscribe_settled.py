"""Test that SUBACK waits until the other nodes of a cluster know the subscriptions."""

from collections.abc import Callable

import pytest
from hookmq.mqtt.packets import Puback, Suback
from hookmq_testing import ClusterRecorder, Harness, SlowStore

Make = Callable[..., Harness]


@pytest.fixture
def cluster() -> ClusterRecorder:
    return ClusterRecorder()


def test_suback_waits(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    cluster.hold("settled")
    sub.send_subscribe(["t", "u"], 1)
    sub.expect_nothing()
    assert [call[0] for call in cluster.calls("subscribed", "settled")] == [
        "subscribed", "subscribed", "settled",
    ]  # fmt: skip
    pub.publish("t", b"x", 1, expect=0)  # other answers do not wait, and it is delivered here
    sub.expect_message("t", b"x")
    cluster.let_go()
    assert sub.expect(Suback).codes == (1, 1)


def test_suback_does_not_wait_if_all_nodes_know(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    assert harness.connect("sub").subscribe("t").codes == (0,)
    assert len(cluster.calls("settled")) == 1


def test_suback_waits_for_both_the_nodes_and_the_commit(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    for cluster_first in (True, False):
        recorder = ClusterRecorder()
        store = SlowStore(slow=False)
        with Harness([recorder], store=store) as harness:
            sub = harness.connect("sub", session_expiry_interval=60)
            store.slow = True
            recorder.hold("settled")
            sub.send_subscribe("t", 1)
            steps: list[Callable[[], object]] = [recorder.let_go, store.finish]
            for step in steps if cluster_first else reversed(steps):
                sub.expect_nothing()
                step()
            sub.expect(Suback)


def test_retained_messages_follow_suback(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    harness.connect("pub").publish("t", b"kept", retain=True)
    sub = harness.connect("sub")
    cluster.hold("settled")
    sub.send_subscribe("t")
    sub.expect_nothing()
    cluster.let_go()
    harness.settle()
    assert [type(packet).__name__ for packet in sub.unread] == ["Suback", "Publish"]


def test_answers_keep_their_order(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    both = harness.connect("both")
    cluster.hold("settled")
    both.send_subscribe("t")
    both.publish("u", b"", 1)
    both.expect_nothing()
    cluster.let_go()
    harness.settle()
    assert [type(packet) for packet in both.unread] == [Suback, Puback]


def test_a_client_that_left_meanwhile(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    sub = harness.connect("sub", session_expiry_interval=60)
    cluster.hold("settled")
    sub.send_subscribe("t")
    sub.drop()
    cluster.let_go()
    sub.reconnect()
    sub.expect_nothing()
