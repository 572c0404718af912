"""Test that an accepted client is claimed in the cluster before its session is opened."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.clients import ClientRequest
from hookmq.hooks.verdicts import Accept
from hookmq.mqtt.packets import Connack, Puback, Publish
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster import Refused
from hookmq.storage.records import PutSession
from hookmq_testing import ClusterRecorder, Harness, HookRecorder, SlowStore

Make = Callable[..., Harness]
BUSY = Refused(ReasonCode.SERVER_BUSY, "connected elsewhere")


@pytest.fixture
def cluster() -> ClusterRecorder:
    return ClusterRecorder()


def claims(cluster: ClusterRecorder) -> list[tuple[str, bool]]:
    return [(client.client_id, durable) for _, client, durable in cluster.calls("claim")]


@pytest.mark.parametrize(
    ("options", "durable"),
    [
        ({}, False),
        ({"clean_start": False}, False),
        ({"session_expiry_interval": 60}, True),
        ({"session_expiry_interval": 60, "clean_start": False}, True),
        ({"version": 4}, False),
        ({"version": 4, "clean_start": False}, True),
    ],
)
def test_a_new_client(
    broker_harness: Make, cluster: ClusterRecorder, options: Any, durable: bool
) -> None:
    harness = broker_harness([cluster])
    harness.connect("one", **options)
    assert claims(cluster) == [("one", durable)]


def test_a_session_that_exists_counts(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    one = harness.connect("one", session_expiry_interval=60)
    one.reconnect(session_expiry_interval=0)  # it exists, and outlived its connection
    assert one.session_present
    one.drop()
    one.reconnect(session_expiry_interval=0)
    assert claims(cluster) == [("one", True), ("one", True), ("one", False)]


def test_the_expiry_is_the_one_that_is_granted(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster], config={"session": {"max_expiry": 0}})
    harness.connect("one", session_expiry_interval=60)
    assert claims(cluster) == [("one", False)]


def test_nothing_happens_until_the_answer(broker_harness: Make, cluster: ClusterRecorder) -> None:
    store = SlowStore(slow=False)
    harness = broker_harness([cluster], store=store)
    old = harness.connect("one", session_expiry_interval=60)
    cluster.hold("claim")
    commits = len(store.committed)
    new = harness.connect("one", session_expiry_interval=60, expect=None)
    new.send(Publish("t", b"early", 1, packet_id=3))
    new.expect_nothing()
    old.expect_nothing()
    assert len(store.committed) == commits
    cluster.let_go()
    assert new.expect(Connack).code == 0
    assert new.expect(Puback).packet_id == 3
    old.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("version", "code"), [(5, 0x89), (4, 3)])
def test_a_refused_client(
    broker_harness: Make, cluster: ClusterRecorder, late: bool, version: int, code: int
) -> None:
    observer = HookRecorder("on_auth_failed", "on_session")
    store = SlowStore(slow=False)
    harness = broker_harness([cluster, observer], store=store)
    cluster.refused = BUSY
    if late:
        cluster.hold("claim")
    one = harness.connect("one", version, expect=None, clean_start=False)
    cluster.let_go()
    answer = one.expect(Connack)
    assert answer.code == code
    if version == 5:
        assert answer.properties.reason_string == "connected elsewhere"
    one.expect_closed()
    assert harness.broker.state.sessions == {}
    assert store.records(PutSession) == []
    assert [call.hook for call in observer.calls()] == ["on_auth_failed"]


def test_a_refused_client_leaves_the_session_as_it_is(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    old = harness.connect("one", session_expiry_interval=60)
    cluster.refused = BUSY
    harness.connect("one", expect=BUSY.code)
    old.ping()


def test_a_client_that_left_meanwhile(broker_harness: Make, cluster: ClusterRecorder) -> None:
    store = SlowStore(slow=False)
    harness = broker_harness([cluster], store=store)
    cluster.hold("claim")
    one = harness.connect("one", session_expiry_interval=60, expect=None)
    one.drop()
    cluster.let_go()
    harness.settle()
    assert harness.broker.state.sessions == {}
    assert store.records(PutSession) == []
    assert len(harness.broker.connections) == 0


def test_a_claim_that_is_never_answered(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    cluster.hold("claim")
    one = harness.connect("one", expect=None)
    harness.advance(60)
    assert one.expect(Connack).code == ReasonCode.SERVER_UNAVAILABLE
    one.expect_closed()
    cluster.let_go()
    harness.settle()
    assert harness.broker.state.sessions == {}


def test_an_internal_error_after_the_answer_ends_the_connection(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    harness.allow_errors = True
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("$share/g/t")
    one.drop()
    failures = [RuntimeError("broken")]

    def online(owner: str, members: int) -> None:
        if failures:
            raise failures.pop()

    cluster.online = online  # type: ignore[method-assign]
    cluster.hold("claim")
    one.reconnect(expect=None)
    cluster.let_go()
    one.expect_closed()
    assert [fields["error"] for fields in harness.logged("internal.error")] == [
        "RuntimeError('broken')"
    ]


def test_an_error_of_the_cluster_ends_the_connection(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    def claim(*arguments: Any) -> None:
        raise RuntimeError("broken")

    harness = broker_harness([cluster])
    harness.allow_errors = True
    cluster.claim = claim  # type: ignore[method-assign,assignment]
    one = harness.connect("one", expect=None)
    one.expect_closed()
    assert harness.logged("internal.error")


def test_two_connections_are_claimed_at_the_same_time(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster])
    cluster.hold("claim")
    first = harness.connect("one", expect=None)
    second = harness.connect("one", expect=None)
    assert cluster.let_go() == 2
    assert first.expect(Connack).code == second.expect(Connack).code == 0
    first.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    second.ping()


def test_a_client_that_may_not_take_over_is_not_claimed(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    """Otherwise it would disconnect the client of that name from other nodes."""
    harness = broker_harness([cluster], config={"broker": {"duplicate_client_id": "reject"}})
    one = harness.connect("one")
    harness.connect("one", expect=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
    assert len(claims(cluster)) == 1
    one.ping()


def test_a_client_with_the_id_of_another_user_is_not_claimed(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    users = HookRecorder("on_connect")
    users.answer("on_connect", lambda client: Accept(identity=client.username))
    harness = broker_harness([users, cluster])
    one = harness.connect("one", username="owner")
    harness.connect("one", username="other", expect=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
    assert len(claims(cluster)) == 1
    one.ping()


def test_a_client_that_connected_during_the_claim_is_not_taken_over_if_that_is_forbidden(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    harness = broker_harness([cluster], config={"broker": {"duplicate_client_id": "reject"}})
    cluster.hold("claim")
    first = harness.connect("one", expect=None)
    second = harness.connect("one", expect=None)
    cluster.let_go()
    assert first.expect(Connack).code == 0
    assert second.expect(Connack).code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    first.ping()


def test_connections_that_keep_taking_over_are_claimed_after_the_pause(
    broker_harness: Make, cluster: ClusterRecorder
) -> None:
    config = {"broker": {"flapping_takeovers": 1, "flapping_delay": 5.0}}
    harness = broker_harness([cluster], config=config)
    for _ in range(2):
        harness.connect("one")
    cluster.recorded.clear()
    third = harness.connect("one", expect=None)
    third.expect_nothing()
    assert claims(cluster) == []
    harness.advance(5)
    assert third.expect(Connack).code == 0
    assert claims(cluster) == [("one", False)]


def test_the_client_of_a_plugin_is_claimed(broker_harness: Make, cluster: ClusterRecorder) -> None:
    harness = broker_harness([cluster])
    harness.handle("cluster").connect(ClientRequest("inner"))
    harness.settle()
    assert claims(cluster) == [("inner", False)]
