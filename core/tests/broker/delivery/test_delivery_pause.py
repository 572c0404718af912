"""Test deliveries above a client's rate limit. They wait in order until the limit allows them."""

import pytest
from hookmq_testing import Harness
from limiters import Measure, Metering, Slope


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("shared", ["", "$share/g/"])
def test_deliveries_wait_in_order(qos: int, shared: str) -> None:
    slope = Slope()
    with Harness([Metering(Measure(None, slope))]) as harness:
        client = harness.connect("measured")
        slope.tokens = 2
        client.subscribe(shared + "a", qos)
        other = harness.connect("other")
        for number in range(6):
            other.publish("a", b"%d" % number, qos)
        assert [m.payload for m in client.messages] == [b"0", b"1"]
        slope.let(3)
        assert [m.payload for m in client.messages] == [b"0", b"1", b"2", b"3", b"4"]
        slope.let(3)
        harness.settle()
        assert [m.payload for m in client.messages][-1] == b"5"
        session = harness.broker.state.sessions["measured"]
        assert (session.paused, slope.tokens) == (0, 2)


def test_waiting_messages_remain_for_a_client_that_reconnects() -> None:
    slope = Slope()
    with Harness([Metering(Measure(None, slope))]) as harness:
        client = harness.connect("measured", session_expiry_interval=60)
        client.subscribe("a", 1)
        harness.connect("other").publish("a", b"x", 1)
        assert len(slope.waiting) == 1
        client.drop()
        assert not slope.waiting
        assert harness.broker.state.sessions["measured"].paused == 0
        slope.tokens = 1
        client.reconnect()
        assert [m.payload for m in client.messages] == [b"x"]
