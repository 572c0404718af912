"""`visit_all` visits every item, one page per turn, and calls `done` once."""

from functools import partial

import pytest
from hookmq.plugin import Page, PluginError, SessionSnapshot
from hookmq_testing import Harness, HookRecorder
from hookmq_toolkit.listing import visit_all


@pytest.fixture
def harness() -> Harness:
    return Harness(plugins=[HookRecorder("on_publish", id="mine")])


def test_every_session_is_visited_a_page_per_turn(harness: Harness) -> None:
    broker = harness.handle("mine")
    names = [f"c{number}" for number in range(7)]
    for name in names:
        harness.connect(name)
    seen: list[str] = []
    ends: list[int] = []
    fetch = partial(broker.sessions, limit=3)

    def visit(session: SessionSnapshot) -> None:
        seen.append(session.client_id)

    visit_all(harness.clock, fetch, visit, lambda: ends.append(len(seen)))
    assert seen == names[:3]  # at once
    harness.clock.turn()
    assert seen == names[:6]
    assert ends == []
    harness.settle()
    assert seen == names
    assert ends == [7]


def test_an_empty_listing_ends_at_once(harness: Harness) -> None:
    ends: list[int] = []
    visit_all(
        harness.clock, lambda cursor: Page(()), lambda item: ends.append(1), lambda: ends.append(2)
    )
    assert ends == [2]
    visit_all(harness.clock, lambda cursor: Page((1, 2)), ends.append)
    assert ends == [2, 1, 2]


def test_an_error_ends_the_visit(harness: Harness) -> None:
    broker = harness.handle("mine")
    with pytest.raises(PluginError, match="limit"):
        visit_all(harness.clock, partial(broker.sessions, limit=0), lambda session: None)
