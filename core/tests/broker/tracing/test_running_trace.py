"""Test the limits of a trace, and how it ends."""

from typing import Any

import pytest
from hookmq.broker.tracing import running_trace
from hookmq.broker.tracing.running_trace import RunningTrace
from hookmq.hooks.traces import TraceEvent, TraceKind, TraceRequest
from hookmq.model.client import Peer
from hookmq_testing import Harness


@pytest.fixture
def harness(broker_harness: Any) -> Harness:
    found: Harness = broker_harness()
    return found


class Read:
    """Reads a trace to its end."""

    def __init__(self, harness: Harness, trace: RunningTrace) -> None:
        self.events: list[TraceEvent] = []
        self.done = False
        harness.clock.spawn(self._read(trace), self._ended)

    async def _read(self, trace: RunningTrace) -> None:
        async for event in trace:
            self.events.append(event)

    def _ended(self, result: Any, error: BaseException | None) -> None:
        assert error is None
        self.done = True


def offer(trace: RunningTrace, count: int) -> None:
    for number in range(count):
        if trace.take():
            trace.add(TraceKind.EVENT, str(number), None, None, {})


def test_events_are_read_while_they_arrive_and_after_the_end(harness: Harness) -> None:
    ended: list[RunningTrace] = []
    trace = RunningTrace(harness.clock, TraceRequest(client_id="a", seconds=10), ended.append)
    read = Read(harness, trace)
    offer(trace, 1)
    harness.settle()
    assert [event.name for event in read.events] == ["0"]
    offer(trace, 2)
    harness.advance(10)
    assert [event.name for event in read.events] == ["0", "0", "1"]
    assert (read.done, trace.ended, ended) == (True, "the time is over", [trace])
    trace.stop()
    assert (trace.ended, len(ended)) == ("the time is over", 1)


def test_a_second_reader_is_refused_while_the_first_waits(harness: Harness) -> None:
    trace = RunningTrace(harness.clock, TraceRequest(client_id="a"), lambda _: None)
    first, errors = Read(harness, trace), []
    harness.settle()

    async def second() -> None:
        await anext(trace)

    harness.clock.spawn(second(), lambda _, error: errors.append(error))
    harness.settle()
    assert [str(error) for error in errors] == [
        "another reader of this trace waits for its next event"
    ]
    assert isinstance(errors[0], RuntimeError)
    offer(trace, 1)
    harness.settle()
    assert [event.name for event in first.events] == ["0"]
    trace.stop()
    harness.settle()
    assert first.done


def test_a_reader_that_was_canceled_can_be_followed_by_another(harness: Harness) -> None:
    trace = RunningTrace(harness.clock, TraceRequest(client_id="a"), lambda _: None)

    async def wait() -> None:
        await anext(trace)

    cancel = harness.clock.spawn(wait(), lambda *_: None)
    harness.settle()
    cancel()
    harness.settle()
    read = Read(harness, trace)
    harness.settle()
    offer(trace, 1)
    harness.settle()
    assert [event.name for event in read.events] == ["0"]
    trace.stop()


def test_events_above_the_rate_are_counted(harness: Harness) -> None:
    trace = RunningTrace(harness.clock, TraceRequest(client_id="a", rate=3), lambda _: None)
    read = Read(harness, trace)
    offer(trace, 5)
    harness.advance(1)
    offer(trace, 1)
    trace.stop()
    harness.settle()
    assert [event.name for event in read.events] == ["0", "1", "2", "rate", "0"]
    assert read.events[3].kind is TraceKind.SKIPPED
    assert read.events[3].fields == {"events": 2}
    assert trace.skipped == 2


def test_events_that_nobody_reads_are_bounded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_trace, "BUFFER", 4)
    trace = RunningTrace(harness.clock, TraceRequest(client_id="a"), lambda _: None)
    offer(trace, 9)
    assert trace.skipped == 5
    trace.stop()
    read = Read(harness, trace)
    harness.settle()
    assert [event.name for event in read.events] == ["0", "1", "2", "3", "rate"]


def test_long_texts_are_cut(harness: Harness) -> None:
    """Long texts are truncated. Otherwise, the events of one trace could hold 600 MB of topics."""
    trace = RunningTrace(harness.clock, TraceRequest(client_id="a"), lambda _: None)
    fields = {"reason": "r" * 65_535, "code": 7}
    trace.add(TraceKind.EVENT, "x", None, "t" * 65_535, fields)
    trace.stop()
    events = Read(harness, trace).events
    harness.settle()
    assert [(len(one.topic or ""), len(str(one.fields["reason"]))) for one in events] == [
        (running_trace.TEXT, running_trace.TEXT)
    ]
    assert events[0].fields["code"] == 7


@pytest.mark.parametrize(
    ("request_", "selected"),
    [
        (TraceRequest(client_id="a"), True), (TraceRequest(client_id="b"), False),
        (TraceRequest(client_id="a", username="ann"), True), (TraceRequest(client_id="a", username="bob"), False),
        (TraceRequest(address="192.0.2."), True), (TraceRequest(address="10."), False),
        (TraceRequest(filter="#"), False),
    ],
)  # fmt: skip
def test_which_clients_are_selected(
    harness: Harness, request_: TraceRequest, selected: bool
) -> None:
    trace = RunningTrace(harness.clock, request_, lambda _: None)
    assert trace.selects("a", "ann", Peer("192.0.2.7", 1, "tcp")) is selected


@pytest.mark.parametrize(
    ("kind", "topic", "plugin", "wanted"),
    [
        (TraceKind.HOOK, "a/b", "acl", True), (TraceKind.HOOK, "a/+", "acl", True), (TraceKind.HOOK, "b", "acl", False),
        (TraceKind.HOOK, None, "acl", False), (TraceKind.HOOK, "a/b", "other", False),
        (TraceKind.ROUTE, "a/b", "", False),
    ],
)  # fmt: skip
def test_a_filter_and_a_plugin_narrow_the_events(
    harness: Harness, kind: TraceKind, topic: str | None, plugin: str, wanted: bool
) -> None:
    request = TraceRequest(filter="a/#", plugin="acl")
    trace = RunningTrace(harness.clock, request, lambda _: None)
    assert trace.wants(kind, topic, plugin) is wanted
    trace.stop()
    assert not trace.wants(kind, topic, plugin)
