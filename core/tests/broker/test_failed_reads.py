"""A queue that cannot be read is no empty queue: the broker ends, and what is in the store stays there."""

from collections.abc import Callable

import pytest
from hookmq.broker import Broker
from hookmq.errors import StoreError
from hookmq.store import Paged, StoreFailed
from hookmq.testing import DurableStore, Harness

Make = Callable[..., Harness]


class Unreadable(DurableStore):
    """Reads fail once `ill`, at once or when `answer` is called."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.ill = False
        self.late = late
        self.waiting: list[Paged] = []

    def read(  # type: ignore[override]  # its reads may fail
        self, owner: str, after: int, max_count: int, max_size: int, done: Paged
    ) -> None:
        if not self.ill:
            super().read(owner, after, max_count, max_size, done)
        elif self.late:
            self.waiting.append(done)
        else:
            done(StoreFailed("a bit flipped"))

    def answer(self) -> None:
        for done in self.waiting:
            done(StoreFailed("a bit flipped"))


@pytest.mark.parametrize("late", [False, True])
def test_a_page_that_cannot_be_read_ends_the_broker(broker_harness: Make, late: bool) -> None:
    store = Unreadable(late)
    harness = broker_harness(store=store)
    client = harness.connect("one", session_expiry_interval=60)
    client.subscribe("t", 1)
    client.disconnect()
    harness.connect("pub").publish("t", b"x", 1, expect=0)
    harness.restart()
    store.ill = True
    failures: list[str] = []
    harness.broker.on_failure = failures.append
    client.reconnect()
    store.answer()
    client.expect_nothing()
    assert failures == ["a bit flipped"]
    harness.connect("other", expect=0x88, session_expiry_interval=60)
    assert len(store.queues["c/one"]) == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_group_that_cannot_be_read_forbids_to_start(broker_harness: Make, late: bool) -> None:
    store = Unreadable(late)
    harness = broker_harness(store=store)
    member = harness.connect("one", session_expiry_interval=60)
    member.subscribe("$share/g/t", 1)
    member.disconnect()
    harness.connect("pub").publish("t", b"x", 1, expect=0)
    store.ill = True
    told: list[BaseException | None] = []
    Broker(harness.settings, harness.clock, harness.hooks, store).start(told.append)
    store.answer()
    [error] = told
    assert isinstance(error, StoreError)
    assert "a bit flipped" in str(error)
