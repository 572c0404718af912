"""Test how a new broker loads an existing store: the queues of shared subscriptions are read in pages, and loading may
fail.
"""

from collections.abc import Callable

import pytest
from hookmq.broker import Broker
from hookmq.model.errors import StoreError
from hookmq.plugin import Context, Message, Plugin, SessionEvent, hookimpl
from hookmq.storage.protocols import Paged, StoreFailed
from hookmq_testing import DurableStore, Harness, will

Make = Callable[..., Harness]


class PagedStore(DurableStore):
    """A store that reads two entries at a time, either at once or when the test calls `answer`. It can be
    made to fail.
    """

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late = late
        self.left: int | None = None
        """The number of pages that can be read before a read fails; None if no read fails."""
        self.reads: list[Callable[[], None]] = []

    def read(  # type: ignore[override]  # its reads may fail
        self, owner: str, after: int, max_count: int, max_size: int, done: Paged
    ) -> None:
        def answer() -> None:
            if self.left == 0:
                done(StoreFailed("a bit flipped"))
                return
            if self.left is not None:
                self.left -= 1
            super(PagedStore, self).read(owner, after, 2, max_size, done)

        self.reads.append(answer)
        if not self.late:
            self.answer()

    def answer(self) -> None:
        """Complete all pending reads, including those that follow from them."""
        while self.reads:
            self.reads.pop(0)()


def fill(harness: Harness) -> None:
    """Leave five messages waiting in one shared subscription and three in another."""
    member = harness.connect("member", session_expiry_interval=600)
    member.subscribe("$share/g/many", 1)
    member.subscribe("$share/h/few", 1)
    member.disconnect()
    pub = harness.connect("pub")
    for number in range(5):
        pub.publish("many", b"%d" % number, 1)
    for number in range(3):
        pub.publish("few", b"%d" % number, 1)
    harness.settle()


def start(harness: Harness, store: PagedStore) -> list[BaseException | None]:
    """Start another broker on the store. Return a list that will receive the result."""
    for old in harness.clients:
        old.wire.closed = True
    reports: list[BaseException | None] = []
    harness.broker = Broker(harness.settings, harness.clock, harness.hooks, store)
    harness.broker.start(reports.append)
    return reports


@pytest.mark.parametrize("late", [False, True])
def test_queues_of_shared_subscriptions_are_read_in_pages(broker_harness: Make, late: bool) -> None:
    store = PagedStore(late)
    harness = broker_harness(store=store)
    fill(harness)
    reports = start(harness, store)
    assert reports == ([] if late else [None])
    store.answer()
    assert reports == [None]
    queues = {
        group.share: [one.outgoing.message.payload for one in group.queue]
        for group in harness.broker.state.groups.values()
    }
    assert queues == {"g": [b"%d" % n for n in range(5)], "h": [b"%d" % n for n in range(3)]}
    waiting = sum(group.queued_bytes for group in harness.broker.state.groups.values())
    assert harness.broker.state.queued_bytes == waiting > 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("pages", [0, 1, 4])
def test_a_page_that_cannot_be_read_forbids_to_start(
    broker_harness: Make, late: bool, pages: int
) -> None:
    store = PagedStore(late)
    harness = broker_harness(store=store)
    fill(harness)
    store.left = pages
    reports = start(harness, store)
    store.answer()
    assert len(reports) == 1  # once, however many groups are left
    assert isinstance(reports[0], StoreError)
    assert str(reports[0]) == "a bit flipped"


def test_the_queue_of_a_group_whose_members_are_gone_is_dropped(broker_harness: Make) -> None:
    store = PagedStore()
    harness = broker_harness(store=store)
    fill(harness)
    for name in list(store.subscriptions):
        del store.subscriptions[name]
    assert start(harness, store) == [None]
    harness.settle()
    assert not store.queues
    assert harness.broker.state.queued_bytes == 0


def test_plugins_start_when_the_state_is_loaded_and_before_time_passes(
    broker_harness: Make,
) -> None:
    """Plugins start after the state is loaded and before deadlines are checked. A will that was due long ago is not
    published until the plugins that decide on it have started.
    """
    story: list[str] = []

    class Late(Plugin):
        @hookimpl
        async def on_startup(self) -> None:
            story.append(f"sessions: {len(harness.broker.sessions)}")
            await harness.clock.sleep(5)
            story.append("started")

        @hookimpl
        def on_will(self, message: Message) -> None:
            story.append(f"will: {message.topic}")

        @hookimpl
        def on_session(self, event: SessionEvent) -> None:
            story.append(event.value)

    store = DurableStore()
    harness = broker_harness(store=store)
    harness.connect("c", session_expiry_interval=10, will=will("w", b"x", delay=5))
    harness.settle()
    # The process ends here.
    harness = broker_harness([Late(None, Context("late"))], store=store, start=False)
    harness.advance(100)
    harness.start()
    harness.advance(20)
    assert story[:3] == ["sessions: 1", "started", "will: w"]
    assert story[-1] == "expired"
