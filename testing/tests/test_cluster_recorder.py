"""Test the cluster that records calls and answers as a test decides."""

from hookmq.cluster_api import Cluster, Refused, Remote
from hookmq.model.subscription import Subscription
from hookmq.mqtt.packets import Puback
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import ClusterRecorder, Harness


def test_it_records_the_calls_of_the_broker() -> None:
    recorder: Cluster = ClusterRecorder()
    assert isinstance(recorder, ClusterRecorder)
    with Harness([recorder]) as harness:
        remote = Remote("other")
        recorder.node.add_remote(remote, Subscription("a/#", "a/#", 1))
        one = harness.connect("one")
        one.subscribe("b")
        one.publish("a/b", b"x", 1, expect=0)
        assert [call[0] for call in recorder.recorded if call[0] != "locate"] == [
            "claim", "subscribed", "settled", "forward", "flush",
        ]  # fmt: skip
        (name, message, route) = recorder.calls("forward")[0]
        assert (name, message.payload, route.matches[0].remote) == ("forward", b"x", remote)


def test_it_answers_when_the_test_lets_it() -> None:
    recorder = ClusterRecorder()
    with Harness([recorder]) as harness:
        recorder.node.add_remote(Remote("other"), Subscription("#", "#", 1))
        one = harness.connect("one")
        recorder.hold("flush", "settled")
        one.publish("a", b"x", 1)
        one.send_subscribe("a")
        one.expect_nothing()
        assert recorder.let_go() == 2
        one.expect(Puback)
        recorder.refused = Refused(ReasonCode.SERVER_BUSY, "elsewhere")
        harness.connect("two", expect=ReasonCode.SERVER_BUSY)
        assert recorder.let_go() == 0


def test_it_is_not_a_cluster_for_shared_subscriptions_unless_told() -> None:
    recorder = ClusterRecorder()
    recorder.groups_elsewhere.add("g/g/t")
    assert recorder.elsewhere("g/g/t")
    assert not recorder.elsewhere("g/h/t")
