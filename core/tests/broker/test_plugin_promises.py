"""Test that every promise a plugin awaits ends, either with a result or with a PluginError that names the cause."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import hookmq
import pytest
from hookmq.broker.plugin_promises import PluginPromises
from hookmq.model.errors import PluginError
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.mqtt.packets import Suback
from hookmq.plugin import ClientHandle, ClientRequest, Subscription
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq_testing import (
    DurableStore,
    Harness,
    HookRecorder,
    RecordingJournal,
    SlowStore,
    VirtualRuntime,
)
from hookmq_testing.runtime import EPOCH

Make = Callable[..., Harness]
PURE = hookmq.BUILD.kind == "pure"


class Told:
    """Records the result of an awaitable."""

    def __init__(self, harness: Harness, awaitable: Awaitable[Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        harness.clock.spawn(awaitable, self._told)

    def _told(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error


# the list ---------------------------------------------------------------------------------------------------------------


def test_promises_with_a_result_are_forgotten() -> None:
    clock = VirtualRuntime()
    promises = PluginPromises(clock)
    kept = promises.make("mine")
    for _ in range(10_000):
        promises.make("mine").set_result(None)
    assert len(promises) == 1
    assert len(promises._made) < 100
    promises.fail("the end")
    with pytest.raises(PluginError, match="plugin 'mine': the end"):
        clock.run(kept)
    promises.fail("another end")
    with pytest.raises(PluginError, match="plugin 'late': the end"):
        clock.run(promises.make("late"))


async def test_asyncio_reports_no_promise_that_nothing_awaited() -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    runtime = AsyncioRuntime()
    promises = PluginPromises(runtime)
    promises.make("mine")
    promises.fail("the end")
    promises.make("mine")
    del promises
    await runtime.close()
    assert reported == []


# the store --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> SlowStore:
    return SlowStore(DurableStore(), slow=False)


@pytest.fixture
def harness(broker_harness: Make, store: SlowStore) -> Harness:
    """Create a broker with an offline client that has a queue, and a store that has stopped committing."""
    plugin = HookRecorder("on_publish", "on_timer", id="mine")
    harness = broker_harness([plugin], store=store)
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe(["t", "u"], 1)
    away.disconnect()
    pub = harness.connect("pub")
    pub.publish("t", b"queued", 1)
    pub.publish("r", b"retained", 1, retain=True)
    harness.handle("mine").state.put("old", b"")
    harness.handle("mine").set_timer("old", EPOCH + 1e6)
    harness.settle()
    store.slow = True
    return harness


def calls(harness: Harness) -> dict[str, Awaitable[Any]]:
    """Make every call that waits for a commit."""
    broker = harness.handle("mine")
    return {
        "put": broker.state.put("k", b"v"),
        "delete": broker.state.delete("old"),
        "set_timer": broker.set_timer("k", EPOCH + 100),
        "cancel_timer": broker.cancel_timer("old"),
        "publish_and_wait": broker.publish_and_wait("t", b"x", 1),
        "subscribe": broker.subscribe("away", "v", 1),
        "unsubscribe": broker.unsubscribe("away", "u"),
        "purge_queue": broker.purge_queue("away"),
        "clear_retained": broker.clear_retained("r"),
        "queue": broker.queue("away"),
        "connect": broker.connect(ClientRequest("c", session_expiry=60)),
        "when_committed": broker.when_committed(),
    }


def test_the_store_fails(harness: Harness, store: SlowStore) -> None:
    told = {name: Told(harness, awaitable) for name, awaitable in calls(harness).items()}
    harness.settle()
    waiting = {name for name, one in told.items() if not one.done}
    assert waiting >= told.keys() - {"connect", "queue"}
    store.fail("disk on fire")
    harness.settle()
    assert all(one.done for one in told.values())
    errors = {name: str(told[name].error) for name in waiting}
    assert errors == dict.fromkeys(waiting, "plugin 'mine': the store failed: disk on fire")
    # From now on, calls must not wait for a commit that will never finish.
    later = {name: Told(harness, awaitable) for name, awaitable in calls(harness).items()}
    harness.settle()
    assert {name for name, one in later.items() if not one.done or one.error is None} == set()


def test_the_broker_ends(harness: Harness, store: SlowStore) -> None:
    told = {name: Told(harness, awaitable) for name, awaitable in calls(harness).items()}
    harness.settle()
    waiting = [one for one in told.values() if not one.done]
    harness.broker.end()
    harness.settle()
    assert all(one.done for one in told.values())
    assert {str(one.error) for one in waiting} == {"plugin 'mine': the broker has ended"}
    harness.handle("mine").state.put("late", b"")
    store.finish(all=False)
    harness.settle()
    assert store.committing is None, "the store is closed next"


def test_a_clients_requests_end_with_its_broker(broker_harness: Make) -> None:
    """A plugin client's pending requests end when the broker does. If the store fails, the server disconnects all
    clients.
    """
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([HookRecorder("on_publish", id="mine")], store=store)
    request = ClientRequest("c", session_expiry=60)
    client: ClientHandle = harness.clock.run(harness.handle("mine").connect(request))
    store.slow = True
    called: list[int] = []
    asked = [
        client.subscribe("s", 1), client.publish("t", b"", 1), client.publish("t", b"", 2),
        client.unsubscribe("t"), anext(aiter(client.messages())),
    ]  # fmt: skip
    client.publish_later("t", b"", 1, done=called.append)
    told = [Told(harness, one) for one in asked]
    harness.settle()
    assert [one.done for one in told] == [False] * 5
    assert not called
    harness.broker.on_failure = lambda reason: harness.broker.drain("", lambda: None)
    store.fail()
    harness.settle()
    assert [type(one.error).__name__ for one in told] == [
        *["PluginError"] * 4, "StopAsyncIteration",
    ]  # fmt: skip
    assert called == [0x80]


# internal errors --------------------------------------------------------------------------------------------------------


class BrokenDict(dict[str, Any]):
    """A dictionary that cannot be changed."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise ArithmeticError("cannot be changed")


class Unknown(RecordingJournal):
    """A journal whose `wants` method raises an error."""

    def wants(self, topic: str) -> bool:
        if topic == "t":
            raise ArithmeticError("no idea")
        return False


def expect_internal_error(harness: Harness, told: Told, match: str) -> None:
    harness.settle()
    assert told.done
    assert isinstance(told.error, PluginError)
    assert match in str(told.error)
    errors = [str(fields["error"]) for fields in harness.logged("internal.error")]
    assert len(errors) == 1
    assert "ArithmeticError" in errors[0]
    harness.allow_errors = True


async def later(answer: Any) -> Any:
    return answer


@pytest.mark.parametrize("late", [False, True])
def test_publishing_meets_an_internal_error(broker_harness: Make, late: bool) -> None:
    other = HookRecorder("on_publish", id="other")
    harness = broker_harness([HookRecorder(id="mine"), other], journals=[Unknown()])
    if late:
        other.answer("on_publish", lambda message: later(message))
    told = Told(harness, harness.handle("mine").publish_and_wait("t", b""))
    expect_internal_error(harness, told, "refused: unspecified" if late else "internal error")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_is_not_left_waiting_after_an_internal_error(
    broker_harness: Make, qos: int
) -> None:
    """A publisher does not wait forever if an internal error occurs after a plugin has been awaited. In this case, the
    connection used to stop handling packets.
    """
    other = HookRecorder("on_publish", id="other")
    harness = broker_harness([other], journals=[Unknown()])
    other.answer("on_publish", lambda message: later(message))
    pub = harness.connect("pub")
    pub.publish("t", b"", qos, expect=0x80)
    pub.publish("other", b"", qos, expect=0x10)
    assert len(harness.logged("internal.error")) == 1
    harness.allow_errors = True


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("plugin", [False, True])
def test_subscribing_meets_an_internal_error(
    broker_harness: Make, late: bool, plugin: bool
) -> None:
    other = HookRecorder("on_subscribe", id="other")
    harness = broker_harness([HookRecorder(id="mine"), other])
    one = harness.connect("one")
    harness.broker.sessions["one"].subscriptions = BrokenDict()
    if late:
        other.answer("on_subscribe", lambda subscription: later(subscription))
    if plugin:
        told = Told(harness, harness.handle("mine").subscribe("one", "t"))
        harness.settle()
        assert told.done
        if late:
            assert (told.error, told.result) == (None, 0x80)
        else:
            assert "internal error: ArithmeticError" in str(told.error)
    elif late:
        one.send_subscribe(["a", "b"])
        assert one.expect(Suback).codes == (0x80, 0x80)
    else:
        one.send_subscribe("a")
        one.expect_disconnect(0x83)
    assert harness.logged("internal.error")
    harness.allow_errors = True


def test_purging_meets_an_internal_error(harness: Harness, store: SlowStore) -> None:
    store.slow = False
    store.finish()
    harness.settle()

    def broken(*_: object) -> None:
        raise ArithmeticError("cannot count")

    harness.broker.state.on_drop = broken
    told = Told(harness, harness.handle("mine").purge_queue("away"))
    expect_internal_error(harness, told, "internal error: ArithmeticError('cannot count')")
    harness.broker.state.on_drop = None
    assert harness.broker.sessions["away"].paused == 0, "its queue would wait for ever"


class BrokenReads(DurableStore):
    """A store whose pages contain an invalid entry."""

    def read(self, *args: Any) -> None:
        args[-1]([("no entry", Message("t", b""))])


def test_reading_a_queue_meets_an_internal_error(broker_harness: Make) -> None:
    plugin = HookRecorder(id="mine")
    config = {"session": {"queue_page": 1}}
    harness = broker_harness([plugin], store=BrokenReads(), config=config)
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("t", 1)
    away.disconnect()
    for _ in range(3):
        harness.connect("pub").publish("t", b"", 1)
    told = Told(harness, harness.handle("mine").queue("away"))
    harness.settle()
    assert told.done
    assert "internal error: AttributeError" in str(told.error)
    harness.allow_errors = True


@pytest.mark.skipif(not PURE, reason="compiled functions cannot be replaced")
@pytest.mark.parametrize("late", [False, True])
def test_authorizing_meets_an_internal_error(
    broker_harness: Make, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    other = HookRecorder("authorize", id="other")
    harness = broker_harness([HookRecorder(id="mine"), other])
    harness.connect("one")
    client = harness.broker.sessions["one"].client
    if late:
        other.answer("authorize", lambda: later(None))

    def broken(*_: object) -> None:
        raise ArithmeticError("no verdict")

    monkeypatch.setattr("hookmq.broker.plugin_api.authorization.isinstance", broken, raising=False)
    with monkeypatch.context() as only:
        only.setattr("hookmq.broker.plugin_api.authorization.isinstance", isinstance, raising=False)
        told = Told(harness, harness.handle("mine").authorize(client, Action.PUBLISH, "t"))
    expect_internal_error(harness, told, "internal error: ArithmeticError('no verdict')")


@pytest.mark.skipif(not PURE, reason="compiled functions cannot be replaced")
def test_clearing_meets_an_internal_error(
    harness: Harness, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.slow = False

    def broken(*_: object) -> None:
        raise ArithmeticError("not cleared")

    monkeypatch.setattr("hookmq.broker.publish.retained._release", broken)
    told = Told(harness, harness.handle("mine").clear_retained("#"))
    expect_internal_error(harness, told, "internal error: ArithmeticError('not cleared')")


def test_a_subscription_of_a_client_that_ended_meanwhile(broker_harness: Make) -> None:
    other = HookRecorder("on_subscribe", id="other")
    harness = broker_harness([HookRecorder(id="mine"), other])
    harness.connect("one")
    event = harness.clock.event()

    async def decide(subscription: Subscription) -> Subscription:
        await event
        return subscription

    other.answer("on_subscribe", lambda subscription: decide(subscription))
    told = Told(harness, harness.handle("mine").subscribe("one", "t"))
    harness.settle()
    harness.handle("mine").end_session("one")
    harness.settle()
    event.set()
    harness.settle()
    assert told.done
    assert "has ended" in str(told.error)
