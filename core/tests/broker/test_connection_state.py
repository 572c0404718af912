"""Test the state of a connection: its initial fields, and what is released when it ends."""

from collections.abc import Callable

import pytest
from hookmq.broker.connection_state import NO_MEMO, Phase
from hookmq.hooks.verdicts import Allow
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


def test_a_connection_that_publishes_nothing_has_no_memo_of_its_own(harness: Harness) -> None:
    one = harness.connect("one").connection
    assert one.memo is NO_MEMO
    assert not NO_MEMO
    assert (one.answers, one.held, one.parked, one.inbound_aliases) == (None, None, None, None)


def test_only_an_open_connection_is_accepted(harness: Harness) -> None:
    client = harness.connect("one")
    connection = client.connection
    assert connection.accepted
    client.drop()
    assert connection.phase is Phase.CLOSED
    assert not connection.accepted


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_end_of_a_connection_releases_everything_that_waits(
    broker_harness: Make, qos: int
) -> None:
    """Ending a connection releases everything that is waiting: a publish waiting for a plugin, and two packets held
    behind the publish.
    """
    recorder = HookRecorder("authorize", "on_publish")
    recorder.answer("authorize", Allow())
    harness = broker_harness(plugins=[recorder])
    before = len(harness.broker.state.deadlines)
    client = harness.connect("one")
    connection = client.connection
    client.publish("known", b"")
    assert harness.broker.state.remembered
    recorder.answer("on_publish", harness.clock.event())
    for _ in range(3):
        client.publish("t", b"", qos)
    assert connection.waiting
    assert len(connection.held or ()) == 2
    client.drop()
    assert (connection.waiting, connection.held, connection.answers) == (False, None, None)
    assert connection.decision is None
    assert harness.broker.state.remembered == 0
    assert len(harness.broker.state.deadlines) == before
