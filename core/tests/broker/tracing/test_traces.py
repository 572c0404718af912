"""Test which clients and messages a trace follows, and that a finished trace leaves nothing behind."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.tracing import timed_calls, traces, visit
from hookmq.plugin import (
    Allow,
    Connect,
    Deny,
    PluginError,
    Trace,
    TraceEvent,
    TraceKind,
    TraceRequest,
)
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


@pytest.fixture
def plugin() -> HookRecorder:
    return HookRecorder("on_connect", "authorize", "on_publish", id="p")


@pytest.fixture
def harness(broker_harness: Make, plugin: HookRecorder) -> Harness:
    return broker_harness(plugins=[plugin])


def start(harness: Harness, **wanted: Any) -> Trace:
    return harness.handle("p").trace(TraceRequest(**wanted))


def read(harness: Harness, trace: Trace) -> list[TraceEvent]:
    """Stop a trace, and return its events."""
    trace.stop()
    found: list[TraceEvent] = []

    async def reading() -> None:
        found.extend([event async for event in trace])

    harness.clock.spawn(reading(), lambda *_: None)
    harness.settle()
    return found


def names(events: list[TraceEvent]) -> list[tuple[str, str, str | None]]:
    return [(one.kind, one.name, one.client_id) for one in events]


@pytest.mark.parametrize(
    "wanted", [{"client_id": "new"}, {"username": "ann"}, {"address": "192."}, {"client_id": "new", "username": "ann"}]
)  # fmt: skip
def test_a_client_that_connects_later(harness: Harness, wanted: dict[str, str]) -> None:
    if "address" in wanted:
        wanted = {"address": str(harness.connect("x").wire.connection.peer.host)}  # type: ignore[union-attr]
    trace = start(harness, **wanted)
    other = {} if "address" in wanted else {"username": "bob"}
    if other:
        harness.connect("other", **other)  # type: ignore[arg-type]
    harness.connect("new", username="ann", password=b"s3cr3t")
    found = [one for one in read(harness, trace) if one.client_id == "new"]
    assert names(found)[:4] == [
        ("received", "CONNECT", "new"), ("hook", "on_connect", "new"), ("event", "on_session", "new"),
        ("sent", "CONNACK", "new"),
    ]  # fmt: skip
    assert "s3cr3t" not in repr(found)
    assert "ann" not in repr(found)
    assert not harness.broker.state.on_accept


def test_a_refused_client(harness: Harness, plugin: HookRecorder) -> None:
    plugin.answer("on_connect", Deny(reason="no", rule="line 7"))
    first, second = start(harness, client_id="new"), start(harness, client_id="new")
    harness.connect("new", expect=0x87)
    for trace in (first, second):
        found = read(harness, trace)
        assert names(found) == [
            ("received", "CONNECT", "new"), ("hook", "on_connect", "new"), ("sent", "CONNACK", "new"),
            ("event", "closed", "new"),
        ]  # fmt: skip
        assert found[1].fields["rule"] == "line 7"


def test_a_topic_of_all_clients(harness: Harness, plugin: HookRecorder) -> None:
    publisher, sub = harness.connect("a"), harness.connect("b")
    sub.subscribe("t/#")
    for topic in ("t/1", "u"):
        for _ in range(2):
            publisher.publish(topic)
    connection: Any = harness.broker.sessions["a"].connection
    assert set(connection.memo) == {b"t/1", b"u"}
    trace = start(harness, filter="t/+")
    for _ in range(2):
        publisher.publish("t/1", b"xy")
        publisher.publish("u")
    assert set(connection.memo) == {b"u"}  # other topics still take the fast path
    found = read(harness, trace)
    assert {one.topic for one in found} == {"t/1"}
    assert names(found) == [
        ("hook", "authorize", "a"), ("hook", "on_publish", "a"), ("route", "published", "a"),
        ("hook", "on_publish", "a"), ("route", "published", "a"),  # the verdict of `authorize` is cached
    ]  # fmt: skip
    assert found[2].fields == {
        "matched": 1, "qos": 0, "retain": False, "origin": "client", "payload_bytes": 2, "groups": [], "journals": [],
        "recipients": [{"client_id": "b", "filter": "t/#", "qos": 0, "online": True}],
    }  # fmt: skip
    publisher.publish("t/1")
    assert set(connection.memo) == {b"t/1"}


def test_why_a_message_was_dropped(harness: Harness, plugin: HookRecorder) -> None:
    publisher = harness.connect("a")
    offline = harness.connect("b", clean_start=False, session_expiry_interval=60)
    offline.subscribe("t", qos=1)
    offline.disconnect()
    trace, by_client = start(harness, filter="t"), start(harness, client_id="a")
    publisher.publish("t")
    plugin.answer("authorize", Deny(rule="line 9"))
    publisher.publish("t", retain=True)
    for found in (read(harness, trace), read(harness, by_client)):
        assert {one.fields["plugin"] for one in found if one.kind is TraceKind.HOOK} == {"p"}
        drops = [one for one in found if one.kind is TraceKind.DROP]
        assert [(one.name, one.fields["direction"]) for one in drops] == [
            ("offline_qos0", "out"), ("denied", "in"),
        ]  # fmt: skip
        assert drops[0].fields["sender"] == "a"
        assert drops[1].fields["detail"] == "p: line 9"
        denied = [one for one in found if one.name == "on_denied"]
        assert [one.fields["rule"] for one in denied] == ["p: line 9"]


def test_the_calls_of_one_plugin(broker_harness: Make) -> None:
    harness = broker_harness(
        plugins=[HookRecorder("on_publish", id="p"), HookRecorder("on_publish", id="q")]
    )
    trace = start(harness, plugin="q")
    harness.connect("a").publish("t")
    found = read(harness, trace)
    assert [(one.name, one.fields["plugin"]) for one in found] == [("on_publish", "q")]


def test_a_trace_of_topics_sees_cached_decisions_again(
    harness: Harness, plugin: HookRecorder
) -> None:
    plugin.answer("authorize", Allow())
    publisher = harness.connect("a")
    publisher.publish("t")
    trace = start(harness, filter="t")
    publisher.publish("t")
    publisher.publish("t")
    assert [one.name for one in read(harness, trace)].count("authorize") == 1


def test_traces_survive_a_reload(harness: Harness, plugin: HookRecorder) -> None:
    publisher = harness.connect("a")
    wide, narrow = start(harness, filter="t"), start(harness, client_id="a")
    harness.reload(plugins=[plugin])
    publisher.publish("t")
    assert "on_publish" in [one.name for one in read(harness, narrow)]
    assert "published" in [one.name for one in read(harness, wide)]
    assert harness.broker.state.hooks.wrapping is None
    publisher.publish("t")
    publisher.publish("t")
    connection: Any = harness.broker.sessions["a"].connection
    assert connection.memo


def test_observers_get_the_same_events_during_a_trace(broker_harness: Make) -> None:
    plugin = HookRecorder("on_published", "on_denied", id="p")
    harness = broker_harness(plugins=[plugin])
    publisher = harness.connect("a")
    trace = start(harness, filter="t")
    publisher.publish("t")
    publisher.publish("u")
    read(harness, trace)
    publisher.publish("t")
    assert [call.message.topic for call in plugin.calls("on_published")] == ["t", "u", "t"]


def test_nothing_remains_when_the_last_trace_has_ended(harness: Harness) -> None:
    state = harness.broker.state
    harness.connect("a")
    before = (state.observed, state.on_drop, state.on_accept, state.wrap_chains, state.notify)
    chains = state.chains("tcp")
    kept = state.hooks.plugins[0].kept
    for wanted in ({"filter": "t"}, {"client_id": "a"}, {"plugin": "p"}):
        trace = start(harness, **wanted)
        assert len(kept.farewells) == 1
        harness.advance(60)
        assert trace.ended == "the time is over"
        assert kept.farewells == []
        assert before == (
            state.observed, state.on_drop, state.on_accept, state.wrap_chains, state.notify,
        )  # fmt: skip
        assert state.chains("tcp").on_publish == chains.on_publish or wanted


def test_a_trace_ends_with_its_plugin(harness: Harness) -> None:
    trace = start(harness, filter="t")
    harness.broker.state.hooks.plugins[0].kept.leave()
    assert trace.ended == "the plugin has ended"
    with pytest.raises(PluginError, match="the plugin has ended"):
        start(harness, filter="t")


def test_the_number_of_traces_and_connections_is_limited(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(traces, "MAX_TRACES", 2)
    trace, other = start(harness, username="ann"), start(harness, filter="t")
    with pytest.raises(PluginError, match="2 traces are running"):
        start(harness, filter="u")
    first = harness.connect("a", username="ann")
    harness.connect("b", username="ann").disconnect()
    first.disconnect()
    harness.connect("c", username="ann")
    assert {one.client_id for one in read(harness, trace)} == {"a", "c"}
    other.stop()


def test_an_invalid_filter(harness: Harness) -> None:
    with pytest.raises(PluginError, match="cannot trace"):
        start(harness, filter="a/#/b")


def test_switching_an_observer_does_not_end_a_trace(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_dropped", id="p")])
    trace = start(harness, filter="t")
    harness.handle("p").observe("on_dropped", False)
    harness.connect("a").publish("t")
    assert [one.name for one in read(harness, trace)] == ["published"]


# slices ----------------------------------------------------------------------------------------------------------


class Turns:
    """Counts the connections that traces visit in each turn."""

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(visit, "SLICE", 2)
        self.now = 0
        self.visits: Counter[int] = Counter()
        original = visit.Visit.run
        turns = self

        def run(self: Any) -> None:
            turns.now += 1
            called = self._visit

            def count(connection: Any) -> None:
                turns.visits[turns.now] += 1
                called(connection)

            self._visit = count
            original(self)
            self._visit = called

        monkeypatch.setattr(visit.Visit, "run", run)


def chained(harness: Harness) -> set[str]:
    """Return the ids of the clients whose chains are recorded."""
    state = harness.broker.state
    return {
        client_id
        for client_id, session in state.sessions.items()
        if session.connection is not None
        and any(
            isinstance(call.function, timed_calls._TimedFunction)
            for call in session.connection.chains.on_publish
        )
    }


@pytest.mark.parametrize("wanted", [{"filter": "t"}, {"plugin": "p"}])
def test_a_trace_of_topics_starts_and_ends_in_slices(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str]
) -> None:
    clients = [harness.connect(f"c{number}") for number in range(5)]
    turns = Turns(harness, monkeypatch)
    trace = start(harness, **wanted)
    assert len(chained(harness)) == 2
    # A new client has the recorded chains from the beginning.
    clients.append(harness.connect("new"))
    assert "new" in chained(harness)
    harness.settle()
    assert chained(harness) == {"c0", "c1", "c2", "c3", "c4", "new"}
    for client in clients:
        client.publish("t")
    trace.stop()
    assert len(chained(harness)) == 4
    harness.settle()
    assert chained(harness) == set()
    publishers = {one.client_id for one in read(harness, trace) if one.name == "on_publish"}
    assert publishers == {"c0", "c1", "c2", "c3", "c4", "new"}
    assert list(turns.visits.values()) == [2, 2, 1, 2, 2, 2]


def test_a_trace_of_clients_looks_for_them_in_slices(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [harness.connect(f"c{number}", username="ann") for number in range(5)]
    turns = Turns(harness, monkeypatch)
    trace, second = start(harness, username="ann"), start(harness, client_id="c4")
    state = harness.broker.state
    new = harness.connect("new", username="ann")
    harness.settle()
    for client in (*clients, new):
        client.publish("t")
    found = read(harness, trace)
    assert [one.client_id for one in found if one.name == "PUBLISH"] == [
        "c0", "c1", "c2", "c3", "c4", "new",
    ]  # fmt: skip
    assert [one.name for one in read(harness, second)].count("PUBLISH") == 1
    assert set(turns.visits.values()) == {1, 2}
    assert sum(turns.visits.values()) == 10
    assert state.on_accept is None


@pytest.mark.parametrize("wanted", [{"filter": "t"}, {"username": "ann"}])
def test_a_trace_that_ends_while_it_starts_leaves_nothing_behind(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str]
) -> None:
    clients = [harness.connect(f"c{number}", username="ann") for number in range(5)]
    connections: list[Any] = [one.connection for one in harness.broker.sessions.values()]
    before = [(one.table, one.wire, one.on_end) for one in connections]
    turns = Turns(harness, monkeypatch)
    trace = start(harness, **wanted)
    trace.stop()
    harness.settle()
    assert turns.visits[1] == 2
    assert max(turns.visits.values()) == 2
    assert [(one.table, one.wire, one.on_end) for one in connections] == before
    assert all(one.shortcuts for one in connections)
    assert chained(harness) == set()
    assert harness.broker.state.hooks.wrapping is None
    for client in clients:
        client.publish("t")
    assert read(harness, trace) == []


def test_a_client_that_connects_during_the_search_is_traced_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that connects during the search is traced once, even if another trace already watches its connection."""
    other = start(harness, client_id="other")
    for number in range(9):
        harness.connect(f"c{number}")
    late = harness.open()
    monkeypatch.setattr(visit, "SLICE", 2)
    trace = start(harness, client_id="late")
    late.send(Connect("late", 5, True, 0))
    harness.settle()
    late.publish("t")
    found = read(harness, trace)
    assert [one.name for one in found].count("CONNECT") == 1
    assert [one.name for one in found].count("PUBLISH") == 1
    other.stop()


def test_a_connection_that_closes_before_its_visit(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [harness.connect(f"c{number}", username="ann") for number in range(5)]
    monkeypatch.setattr(visit, "SLICE", 2)
    narrow, wide = start(harness, username="ann"), start(harness, filter="t")
    clients[4].disconnect()
    harness.settle()
    clients[3].publish("t")
    for trace in (narrow, wide):
        assert "on_publish" in [one.name for one in read(harness, trace)]
    assert chained(harness) == set()


def test_traces_of_topics_that_overlap_in_slices(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a trace starts or ends while connections are being visited, the visit is cancelled. All connections still get
    the right chains.
    """
    for number in range(9):
        harness.connect(f"c{number}")
    monkeypatch.setattr(visit, "SLICE", 2)
    first = start(harness, filter="t")
    second = start(harness, plugin="p")
    first.stop()
    harness.settle()
    everyone = {f"c{number}" for number in range(9)}
    assert chained(harness) == everyone
    third = start(harness, filter="u")
    second.stop()
    harness.connect("new")
    third.stop()
    fourth = start(harness, filter="u")
    harness.settle()
    assert chained(harness) == everyone | {"new"}
    fourth.stop()
    harness.settle()
    assert chained(harness) == set()
    assert harness.broker.state.hooks.wrapping is None
