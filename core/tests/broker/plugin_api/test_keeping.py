"""Test that a plugin's state is visible at once, committed with its turn, and available after a restart."""

import enum
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.model.errors import PluginError, StoreError
from hookmq.mqtt.packets import Puback
from hookmq.plugin import Context, Drop, Message, Plugin, hookimpl
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import CommitId, DropState, PutMessage, PutState, Record
from hookmq_testing import DurableStore, Harness, RecordingJournal, SlowStore
from hookmq_testing.runtime import EPOCH

Make = Callable[..., Harness]


class Counter(Plugin):
    """A plugin that counts messages, and records the count that it finds at startup."""

    def __init__(self, id: str = "counter") -> None:
        super().__init__(None, Context(id))
        self.found: bytes | None = None
        self.called: list[tuple[str, bytes]] = []

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        self.found = broker.state.get("count")

    @hookimpl
    def on_publish(self, message: Message, broker: BrokerHandle) -> Any:
        count = int(broker.state.get("count") or b"0") + 1
        broker.state.put("count", b"%d" % count)
        return Drop() if message.topic == "drop" else None

    @hookimpl
    def on_timer(self, key: str, data: bytes) -> None:
        self.called.append((key, data))


def awaited(harness: Harness, call: Callable[[], Any]) -> list[Any]:
    """Await the result of `call` in a coroutine. Return a list that will receive the result."""
    results: list[Any] = []

    async def run() -> None:
        results.append(await call())

    def done(result: object, error: BaseException | None) -> None:
        if error is not None:
            results.append(error)

    harness.clock.spawn(run(), done)
    harness.settle()
    return results


def test_a_value_that_was_put_can_be_read_at_once(broker_harness: Make) -> None:
    harness = broker_harness([Counter()])
    state = harness.handle("counter").state
    assert state.get("k") is None
    state.put("k", b"v")
    assert (state.get("k"), state.keys, state.bytes) == (b"v", 1, 2)
    state.put("k", b"longer")
    assert (state.get("k"), state.keys, state.bytes) == (b"longer", 1, 7)
    state.delete("k")
    assert (state.get("k"), state.keys, state.bytes) == (None, 0, 0)


def test_plugins_have_a_space_each(broker_harness: Make) -> None:
    harness = broker_harness([Counter("a"), Counter("b")])
    harness.handle("a").state.put("k", b"a")
    assert harness.handle("b").state.get("k") is None
    harness.handle("b").state.put("k", b"b")
    assert harness.handle("a").state.get("k") == b"a"


def test_put_and_delete_end_after_the_commit(broker_harness: Make) -> None:
    store = SlowStore(DurableStore())
    harness = broker_harness([Counter()], store=store)
    broker = harness.handle("counter")
    put = awaited(harness, lambda: broker.state.put("k", b"v"))
    assert put == []
    assert broker.state.get("k") == b"v"
    assert store.records() == [PutState("s/counter", "k", b"v")]
    store.finish()
    harness.settle()
    assert put == [None]
    deleted = awaited(harness, lambda: broker.state.delete("k"))
    missing = awaited(harness, lambda: broker.state.delete("k"))
    assert deleted == missing == []
    store.finish()
    harness.settle()
    assert (deleted, missing) == ([True], [False])
    timer = awaited(harness, lambda: broker.set_timer("k", EPOCH + 1e6))
    assert timer == []
    store.finish()
    harness.settle()
    cancelled = awaited(harness, lambda: broker.cancel_timer("k"))
    store.finish()
    harness.settle()
    assert (timer, cancelled) == ([None], [True])


def test_a_message_and_the_state_of_its_hook_are_one_commit(broker_harness: Make) -> None:
    store = SlowStore(DurableStore())
    harness = broker_harness([Counter()], store=store)
    store.slow = False
    sub = harness.connect("sub", session_expiry_interval=600)
    sub.subscribe("t", 1)
    sub.disconnect()
    pub = harness.connect("pub")
    harness.settle()
    store.slow = True
    pub.publish("t", b"x", 1)
    harness.settle()
    assert store.committing is not None
    kinds = [type(one) for one in store.committing]
    assert kinds.count(PutState) == kinds.count(PutMessage) == 1
    store.finish()
    harness.settle()


def test_a_batch_is_not_cut_between_a_message_and_its_state(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookmq.storage.group_commit.MAX_RECORDS", 1)
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([Counter()], store=store)
    sub = harness.connect("sub", session_expiry_interval=600)
    sub.subscribe("t", 1)
    sub.disconnect()
    pub = harness.connect("pub")
    with harness.together():
        for _ in range(5):
            pub.publish("t", b"x", 1)
    kept = [batch for batch in store.committed if any(type(one) is PutState for one in batch)]
    for batch in kept:
        counts = [sum(type(one) is kind for one in batch) for kind in (PutState, PutMessage)]
        assert counts[0] == counts[1] > 0


def test_an_acknowledgement_waits_for_the_state(broker_harness: Make) -> None:
    """If a hook changes state, the message's acknowledgement waits until the state is committed, even if the message
    itself is dropped.
    """
    store = SlowStore(DurableStore())
    harness = broker_harness([Counter()], store=store)
    pub = harness.connect("pub")
    for number, topic in enumerate(("drop", "nobody"), 1):
        pub.publish(topic, b"x", 1)
        harness.settle()
        assert store.committing == (PutState("s/counter", "count", b"%d" % number),)
        pub.expect_nothing()
        store.finish()
        pub.expect(Puback)


def test_state_survives_and_is_there_in_on_startup(broker_harness: Make) -> None:
    store = DurableStore()
    harness = broker_harness([Counter()], store=store)
    harness.connect("pub").publish("t", b"x", 1)
    harness.settle()
    harness.handle("counter").state.put("gone", b"x")
    harness.handle("counter").state.delete("gone")
    harness.close()
    plugin = Counter()
    again = broker_harness([plugin], store=store)
    assert plugin.found == b"1"
    assert again.handle("counter").state.items().items == (("count", b"1"),)


def test_state_that_is_put_in_on_shutdown_is_committed(broker_harness: Make) -> None:
    class Last(Counter):
        @hookimpl
        async def on_shutdown(self, broker: BrokerHandle) -> None:
            broker.state.put("count", b"last")

    store = SlowStore(DurableStore(), slow=False)
    broker_harness([Last()], store=store).close()
    assert PutState("s/counter", "count", b"last") in store.records()


def test_the_state_of_a_plugin_that_is_not_configured_is_kept(broker_harness: Make) -> None:
    store = DurableStore()
    harness = broker_harness([Counter("a")], store=store)
    harness.handle("a").state.put("k", b"v")
    harness.settle()
    harness.close()
    harness = broker_harness([Counter("b")], store=store)
    harness.settle()
    assert list(store.plugin_state.values()) == [PutState("s/a", "k", b"v")]
    [told] = harness.logged("plugin.state_unused")
    assert told == {"plugins": ["a"]}
    harness.reload(plugins=[Counter("a")])
    assert harness.handle("a").state.get("k") == b"v"


def test_items_in_pages(broker_harness: Make) -> None:
    harness = broker_harness([Counter()])
    state = harness.handle("counter").state
    for number in range(7):
        state.put(f"a/{number}", b"%d" % number)
    state.put("b", b"")
    page = state.items("a/", limit=4)
    assert [key for key, _ in page.items] == ["a/0", "a/1", "a/2", "a/3"]
    state.delete("a/3")  # the next page still begins after this key
    state.delete("a/4")
    rest = state.items("a/", page.cursor, 4)
    assert rest.items == (("a/5", b"5"), ("a/6", b"6"))
    assert rest.cursor == ""
    assert len(state.items().items) == 6
    for wrong in (page.cursor + "x", "x", "items.x.y.z"):
        with pytest.raises(PluginError):
            state.items("a/", wrong)
    with pytest.raises(PluginError, match="other arguments"):
        state.items("b", page.cursor)
    for limit in (0, 1001, True):
        with pytest.raises(PluginError, match="limit must be from 1 to 1000"):
            state.items(limit=limit)


class Name(enum.StrEnum):
    KEY = "key"


class Raw(bytes):
    pass


def test_subclasses_become_plain_values(broker_harness: Make) -> None:
    """Values whose types are subclasses are stored as plain values, because a store's format may support nothing else."""
    store = DurableStore()
    harness = broker_harness([Counter()], store=store)
    harness.handle("counter").state.put(Name.KEY, Raw(b"x"))
    harness.handle("counter").set_timer(Name.KEY, int(EPOCH) + 100, Raw(b"x"))
    harness.settle()
    for record in store.plugin_state.values():
        assert (type(record.key), type(record.value)) == (str, bytes)
    assert type(store.plugin_state["t/counter", "key"].due) is float


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda b: b.state.put(5, b""), r"state.put\(\): the key must be str, not int"),
        (lambda b: b.state.put("ä" * 513, b""), "the key has 1026 bytes: at most 1024"),
        (lambda b: b.state.put("\ud800", b""), "the key is not valid Unicode"),
        (lambda b: b.state.put("k", "v"), "the value must be bytes, not str"),
        (lambda b: b.state.put("k", bytearray(b"v")), "the value must be bytes, not bytearray"),
        (lambda b: b.state.put("k", b"x" * 200), "plugin_state_bytes allows 100"),
        (lambda b: b.state.get(None), "the key must be str"),
        (lambda b: b.state.delete(b"k"), "the key must be str"),
        (lambda b: b.set_timer(5, 1.0), r"set_timer\(\): the key must be str"),
        (
            lambda b: b.set_timer("k", "soon"),
            "`at` must be a time in epoch seconds, finite and at least 0, not 'soon'",
        ),
        (lambda b: b.set_timer("k", float("nan")), "not nan"),
        (lambda b: b.set_timer("k", float("inf")), "not inf"),
        (lambda b: b.set_timer("k", True), "not True"),
        (lambda b: b.set_timer("k", 10**400), "not an int of 1329 bits"),
        (
            lambda b: b.set_timer("k", -(10**5000)),
            "finite and at least 0, not an int of 16610 bits",
        ),
        (lambda b: b.set_timer("k", -0.5), "at least 0, not -0.5"),
        (lambda b: b.set_timer("k", None), "epoch seconds, finite and at least 0, not None"),
        (lambda b: b.set_timer([], 1.0), "the key must be str, not list"),
        (lambda b: b.state.put({}, b""), "the key must be str, not dict"),
        (lambda b: b.state.items(5), r"state.items\(\): the prefix must be str, not int"),
        (lambda b: b.state.items("", 5), r"items\(\): 5 is not a cursor"),
        (lambda b: b.state.items("", []), r"items\(\): \[\] is not a cursor"),
        (
            lambda b: b.state.items(limit=10**5000),
            "the limit must be from 1 to 1000, not an int of 16610 bits",
        ),
        (lambda b: b.state.items(limit=True), "the limit must be from 1 to 1000, not True"),
        (lambda b: b.set_timer("k", 1.0, "x"), "data must be bytes, not str"),
        (lambda b: b.set_timer("k", 1.0, b"x" * 200), "plugin_state_bytes allows 100"),
        (lambda b: b.cancel_timer(5), "the key must be str"),
    ],
)
def test_bad_input_changes_nothing(
    broker_harness: Make, call: Callable[[Any], object], says: str
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    config = {"broker": {"plugin_state_bytes": 100}}
    harness = broker_harness([Counter()], store=store, config=config)
    before = list(store.committed)
    with pytest.raises(PluginError, match=says):
        call(harness.handle("counter"))
    harness.settle()
    assert store.committed == before
    assert harness.handle("counter").state.keys == 0


def test_a_timer_needs_on_timer(broker_harness: Make) -> None:
    class Mute(Plugin):
        pass

    harness = broker_harness([Mute(None, Context("mute"))])
    with pytest.raises(PluginError, match="does not implement on_timer"):
        harness.handle("mute").set_timer("k", 0.0)


def test_nothing_is_kept_before_the_state_is_loaded(broker_harness: Make) -> None:
    harness = broker_harness([Counter()], start=False)
    for call in ("get", "delete"):
        with pytest.raises(PluginError, match="not loaded yet: use it from on_startup on"):
            getattr(harness.handle("counter").state, call)("k")
    harness.start()
    assert harness.handle("counter").state.get("k") is None


def test_a_store_that_forgets_is_warned_of_once(broker_harness: Make) -> None:
    harness = broker_harness([Counter()])
    assert harness.logged("plugin.state_not_durable") == []
    for _ in range(3):
        harness.handle("counter").state.put("k", b"v")
    assert harness.logged("plugin.state_not_durable") == [{"plugin": "counter"}]
    durable = broker_harness([Counter()], store=DurableStore())
    durable.handle("counter").state.put("k", b"v")
    assert durable.logged("plugin.state_not_durable") == []


def test_a_delete_is_recorded_only_if_there_was_something(broker_harness: Make) -> None:
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([Counter()], store=store)
    records: list[Record] = store.records(PutState, DropState)
    harness.handle("counter").state.delete("k")
    harness.handle("counter").cancel_timer("k")
    harness.settle()
    assert store.records(PutState, DropState) == records == []


# the commit of a message ------------------------------------------------------------------------------------------------


TRACE = "0af7651916cd43dd8448eb211c80319c"


class Waiter(Plugin):
    """A plugin that waits for the commit of each message. `ends` maps each payload to the result."""

    def __init__(self) -> None:
        super().__init__(None, Context("waiter"))
        self.ends: dict[bytes, object] = {}

    @hookimpl
    def on_publish(self, message: Message, broker: BrokerHandle) -> None:
        def done(result: object, error: BaseException | None) -> None:
            self.ends[message.payload] = result if error is None else error

        broker.runtime.spawn(broker.when_committed(TRACE), done)


class Later(Plugin):
    """A plugin that takes 0.1 s to decide on each message."""

    @hookimpl
    async def on_publish(self, message: Message, broker: BrokerHandle) -> None:
        waited = broker.runtime.promise()
        broker.runtime.call_later(0.1, lambda: waited.set_result(None))
        await waited


def with_offline(make: Make, *plugins: Plugin) -> tuple[Harness, SlowStore]:
    """Create a broker with a slow store and two durable subscribers: an offline one on `q`, and an online one on `on`."""
    store = SlowStore(DurableStore(), slow=False)
    harness = make(plugins, store=store)
    away = harness.connect("away", session_expiry_interval=600)
    away.subscribe("q", 1)
    away.disconnect()
    online = harness.connect("online", session_expiry_interval=600)
    online.subscribe("on", 1)
    harness.settle()
    store.slow = True
    return harness, store


def test_when_committed_ends_with_the_commit_of_the_message(broker_harness: Make) -> None:
    waiter = Waiter()
    harness, store = with_offline(broker_harness, waiter)
    pub = harness.connect("pub")
    pub.publish("q", b"queued", 1)
    harness.settle()
    assert store.committing is not None
    assert waiter.ends == {}
    store.finish()
    harness.settle()
    assert waiter.ends == {b"queued": True}
    pub.expect(Puback)


def test_when_committed_says_whether_anything_was_written(broker_harness: Make) -> None:
    """A record counts only if it was made after the call and is still in the batch when it is committed."""
    waiter = Waiter()
    harness, store = with_offline(broker_harness, waiter)
    first, second = harness.connect("first"), harness.connect("second")
    with harness.together():
        first.publish("q", b"queued", 1)
        second.publish("nobody", b"passed on", 0)
    harness.settle()
    assert waiter.ends == {}  # the result still waits for the batch
    store.finish()
    harness.settle()
    assert waiter.ends == {b"queued": True, b"passed on": False}
    first.publish("q", b"queued again", 1)
    second.publish("on", b"acknowledged", 1)
    harness.settle()  # the subscriber acknowledges it while the other commit runs
    store.finish()
    harness.settle()
    assert waiter.ends[b"acknowledged"] is False


class SealingJournal(RecordingJournal):
    """A journal that needs no commit of the store for messages that it alone has."""

    def seal(self, done: Callable[[StoreFailed | None], None]) -> bool:
        self.flush(self.appended[-1][0], done)
        return True


def test_when_committed_knows_batches_without_the_store(broker_harness: Make) -> None:
    waiter, journal = Waiter(), SealingJournal(wants=lambda topic: topic == "j")
    harness = broker_harness([waiter], store=DurableStore(), journals=[journal])
    pub = harness.connect("pub", session_expiry_interval=0)
    harness.settle()
    for topic in ("j", "nobody"):
        pub.publish(topic, topic.encode(), 1)
        harness.settle()
    assert waiter.ends == {b"j": True, b"nobody": False}


def test_when_committed_leaves_an_exemplar(broker_harness: Make) -> None:
    harness, store = with_offline(broker_harness, Waiter())
    broker = harness.handle("waiter")
    pub = harness.connect("pub")
    pub.publish("nobody", b"x", 1)
    harness.settle()
    assert broker.metrics.commit_seconds.exemplars is None
    pub.publish("q", b"x", 1)
    harness.advance(0.375)
    store.finish()
    exemplars = broker.metrics.commit_seconds.exemplars
    assert exemplars is not None
    [found] = [one for one in exemplars if one is not None]
    assert found.value == pytest.approx(0.375)
    assert found[1:] == (TRACE, harness.clock.time())
    for wrong in (1, "x", TRACE.upper()):
        with pytest.raises(PluginError, match="cannot wait for a commit"):
            broker.when_committed(wrong)


def test_when_committed_without_a_store(broker_harness: Make) -> None:
    waiter = Waiter()
    harness = broker_harness([waiter])
    harness.connect("pub").publish("nobody", b"x", 1)
    harness.settle()
    assert waiter.ends == {b"x": False}


def test_when_committed_does_not_count_a_message_that_is_decided_later(
    broker_harness: Make,
) -> None:
    waiter = Waiter()
    harness, store = with_offline(broker_harness, waiter, Later(None, Context("later")))
    harness.connect("pub").publish("q", b"x", 1)
    harness.settle()
    assert waiter.ends == {b"x": False}
    harness.advance(2)
    assert store.committing is not None
    store.finish()
    harness.settle()
    assert waiter.ends == {b"x": False}


def test_when_committed_fails_with_the_store(broker_harness: Make) -> None:
    waiter = Waiter()
    harness, store = with_offline(broker_harness, waiter)
    harness.connect("pub").publish("q", b"x", 1)
    harness.settle()
    store.fail("disk on fire")
    harness.settle()
    assert str(waiter.ends[b"x"]) == "plugin 'waiter': the store failed: disk on fire"


def test_a_batch_is_not_cut_between_a_message_and_its_waiter(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookmq.storage.group_commit.MAX_RECORDS", 1)
    waiter = Waiter()
    harness, store = with_offline(broker_harness, waiter)
    pub = harness.connect("pub")
    with harness.together():
        for number in range(3):
            pub.publish("q", b"%d" % number, 1)
    harness.settle()
    while store.committing is not None:
        stored = {one.message.payload for one in store.committing if type(one) is PutMessage}
        assert not stored & waiter.ends.keys()
        store.finish(all=False)
        harness.settle()
        assert stored <= waiter.ends.keys()
    assert waiter.ends == {b"0": True, b"1": True, b"2": True}


def test_a_journal_gets_a_message_in_the_commit_of_the_turn(broker_harness: Make) -> None:
    """`append` and `state.put` belong to the same commit if they are called in the same turn. Neither other journals
    nor subscribers get the message.
    """
    store = SlowStore(DurableStore())
    mine, other = RecordingJournal("mine", wants=lambda topic: False), RecordingJournal("other")
    harness = broker_harness([Counter()], store=store, journals=[mine, other])
    reader = harness.connect("reader")
    reader.subscribe("#")
    store.finish()
    broker = harness.handle("counter")
    broker.append(mine, Message("t", b"x", 1))
    broker.state.put("count", b"1")
    harness.settle()
    number = store.last_commit().number + 1
    assert [(commit.number, one.payload) for commit, one in mine.safe] == [(number, b"x")]
    assert store.committing == (PutState("s/counter", "count", b"1"),)
    assert other.safe == []
    reader.expect_nothing()
    with pytest.raises(PluginError, match="the broker does not have this journal"):
        broker.append(RecordingJournal(), Message("t", b""))
    bad: Any = "t"
    with pytest.raises(PluginError, match="message is str, not Message"):
        broker.append(mine, bad)
    store.finish()


def await_(harness: Harness, call: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Await a call in the background. Return a list that will receive the result, or the text of the error."""
    ended: list[Any] = []

    async def run() -> None:
        try:
            ended.append(await call())
        except PluginError as error:
            ended.append(error.message)

    harness.clock.spawn(run(), lambda result, error: None)
    return ended


def test_a_journal_is_added_and_removed_while_messages_are_published(broker_harness: Make) -> None:
    """Every acknowledged message that the journal wanted is stored in it with the right commit number. A commit that
    was already running when the journal was added does not include it.
    """
    store = SlowStore(DurableStore())
    old, new = RecordingJournal("old"), RecordingJournal("new")
    harness = broker_harness([Counter()], store=store, journals=[old])
    broker, client = harness.handle("counter"), harness.connect("p")

    def publish(payload: bytes) -> None:
        client.publish("t", payload, 1)
        harness.settle()

    publish(b"1")
    running = old.appended[-1][0]
    assert store.committing is not None
    ended = await_(harness, lambda: broker.add_journal(new))
    harness.settle()
    assert ended == [None]
    assert new.recovered == [running._replace(number=running.number - 1)]
    publish(b"2")
    store.finish(all=False)
    harness.settle()
    assert new.made == []
    store.finish()
    harness.settle()
    assert [(commit.number, one.payload) for commit, one in new.safe] == [
        (running.number + 1, b"2")
    ]
    assert new.made == [running._replace(number=running.number + 1)]

    publish(b"3")
    ended = await_(harness, lambda: broker.remove_journal(new))
    harness.settle()
    assert ended == []
    publish(b"4")
    with pytest.raises(PluginError, match="the broker has it already"):
        broker.add_journal(new)
    store.finish(all=False)
    harness.settle()
    assert [one.payload for _, one in new.safe] == [b"2", b"3"]
    store.finish()
    harness.settle()
    assert ended == [None]
    assert [one.payload for _, one in new.appended] == [b"2", b"3"]
    assert [one.payload for _, one in old.safe] == [b"1", b"2", b"3", b"4"]
    flushes = len(new.flushes)
    publish(b"5")
    store.finish()
    assert len(new.flushes) == flushes
    assert [one.payload for _, one in old.safe][-1] == b"5"
    with pytest.raises(PluginError, match="the broker does not have this journal"):
        broker.remove_journal(new)

    ended = await_(harness, lambda: broker.add_journal(new))
    harness.settle()
    assert ended == [None]
    publish(b"6")
    store.finish()
    assert [one.payload for _, one in new.safe] == [b"2", b"3", b"6"]


def test_a_journal_that_cannot_recover_is_not_added(broker_harness: Make) -> None:
    class Broken(RecordingJournal):
        def recover(self, last: CommitId) -> None:
            raise StoreError("the folder is in use")

    harness = broker_harness([Counter()], journals=[])
    broken = Broken()
    ended = await_(harness, lambda: harness.handle("counter").add_journal(broken))
    harness.settle()
    assert ended == ["cannot add a journal: the folder is in use"]
    client = harness.connect("p")
    client.publish("t", b"1", 1, expect=0x10)
    assert broken.appended == []


class Filling(RecordingJournal):
    full = True


def test_publishers_do_not_wait_for_a_journal_that_was_removed(broker_harness: Make) -> None:
    journal = Filling()
    harness = broker_harness([Counter()], journals=[journal])
    client = harness.connect("p", 4)
    client.publish("t", b"1", 1)
    harness.settle()
    assert not client.unread
    journal.full = False
    ended = await_(harness, lambda: harness.handle("counter").remove_journal(journal))
    harness.advance(1)
    assert ended == [None]
    client.expect(Puback)
    assert journal.appended == []
