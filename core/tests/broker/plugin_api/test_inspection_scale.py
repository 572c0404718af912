"""Test that a page is just as cheap with a million sessions, because each call examines a bounded number of them."""

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hookmq.broker.plugin_api.inspection import EXAMINED
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.snapshots import Page
from hookmq.model.subscription import Subscription
from hookmq.session.session import Session
from hookmq_testing import Harness, HookRecorder

COUNT = 1_000_000
OTHERS = 1000


class Counted:
    """An index of sessions that counts the sessions it returns."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self.calls: list[int] = []

    def page(self, serial: int, count: int) -> list[Session]:
        found: list[Session] = self.index.page(serial, count)
        self.calls.append(len(found))
        return found


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    """Create a broker with a million sessions. To save time, most of them share one client and the same empty values."""
    with Harness(plugins=[HookRecorder("on_publish", id="mine")]) as harness:
        state = harness.broker.state
        scope, peer = Scope(), Peer("192.0.2.1")
        clients = [ClientInfo(f"c{at}", 5, None, peer, scope) for at in range(OTHERS)]
        light = Session(ClientInfo("", 5, None, peer, scope))
        given = [
            (name, getattr(light, name))
            for name in ("connection", "ended_at", "expiry", "durable", "subscriptions", "inflight", "queued",
                         "queued_bytes", "will", "window")
        ]  # fmt: skip
        gc.disable()  # it would traverse all sessions again and again
        for at in range(COUNT):
            # Only the compiled class calls `__init__` here.
            session = Session.__new__(Session, clients[at % OTHERS])  # type: ignore[call-arg]
            for name, value in given:
                setattr(session, name, value)
            session.client_id = f"device-{at}"
            session.client = clients[at % OTHERS]
            state.session_index.add(session)
        yield harness
        state.session_index = type(state.session_index)()
        gc.enable()


class State:
    """The broker's state, but with a different type of index. Compiled code would not accept it."""

    def __init__(self, state: Any, session_index: Counted) -> None:
        self.state = state
        self.session_index = session_index

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


@pytest.fixture
def counted(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Counted:
    state = harness.broker.state
    counted = Counted(state.session_index)
    monkeypatch.setattr(harness.handle("mine"), "_state", State(state, counted))
    return counted


def paged(fetch: Any) -> Iterator[Page[Any]]:
    page = fetch()
    yield page
    while page.cursor:
        page = fetch(page.cursor)
        yield page


@pytest.mark.slow
def test_a_million_sessions_are_paged(harness: Harness, counted: Counted) -> None:
    fetch = partial(harness.handle("mine").sessions, limit=1000)
    found = [one.client_id for page in paged(fetch) for one in page.items]
    assert found == [f"device-{at}" for at in range(COUNT)]
    assert len(counted.calls) == COUNT // 1000
    assert max(counted.calls) <= 1001


@pytest.mark.slow
def test_a_search_that_finds_one_in_a_million(harness: Harness, counted: Counted) -> None:
    fetch = partial(harness.handle("mine").sessions, client_id="device-999999")
    assert [one.client_id for page in paged(fetch) for one in page.items] == ["device-999999"]
    assert len(counted.calls) == COUNT // EXAMINED
    assert max(counted.calls) <= EXAMINED + 1


@pytest.mark.slow
def test_the_subscriptions_of_a_million_sessions(harness: Harness, counted: Counted) -> None:
    (session,) = counted.index.page(COUNT // 2, 1)
    session.subscriptions = {"a": Subscription("a", "a")}
    fetch = partial(harness.handle("mine").subscriptions, filter="a")
    found = [one.client_id for page in paged(fetch) for one in page.items]
    session.subscriptions = {}
    assert found == [session.client_id]
    assert len(counted.calls) <= COUNT // EXAMINED + 2
    assert max(counted.calls) <= EXAMINED + 1


@pytest.mark.slow
def test_a_small_page_examines_no_more_than_it_shows(harness: Harness, counted: Counted) -> None:
    page = harness.handle("mine").sessions(limit=10)
    assert len(page.items) == 10
    assert counted.calls == [11]
