"""Test how plugins read messages page by page: queued, in flight and retained. Reading changes nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hookmq.broker.plugin_api import messages
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.model.errors import PluginError, StaleCursor
from hookmq.model.snapshots import InflightMessage, Page, QueuedMessage
from hookmq.routing.retained_search import MAX_SEARCHES, RetainedSearches
from hookmq.storage.protocols import StoreFailed
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Harness]
KINDS = ("memory", "loaded", "stored")
"""The places where a queue may be: in memory without records; in memory and in the store; with its tail only in the
store."""


def made(kind: str) -> Harness:
    page = {"stored": 3}.get(kind, 256)
    return Harness(
        plugins=[HookRecorder("on_publish", id="mine")],
        store=None if kind == "memory" else DurableStore(),
        config={"session": {"queue_page": page}},
    )


@pytest.fixture(params=KINDS)
def harness(request: pytest.FixtureRequest) -> Any:
    with made(request.param) as harness:
        yield harness


def away(harness: Harness, count: int, **properties: Any) -> MemoryClient:
    """Return an offline client with `count` messages in its queue."""
    client = harness.connect("away", session_expiry_interval=600)
    client.subscribe("t/#", 1, **properties)
    client.disconnect()
    publish(harness, 0, count)
    return client


def publish(harness: Harness, first: int, count: int) -> None:
    pub = harness.connect("pub")
    for number in range(first, first + count):
        pub.publish(f"t/{number}", b"%d" % number, 2)
    pub.disconnect()


def queue(harness: Harness, *args: Any, **more: Any) -> Page[QueuedMessage]:
    page: Page[QueuedMessage] = harness.clock.run(
        harness.handle("mine").queue("away", *args, **more)
    )
    return page


def payloads(page: Page[Any]) -> list[int]:
    return [int(item.message.payload) for item in page.items]


# --- the queue ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 100])
def test_the_queue_is_read_in_its_order_and_stays(harness: Harness, limit: int) -> None:
    client = away(harness, 10, identifier=7)
    before = harness.handle("mine").session("away")
    page = queue(harness, limit=limit)
    found = payloads(page)
    while page.cursor:
        assert len(page.items) == limit
        page = queue(harness, page.cursor, limit)
        found += payloads(page)
    assert found == list(range(10))
    assert harness.handle("mine").session("away") == before
    assert payloads(queue(harness)) == found
    client.reconnect()
    harness.settle()
    assert [int(message.payload) for message in client.messages] == found


def test_a_queued_message_and_each_of_its_fields(harness: Harness) -> None:
    away(harness, 5, identifier=7)
    for number, shown in enumerate(queue(harness).items):
        assert (shown.message.topic, shown.message.qos) == (f"t/{number}", 2)
        assert shown.message.sender == "pub"
        assert (shown.qos, shown.retain, shown.identifiers) == (1, False, (7,))
        assert (shown.filter, shown.size) == ("t/#", 8)


def test_a_queue_after_a_restart() -> None:
    with made("stored") as harness:
        away(harness, 7)
        harness.restart()
        cursor = queue(harness, limit=4).cursor
        assert payloads(queue(harness, cursor)) == [4, 5, 6]
        harness.restart()
        with pytest.raises(StaleCursor, match="from before the broker started"):
            queue(harness, cursor)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.sampled_from(["publish", "take", "page", "page"]), max_size=12),
    st.integers(1, 4),
)
def test_a_message_that_stays_is_seen_once(kind: str, steps: list[str], limit: int) -> None:
    """A queued message is listed once as long as it stays, even if the client returns, receives the first messages and
    leaves, and others are queued.
    """
    with made(kind) as harness:
        client = away(harness, 8)
        published, taken = 8, 0
        page = queue(harness, limit=limit)
        found = payloads(page)
        for step in steps:
            if step == "publish":
                publish(harness, published, 2)
                published += 2
            elif step == "take" and taken < 6:
                client.reconnect(receive_maximum=1, auto_ack=False)
                client.ack(client.messages[-1])
                client.disconnect()
                harness.settle()
                taken = len({message.payload for message in client.messages})
            elif page.cursor:
                page = queue(harness, page.cursor, limit)
                found += payloads(page)
        while page.cursor:
            page = queue(harness, page.cursor, limit)
            found += payloads(page)
        assert found == sorted(set(found))
        assert set(range(taken, 8)) - set(found) <= {taken}  # the next message may be in flight
        assert max(found, default=0) < published


def test_a_queue_waits_for_the_commit_of_what_it_shows() -> None:
    store = SlowStore(DurableStore(), slow=False)
    with Harness(
        plugins=[HookRecorder("on_publish", id="mine")], store=store,
        config={"session": {"queue_page": 2}},
    ) as harness:  # fmt: skip
        away(harness, 1)
        pub = harness.connect("pub")
        store.slow = True
        for number in range(1, 5):
            pub.publish(f"t/{number}", b"%d" % number, 1, expect=None)
        told: list[Any] = []
        harness.clock.spawn(harness.handle("mine").queue("away"), lambda *done: told.append(done))
        harness.settle()
        assert told == []
        store.finish()
        harness.settle()
        ((page, error),) = told
        assert error is None
        assert payloads(page) == [0, 1, 2, 3, 4]
        store.slow = False


def test_a_cancelled_queue_call_gets_no_result() -> None:
    store = SlowStore(DurableStore(), slow=False)
    with Harness(
        plugins=[HookRecorder("on_publish", id="mine")], store=store,
        config={"session": {"queue_page": 2}},
    ) as harness:  # fmt: skip
        away(harness, 5)
        pub = harness.connect("pub")
        store.slow = True
        pub.publish("t/5", b"5", 1, expect=None)
        told: list[Any] = []
        cancel = harness.clock.spawn(
            harness.handle("mine").queue("away"), lambda *done: told.append(done)
        )
        harness.settle()
        cancel()
        store.finish()
        harness.settle()
        store.slow = False
        assert told == []
        assert not harness.logged("internal.error")


def test_a_session_that_ends_while_its_queue_is_read() -> None:
    store = SlowStore(DurableStore(), slow=False)
    with Harness(
        plugins=[HookRecorder("on_publish", id="mine")], store=store,
        config={"session": {"queue_page": 2}},
    ) as harness:  # fmt: skip
        away(harness, 5)
        store.slow = True
        harness.connect("pub").publish("t/5", b"5", 1, expect=None)
        told: list[Any] = []
        harness.clock.spawn(harness.handle("mine").queue("away"), lambda *done: told.append(done))
        harness.settle()
        store.slow = False
        harness.connect("away", expect=None)  # a clean start
        store.finish()
        harness.settle()
        assert told == [(Page(()), None)]


class BrokenStore(DurableStore):
    """A store that cannot be read."""

    def read(self, owner: str, after: int, max_count: int, max_size: int, done: Any) -> None:
        done(StoreFailed("disk on fire"))


def test_a_store_that_fails() -> None:
    with Harness(
        plugins=[HookRecorder("on_publish", id="mine")], store=BrokenStore(),
        config={"session": {"queue_page": 2}},
    ) as harness:  # fmt: skip
        away(harness, 5)
        for _ in range(2):  # while it fails, and afterwards
            with pytest.raises(PluginError, match="the store failed: disk on fire"):
                queue(harness)
        assert harness.broker.state.failed == "disk on fire"


def test_the_queue_of_a_slow_client_without_a_durable_session() -> None:
    with made("memory") as harness:
        client = harness.connect("away", receive_maximum=1, auto_ack=False)
        client.subscribe("t/#", 1)
        publish(harness, 0, 6)
        assert payloads(queue(harness)) == [1, 2, 3, 4, 5]  # the first is in flight
        cursor = queue(harness, limit=2).cursor
        client.ack(client.messages[0])
        harness.settle()
        assert payloads(queue(harness, cursor)) == [3, 4, 5]
        assert payloads(queue(harness)) == [2, 3, 4, 5]


def test_there_is_no_queue(harness: Harness) -> None:
    assert queue(harness) == Page(())
    harness.connect("away")
    assert queue(harness) == Page(())
    assert harness.handle("mine").inflight("away") == Page(())
    assert harness.handle("mine").inflight("nobody") == Page(())


def test_the_cursor_of_a_session_that_has_ended(harness: Harness) -> None:
    client = away(harness, 5)
    cursor = queue(harness, limit=2).cursor
    assert cursor
    client.reconnect(clean_start=True)
    with pytest.raises(StaleCursor, match=r"queue\(\): the session of 'away' has ended"):
        queue(harness, cursor)
    client.disconnect()
    harness.advance(601)
    with pytest.raises(StaleCursor, match=r"queue\(\): the session of 'away' has ended"):
        queue(harness, cursor)


# --- in flight ---------------------------------------------------------------------------------------------------------


def test_messages_in_flight_to_a_durable_session(harness: Harness) -> None:
    client = harness.connect("away", session_expiry_interval=60, auto_ack=False)
    client.subscribe("t/#", 2, identifier=7)
    publish(harness, 0, 4)
    broker = harness.handle("mine")
    harness.settle()
    first, second, *_ = client.messages
    client.ack(first, 0x80)  # PUBREC that refuses it
    client.ack(second)
    harness.settle()
    shown = broker.inflight("away").items
    assert [one.packet_id for one in shown] == [2, 3, 4]
    assert [one.released for one in shown] == [True, False, False]
    message = shown[1].message
    assert message is not None
    assert (message.topic, message.payload) == ("t/2", b"2")
    assert (shown[1].qos, shown[1].retain, shown[1].identifiers) == (2, False, (7,))
    assert shown[1].filter == "t/#"
    page = broker.inflight("away", limit=2)
    assert page.items == shown[:2]
    assert broker.inflight("away", page.cursor, 2) == Page(shown[2:])


def test_messages_in_flight_to_a_clean_session(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")])
    client = harness.connect("away", auto_ack=False)
    client.subscribe(["t/0", "t/1"], 1)
    client.subscribe("t/2", 2)
    pub = harness.connect("pub")
    with harness.together():
        for number in (0, 0, 1, 2, 2):  # repeated messages take the fast path
            pub.publish(f"t/{number}", b"%d" % number, 2, expect=None)
    shown = harness.handle("mine").inflight("away").items
    assert [(one.packet_id, one.qos) for one in shown] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    for one in shown:
        assert one.message is None or one.message.topic.startswith("t/")
        assert one.message is not None or one == InflightMessage(one.packet_id, one.qos, False)


@pytest.mark.parametrize("examined", [5, 1000])
@settings(max_examples=15, deadline=None)
@given(
    st.sets(st.integers(1, 60), max_size=20),
    st.sets(st.integers(1, 60), max_size=20),
    st.integers(1, 6),
)
def test_a_message_that_stays_in_flight_is_seen_once(
    examined: int, stay: set[int], others: set[int], limit: int
) -> None:
    with (
        Harness(plugins=[HookRecorder("on_publish", id="mine")]) as harness,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(messages, "EXAMINED", examined)
        client = harness.connect("away", session_expiry_interval=60, auto_ack=False)
        client.subscribe("t", 1)
        session = harness.broker.sessions["away"]
        pub = harness.connect("pub")
        for number in sorted(stay, key=lambda one: one * 7 % 61):
            session.last_packet_id = number - 1
            pub.publish("t", b"", 1)
        fetch = partial(harness.handle("mine").inflight, "away", limit=limit)
        page = fetch()
        seen = [one.packet_id for one in page.items]
        changes = sorted(others - stay)
        calls = 1
        while page.cursor:
            if changes:
                session.last_packet_id = changes[0] - 1
                pub.publish("t", b"", 1)
                client.ack(client.messages[-1]) if changes[0] % 2 else None
                del changes[0]
            page = fetch(page.cursor)
            seen += [one.packet_id for one in page.items]
            calls += 1
        assert [one for one in seen if one in stay] == sorted(stay)
        assert len(set(seen)) == len(seen)
        client.auto_ack = True


# --- retained ----------------------------------------------------------------------------------------------------------


def topics(page: Page[Any]) -> list[str]:
    return [message.topic for message in page.items]


def retain(harness: Harness, *names: str, payload: bytes = b"x", **more: Any) -> None:
    pub = harness.connect("pub")
    for name in names:
        pub.publish(name, payload, retain=True, **more)
    pub.disconnect()


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("#", ["a/1", "a/2", "a/b/1", "b"]), ("a/+", ["a/1", "a/2"]), ("+/1", ["a/1"]), ("a/1", ["a/1"]),
        ("c", []), ("c/#", []), ("b/#", ["b"]),
    ],
)  # fmt: skip
def test_retained_messages_that_match(
    broker_harness: Make, filter: str, expected: list[str], limit: int
) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")])
    retain(harness, "a/1", "b", "a/2", "a/b/1")
    fetch = partial(harness.handle("mine").retained, filter, limit=limit)
    page = fetch()
    found = topics(page)
    while page.cursor:
        assert len(page.items) == limit
        page = fetch(page.cursor)
        found += topics(page)
    assert sorted(found) == expected


def test_an_expired_message_is_not_retained(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")])
    retain(harness, "a/1")
    retain(harness, "a/2", message_expiry_interval=5)
    broker = harness.handle("mine")
    assert sorted(topics(broker.retained("a/#"))) == ["a/1", "a/2"]
    harness.advance(6)
    assert topics(broker.retained("a/#")) == ["a/1"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "clear", "page"]), st.sampled_from("abc"), st.integers(0, 9)
        ),
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_a_retained_message_that_stays_is_seen_once(
    steps: list[tuple[str, str, int]], limit: int
) -> None:
    with Harness(plugins=[HookRecorder("on_publish", id="mine")]) as harness:
        stay = [f"{level}/{number}/stay" for level in "abc" for number in range(3)]
        retain(harness, *stay)
        broker = harness.handle("mine")
        page = broker.retained(limit=limit)
        seen = topics(page)
        for step, level, number in steps:
            if step == "page" and page.cursor:
                page = broker.retained("#", page.cursor, limit)
                seen += topics(page)
            elif step != "page":
                retain(harness, f"{level}/{number}", payload=b"x" if step == "set" else b"")
        while page.cursor:
            page = broker.retained("#", page.cursor, limit)
            seen += topics(page)
        assert sorted(one for one in seen if one in stay) == stay
        assert len(set(seen)) == len(seen)


def test_one_call_visits_a_bounded_part_of_the_index(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")])
    count = 5000
    for number in range(count):
        harness.handle("mine").publish(f"{number}/y", b"x", retain=True)
    harness.handle("mine").publish("last/x", b"x", retain=True)
    harness.settle()
    steps: list[int] = []

    class Counted:
        """Counts the steps of each search for retained messages."""

        def __init__(self) -> None:
            self.inner: RetainedSearches[Any] = RetainedSearches()

        def begin(self, search: Iterator[Any]) -> Any:
            return self.inner.begin(self.counted(search))

        def counted(self, search: Iterator[Any]) -> Iterator[Any]:
            for step in search:
                steps[-1] += 1
                yield step

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    monkeypatch.setattr(messages, "RetainedSearches", Counted)
    fetch = partial(harness.handle("mine").retained, "+/x")
    steps.append(0)
    page = fetch()
    found = topics(page)
    while page.cursor:
        steps.append(0)
        page = fetch(page.cursor)
        found += topics(page)
    assert found == ["last/x"]
    assert len(steps) >= count // 64 // messages.PAUSES
    assert max(steps) <= messages.PAUSES


def test_a_cursor_of_retained_messages_works_once(broker_harness: Make) -> None:
    harness = broker_harness(
        plugins=[HookRecorder("on_publish", id="mine"), HookRecorder("on_publish", id="other")]
    )
    retain(harness, "a", "b", "c")
    broker = harness.handle("mine")
    cursor = broker.retained(limit=1).cursor
    with pytest.raises(PluginError, match="of a call with other arguments"):
        broker.retained("a/#", cursor)
    with pytest.raises(PluginError, match="of a call with other arguments"):
        harness.handle("other").retained("#", cursor)
    assert len(broker.retained("#", cursor, 5).items) == 2
    with pytest.raises(StaleCursor, match=r"retained\(\): the cursor is stale.*begin again"):
        broker.retained("#", cursor, 5)


def test_old_searches_end_when_a_plugin_opens_many(broker_harness: Make) -> None:
    harness = broker_harness(
        plugins=[HookRecorder("on_publish", id="mine"), HookRecorder("on_publish", id="other")]
    )
    retain(harness, "a", "b")
    broker, other = harness.handle("mine"), harness.handle("other")
    cursors = [broker.retained(limit=1).cursor for _ in range(MAX_SEARCHES + 1)]
    mine = other.retained(limit=1).cursor
    with pytest.raises(StaleCursor, match="stale"):
        broker.retained("#", cursors[0])
    for cursor in cursors[1:]:
        assert len(broker.retained("#", cursor).items) == 1
    assert len(other.retained("#", mine).items) == 1  # each plugin has its own


def test_a_shared_subscription_has_no_retained_messages(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")])
    with pytest.raises(
        PluginError, match=r"cannot list retained messages: .* is a shared subscription"
    ):
        harness.handle("mine").retained("$share/g/a")


def test_handles_have_the_same_type() -> None:
    """The handle's methods have the same types as the protocol's methods. mypy checks this."""
    with made("memory") as harness:
        handle: BrokerHandle = harness.handle("mine")
        assert handle.retained() == Page(())
