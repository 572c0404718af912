"""Test calls to the `broker` handle from other threads. They are passed to the event loop or refused. The tests use
virtual and real threads.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.manager import Hooks
from hookmq.hooks.traces import TraceRequest
from hookmq.model.drain import DrainRequest
from hookmq.model.errors import PluginError
from hookmq.model.events import Action
from hookmq.model.settings import AuthSettings, AuthzSettings, BrokerSettings, Settings
from hookmq.plugin import Accept, ClientRequest, Context, Message, Plugin, hookimpl
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.storage.records import CommitId
from hookmq_testing import Harness, HookRecorder, will

Make = Callable[..., Harness]

HANDED: list[tuple[str, Callable[[BrokerHandle], Any]]] = [
    ("publish", lambda broker: broker.publish("answer", b"x", 1)),
    ("emit", lambda broker: broker.emit("mine.seen", number=1)),
    ("invalidate_authz", lambda broker: broker.invalidate_authz()),
    ("invalidate_routes", lambda broker: broker.invalidate_routes()),
]
"""Calls that change the broker and return nothing. The event loop performs them."""
REFUSED: list[tuple[str, Callable[[BrokerHandle], Any]]] = [
    ("publish_and_wait()", lambda broker: broker.publish_and_wait("answer", b"x")),
    ("authorize()", lambda broker: broker.authorize(None, Action.PUBLISH, "t")),  # type: ignore[arg-type]
    ("explain_connect()", lambda broker: broker.explain_connect(ClientRequest())),
    ("explain()", lambda broker: broker.explain(None, Action.PUBLISH, "t")),  # type: ignore[arg-type]
    ("services()", lambda broker: broker.services("x")),
    ("transform()", lambda broker: broker.transform(None, Message("t", b""))),
    ("connect()", lambda broker: broker.connect(ClientRequest())),
    ("disconnect()", lambda broker: broker.disconnect("c")),
    ("end_session()", lambda broker: broker.end_session("c")),
    ("subscribe()", lambda broker: broker.subscribe("c", "t")),
    ("unsubscribe()", lambda broker: broker.unsubscribe("c", "answer")),
    ("purge_queue()", lambda broker: broker.purge_queue("c")),
    ("deliveries()", lambda broker: broker.deliveries(lambda ended: None)),
    ("append()", lambda broker: broker.append(None, Message("t", b""))),  # type: ignore[arg-type]
    ("add_journal()", lambda broker: broker.add_journal(None)),  # type: ignore[arg-type]
    ("remove_journal()", lambda broker: broker.remove_journal(None)),  # type: ignore[arg-type]
    ("observe()", lambda broker: broker.observe("on_dropped", True)),
    ("reload()", lambda broker: broker.reload()),
    ("clear_retained()", lambda broker: broker.clear_retained("#")),
    ("client()", lambda broker: broker.client("c")),
    ("session()", lambda broker: broker.session("c")),
    ("sessions()", lambda broker: broker.sessions()),
    ("subscriptions()", lambda broker: broker.subscriptions()),
    ("queue()", lambda broker: broker.queue("c")),
    ("inflight()", lambda broker: broker.inflight("c")),
    ("retained()", lambda broker: broker.retained("#")),
    ("shared_groups()", lambda broker: broker.shared_groups()),
    ("listeners()", lambda broker: broker.listeners()),
    ("counters()", lambda broker: broker.counters()),
    ("plugins()", lambda broker: broker.plugins()),
    ("configuration()", lambda broker: broker.configuration()),
    ("trace()", lambda broker: broker.trace(TraceRequest(client_id="c"))),
    ("runtime", lambda broker: broker.runtime),
    ("state", lambda broker: broker.state),
    ("set_timer()", lambda broker: broker.set_timer("k", 0.0)),
    ("cancel_timer()", lambda broker: broker.cancel_timer("k")),
    ("when_committed()", lambda broker: broker.when_committed()),
    ("check_configuration()", lambda broker: broker.check_configuration("version: 1")),
    ("drain()", lambda broker: broker.drain(DrainRequest())),
    ("cancel_drain()", lambda broker: broker.cancel_drain()),
    ("drain_status()", lambda broker: broker.drain_status()),
    ("log_levels()", lambda broker: broker.log_levels()),
    ("set_log_level()", lambda broker: broker.set_log_level("info")),
    ("follow_log()", lambda broker: broker.follow_log()),
]
"""Calls that return broker state. They are refused in a thread."""
FREE: list[tuple[str, Callable[[BrokerHandle], Any]]] = [
    ("log", lambda broker: broker.log("info", "mine.logged")),
    ("now", lambda broker: broker.now()),
    ("time", lambda broker: broker.time()),
    ("metrics", lambda broker: broker.metrics.messages_received),
]
"""Calls that any thread may make."""


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b: b.disconnect([]), "cannot disconnect a client: client_id is list, not str"),
        (lambda b: b.disconnect("one", 0x98, drop_will=True), "code is int, not ReasonCode"),
        (lambda b: b.disconnect("one", reason=5, drop_will=True), "reason is int, not str"),
        (lambda b: b.end_session({}), "cannot end a session: client_id is dict, not str"),
        (lambda b: b.end_session("one", 5), "reason is int, not str"),
        (lambda b: b.client([]), "cannot find a client: client_id is list, not str"),
        (lambda b: b.session([]), "cannot read a session: client_id is list, not str"),
        (lambda b: b.sessions(5), r"sessions\(\): 5 is not a cursor"),
        (lambda b: b.queue([]), "client_id is list, not str"),
        (lambda b: b.inflight({}), "client_id is dict, not str"),
        (lambda b: b.emit(5), "cannot emit: event is int, not str"),
        (lambda b: b.emit("a.b", "one"), "cannot emit: client is str, not "),
        (lambda b: b.invalidate_authz([]), "client_id is list, not "),
        (lambda b: b.invalidate_authz(filter=5), "filter is int, not "),
        (lambda b: b.invalidate_authz(filter="a#"), "cannot invalidate decisions: "),
        (lambda b: b.authorize(None, Action.PUBLISH, "a"), "client is NoneType"),
        (lambda b: b.authorize("one", [], "a"), "client is str"),
    ],
)
def test_a_wrong_argument_names_the_call_and_the_type(
    broker_harness: Make, call: Callable[[Any], object], text: str
) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_event", id="mine")])
    one = harness.connect("one", will=will("bye"))
    with pytest.raises(PluginError, match=text):
        call(harness.handle("mine"))
    assert not one.closed
    assert harness.broker.sessions["one"].will is not None


def test_every_member_of_the_handle_has_its_rule() -> None:
    """Every method of the handle has a rule for calls from threads. Add each new method to one of the lists above."""
    members = {name for name in vars(BrokerHandle) if not name.startswith("_")}
    ruled = {name.removesuffix("()") for name, _ in (*HANDED, *REFUSED, *FREE)}
    assert members == ruled


class Caller(Plugin):
    """A plugin that calls its handle from an observer running in a thread."""

    call: Callable[[BrokerHandle], Any]

    def __init__(self, call: Callable[[BrokerHandle], Any]) -> None:
        super().__init__(None, Context("caller"))
        self.call = call
        self.outcome: Any = None

    @hookimpl
    def on_published(self, message: Message, broker: BrokerHandle) -> None:
        if message.topic == "ask":
            try:
                self.outcome = self.call(broker)
            except BaseException as error:
                self.outcome = error


class Journal:
    """A journal that counts how often the broker calls `wants`."""

    name = "asked"

    def __init__(self) -> None:
        self.asked = 0

    def wants(self, topic: str) -> bool:
        self.asked += 1
        return False

    def full(self) -> bool:
        return False

    def append(self, commit: CommitId, message: Message) -> None: ...

    def flush(self, commit: CommitId, done: Callable[[None], None]) -> None:
        done(None)

    def recover(self, last: CommitId | None) -> None: ...


# --- the virtual runtime ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "call"), HANDED)
def test_calls_without_a_result_are_passed_to_the_event_loop(
    broker_harness: Make, name: str, call: Callable[[BrokerHandle], Any]
) -> None:
    caller, witness = Caller(call), HookRecorder("on_event", "authorize")
    journal = Journal()
    harness = broker_harness(plugins=[caller, witness], journals=[journal])
    on_loop: list[bool] = []
    handed = harness.clock.call_threadsafe

    def seen(call: Callable[[], None]) -> None:
        on_loop.append(harness.clock.on_loop())
        handed(call)

    harness.clock.call_threadsafe = seen  # type: ignore[method-assign]
    client = harness.connect("c")
    client.subscribe("answer")
    witness.clear()
    client.publish("ask", b"", 1)
    asked = journal.asked
    harness.settle()
    assert caller.outcome is None
    assert on_loop == [False], "a thread handed it over, once"
    match name:
        case "publish":
            client.expect_message("answer", b"x")
        case "emit":
            (event,) = witness.calls("on_event")
            assert (event.event, event.plugin, event.fields) == (
                "mine.seen", "caller", {"number": 1}
            )  # fmt: skip
        case "invalidate_authz":
            actions = [asked.action for asked in witness.calls("authorize")]
            assert Action.SUBSCRIBE in actions, "its subscription was asked about again"
        case "invalidate_routes":
            client.publish("ask", b"", 1)
            assert journal.asked > asked


@pytest.mark.parametrize(("name", "call"), REFUSED)
def test_calls_that_need_state_are_refused_in_a_thread(
    broker_harness: Make, name: str, call: Callable[[BrokerHandle], Any]
) -> None:
    caller = Caller(call)
    harness = broker_harness(plugins=[caller])
    harness.connect("c").publish("ask", b"", 1)
    harness.settle()
    assert isinstance(caller.outcome, PluginError)
    assert str(caller.outcome) == (
        f"plugin 'caller': broker.{name} is for the event loop, and this is a thread: make the hook `async def`"
    )
    assert harness.broker.sessions["c"].connection is not None


@pytest.mark.parametrize(("name", "call"), FREE)
def test_calls_that_touch_no_state_work_in_a_thread(
    broker_harness: Make, name: str, call: Callable[[BrokerHandle], Any]
) -> None:
    caller = Caller(call)
    harness = broker_harness(plugins=[caller])
    harness.connect("c").publish("ask", b"", 1)
    harness.settle()
    assert not isinstance(caller.outcome, BaseException)


def test_a_mistake_is_told_to_the_thread(broker_harness: Make) -> None:
    caller = Caller(lambda broker: broker.publish("a/#", b""))
    harness = broker_harness(plugins=[caller])
    harness.connect("c").publish("ask", b"", 1)
    harness.settle()
    assert isinstance(caller.outcome, PluginError)


class Blocker(Plugin):
    """A plugin that decides in a thread, and emits an event about its decision."""

    blocking = True

    @hookimpl
    def on_connect(self, broker: BrokerHandle) -> Accept:
        broker.publish("seen", b"one")
        broker.publish("seen", b"two")
        return Accept()


def test_plugins_that_block(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[Blocker(None, Context("blocker"))])
    watcher = harness.connect("watcher")
    watcher.subscribe("seen")
    harness.connect("c")
    watcher.expect_message("seen", b"one")
    watcher.expect_message("seen", b"two")


class Echo(Plugin):
    """A plugin that responds to every message, including its own responses."""

    @hookimpl
    def on_published(self, message: Message, broker: BrokerHandle) -> None:
        broker.publish("echo", message.payload)


class BlockingEcho(Plugin):
    """Like `Echo`, but with a transform that runs in a thread."""

    blocking = True

    @hookimpl
    def on_publish(self, message: Message, broker: BrokerHandle) -> None:
        broker.publish("echo", message.payload)


@pytest.mark.parametrize(
    "plugins",
    [
        [Echo(None, Context("echo"))],
        [BlockingEcho(None, Context("one")), BlockingEcho(None, Context("two"))],
    ],
    ids=["observer", "blocking"],
)
def test_a_loop_through_threads_ends(broker_harness: Make, plugins: list[Plugin]) -> None:
    """Loops through threads end, because a message published in a thread is one level deeper than the message it
    responds to.
    """
    harness = broker_harness(plugins=plugins, config={"broker": {"publish_depth": 3}})
    harness.connect("c").publish("t", b"x", 1)
    harness.advance(10)
    assert harness.logged("publish.too_deep")


# --- real threads ------------------------------------------------------------------------------------------------------


class Crowd(Plugin):
    """A plugin that publishes from its own threads and from its observers."""

    def __init__(self, expected: int) -> None:
        super().__init__(None, Context("crowd"))
        self.expected = expected
        self.seen: dict[str, list[int]] = {}
        self.threads: set[int] = set()
        self.failed: list[BaseException] = []
        self.arrived = threading.Event()

    def work(self, broker: BrokerHandle, name: str, count: int) -> None:
        try:
            for number in range(count):
                broker.publish(f"crowd/{name}", b"%d" % number)
        except BaseException as error:
            self.failed.append(error)

    @hookimpl
    def on_published(self, message: Message, broker: BrokerHandle) -> None:
        self.threads.add(threading.get_ident())
        kind, _, name = message.topic.partition("/")
        if kind == "crowd":
            try:
                broker.publish(f"echo/{name}", message.payload)
            except BaseException as error:
                self.failed.append(error)
        else:
            self.seen.setdefault(name, []).append(int(message.payload))
            if sum(map(len, self.seen.values())) == self.expected:
                self.arrived.set()


def test_real_threads() -> None:
    """Eight threads and an observer publish at once. No message is lost, and the order within each thread is preserved.

    Only the event loop accesses the broker. If a thread did, asyncio's debug mode would raise an error.
    """
    workers, count = 8, 50
    crowd = Crowd(workers * count)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        runtime = AsyncioRuntime(threads=2)
        hooks = Hooks.of(crowd)
        settings = Settings(
            broker=BrokerSettings(),
            auth=AuthSettings("allow"),
            authz=AuthzSettings("allow"),
        )
        broker = Broker(settings, runtime, hooks)
        started = loop.create_future()
        broker.start(started.set_result)
        assert await started is None
        instance = hooks.instance("crowd")
        assert instance is not None
        assert instance.broker is not None
        threads = [
            threading.Thread(target=partial(crowd.work, instance.broker, str(number), count))
            for number in range(workers)
        ]
        for thread in threads:
            thread.start()
        assert await asyncio.to_thread(crowd.arrived.wait, 60), crowd.failed
        for thread in threads:
            thread.join()
        assert threading.get_ident() not in crowd.threads
        await runtime.close()

    asyncio.run(main(), debug=True)
    assert crowd.failed == []
    assert crowd.seen == {str(number): list(range(count)) for number in range(workers)}


def test_a_real_thread_beside_the_virtual_runtime(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder(id="mine")])
    sub = harness.connect("sub")
    sub.subscribe("t")
    broker = harness.handle("mine")
    told: list[Any] = []

    def work() -> None:
        broker.publish("t", b"x")
        try:
            broker.sessions()
        except PluginError as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(told) == 1
    harness.settle()
    sub.expect_message("t", b"x")


def test_after_the_end_of_the_loop() -> None:
    async def main() -> BrokerHandle:
        runtime = AsyncioRuntime()
        hooks = Hooks.of(Crowd(0))
        Broker(Settings(), runtime, hooks)
        instance = hooks.instance("crowd")
        assert instance is not None
        assert instance.broker is not None
        await runtime.close()
        return instance.broker

    broker = asyncio.run(main())
    told: list[BaseException] = []

    def work() -> None:
        try:
            broker.publish("t", b"")
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [type(error) for error in told] == [PluginError]
