"""Test that denials, limits and failures affect plugin clients, and publishes with `as_client`, just like other
clients.

Each attack runs on the slow path. It also runs on the fast path, after three messages have made the topic known.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.events import DropReason
from hookmq.plugin import (
    Allow,
    Cancel,
    ClientHandle,
    ClientRequest,
    Context,
    Deny,
    Drop,
    LimitExceeded,
    Plugin,
    PluginError,
    PublishLimit,
    RateLimiter,
    ReasonCode,
    hookimpl,
)
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


class Told:
    """Records the result of an awaitable."""

    def __init__(self, harness: Harness, awaitable: Awaitable[Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        harness.clock.spawn(awaitable, self._told)

    def _told(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error


class Limit(PublishLimit):
    """A limit that the test controls. `over` returns `answer`, or lets the message wait if `answer` is None."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.left = 1_000_000
        self.answer: LimitExceeded | None = None
        self.waiting: list[Callable[[LimitExceeded | None], None]] = []
        self.cancelled = 0

    def take(self, size: int) -> bool:
        if self.fault is not None:
            raise self.fault
        self.left -= 1
        return self.left >= 0

    def over(self, size: int, qos: int, go: Any) -> Cancel | LimitExceeded:
        if self.answer is not None:
            return self.answer
        self.waiting.append(go)
        return self._cancel

    def _cancel(self) -> None:
        self.cancelled += 1


class Limits(Plugin, RateLimiter):
    """A plugin that gives every client the same limits."""

    def __init__(self) -> None:
        super().__init__(None, Context("limits"))
        self.limit = Limit()
        self.fault: Exception | None = None
        self.subscription: LimitExceeded | None = None

    @hookimpl
    def provide_rate_limiter(self, client: ClientInfo) -> RateLimiter | None:
        return self if client.client_id == "c" else None

    def publish_limit(self, topic: str) -> PublishLimit | None:
        if self.fault is not None:
            raise self.fault
        return self.limit

    def subscribe(self, filter: str) -> LimitExceeded | None:
        if self.fault is not None:
            raise self.fault
        return self.subscription


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
def other() -> HookRecorder:
    return HookRecorder("authorize", "on_dropped", id="other")


@pytest.fixture
def harness(broker_harness: Make, limits: Limits, other: HookRecorder) -> Harness:
    return broker_harness([HookRecorder("on_publish", id="gw"), limits, other])


@pytest.fixture(params=[False, True], ids=["new", "known"])
def client(request: pytest.FixtureRequest, harness: Harness) -> ClientHandle:
    """Return a plugin client. If the parameter is true, its next message to `t` takes the fast path, provided it is
    allowed.
    """
    made: ClientHandle = harness.clock.run(harness.handle("gw").connect(ClientRequest("c")))
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    for _ in range(3 if request.param else 0):
        assert harness.clock.run(made.publish("t", b"before", 1)) == 0
    return made


def received(harness: Harness) -> list[bytes]:
    (watcher,) = [one for one in harness.clients if one.client_id == "watcher"]
    harness.settle()
    return [message.payload for message in watcher.messages if message.payload != b"before"]


def drops(other: HookRecorder) -> list[DropReason]:
    return [call.why.reason for call in other.calls("on_dropped")]


# rate limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_refusal_of_the_rate_limit(
    harness: Harness, client: ClientHandle, limits: Limits, other: HookRecorder, qos: int
) -> None:
    limits.limit.left = 1
    limits.limit.answer = LimitExceeded("slow", Deny(ReasonCode.QUOTA_EXCEEDED))
    assert harness.clock.run(client.publish("t", b"1", qos)) < 0x80
    assert harness.clock.run(client.publish("t", b"2", qos)) == 0x97
    limits.limit.answer = LimitExceeded("slow", Drop())
    assert harness.clock.run(client.publish("t", b"3", qos)) < 0x80
    assert received(harness) == [b"1"]
    assert drops(other) == [DropReason.RATE_LIMITED] * 2
    assert client.connected


def test_a_client_that_ends_while_the_rate_limit_holds_its_message(
    harness: Harness, client: ClientHandle, limits: Limits
) -> None:
    limits.limit.left = 0
    first = Told(harness, client.publish("t", b"1", 1))
    second = Told(harness, client.publish("t", b"2", 0))
    harness.settle()
    assert not first.done
    assert harness.handle("gw").disconnect("c")
    harness.settle()
    for told in (first, second):
        assert "the client 'c' has ended" in str(told.error)
    assert limits.limit.cancelled == 1
    for go in limits.limit.waiting:  # simulates a limit that ignores the cancellation
        go(None)
    assert received(harness) == []


def test_a_wait_that_ends(harness: Harness, client: ClientHandle, limits: Limits) -> None:
    limits.limit.left = 0
    told = Told(harness, client.publish("t", b"1", 1))
    harness.settle()
    (go,) = limits.limit.waiting
    limits.limit.left = 1
    go(None)
    go(None)  # simulates a limit that calls `go` twice
    harness.settle()
    assert told.result == 0
    assert received(harness) == [b"1"]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("place", ["take", "publish_limit"])
def test_a_rate_limit_that_raises(
    harness: Harness, client: ClientHandle, limits: Limits, qos: int, place: str
) -> None:
    """If a rate limit raises an error, the message is not published, and awaiting its result raises an error as well."""
    if place == "take":
        limits.limit.fault = ArithmeticError("no count")
    else:
        limits.fault = ArithmeticError("no count")
        harness.handle("gw").invalidate_authz()  # makes the broker ask for a limit again
        harness.settle()
    called: list[int] = []
    client.publish_later("t", b"1", qos, done=called.append)
    told = Told(harness, client.publish("t", b"2", qos))
    harness.settle()
    assert "has ended" in str(told.error)
    assert called == [0x80]
    assert received(harness) == []
    assert not client.connected
    assert harness.logged("internal.error")
    harness.allow_errors = True


@pytest.mark.parametrize("raises", [False, True])
def test_the_rate_limit_of_subscriptions(
    harness: Harness, client: ClientHandle, limits: Limits, raises: bool
) -> None:
    limits.subscription = LimitExceeded("few", Deny(ReasonCode.QUOTA_EXCEEDED))
    if raises:
        limits.fault = ArithmeticError("no count")
    told = Told(harness, client.subscribe("x"))
    harness.settle()
    assert told.done
    if raises:
        assert "has ended" in str(told.error)
        harness.allow_errors = True
    else:
        assert told.result == 0x97
        assert not harness.broker.sessions["c"].subscriptions


# authorization ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (Deny(), 0x87, DropReason.DENIED),
        (ArithmeticError("no verdict"), 0x83, DropReason.UNDECIDED),
        ("nonsense", 0x83, DropReason.UNDECIDED),
        (Allow(max_qos=0), 0x87, DropReason.DENIED),
    ],
)
def test_what_authorize_refuses(
    harness: Harness,
    client: ClientHandle,
    other: HookRecorder,
    answer: Any,
    code: int,
    reason: DropReason,
) -> None:
    other.answer("authorize", answer)
    harness.handle("gw").invalidate_authz("c")
    harness.settle()
    assert harness.clock.run(client.publish("t", b"1", 1)) == code
    assert received(harness) == []
    assert drops(other) == [reason]
    assert client.connected


def test_a_takeover_while_messages_wait(
    harness: Harness, client: ClientHandle, limits: Limits
) -> None:
    """After a takeover, the client id belongs to the new client. Messages of the earlier client that are still waiting
    are not published in the new client's name.
    """
    limits.limit.left = 0
    told = [Told(harness, client.publish("t", b"1", 1)) for _ in range(3)]
    ended: list[Any] = []
    client.on_end = ended.append
    harness.settle()
    socket = harness.connect("c", clean_start=False)
    harness.settle()
    assert all("the client 'c' has ended" in str(one.error) for one in told)
    assert [one.code for one in ended] == [ReasonCode.SESSION_TAKEN_OVER]
    with pytest.raises(PluginError, match="has ended"):
        client.publish_later("t", b"2")
    for go in limits.limit.waiting:
        go(None)
    assert received(harness) == []
    assert not socket.closed


# as_client --------------------------------------------------------------------------------------------------------------


def unknown(client_id: str = "nobody") -> ClientInfo:
    return ClientInfo(client_id, 5, "ann", Peer("192.0.2.9"), Scope("nowhere"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Deny(), DropReason.DENIED),
        (ArithmeticError("no verdict"), DropReason.UNDECIDED),
        (Allow(max_qos=0), DropReason.DENIED),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_as_a_client_that_is_refused(
    harness: Harness,
    other: HookRecorder,
    answer: Any,
    reason: DropReason,
    known: bool,
) -> None:
    """A refused publish with `as_client` gives the same result whether or not the client is connected."""
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    harness.connect("c")
    client = harness.broker.sessions["c"].client if known else unknown()
    other.answer("authorize", answer)
    with pytest.raises(PluginError, match="refused"):
        harness.clock.run(harness.handle("gw").publish_and_wait("t", b"", 1, as_client=client))
    assert received(harness) == []
    assert drops(other) == [reason]
    assert other.calls("authorize")[-1].client is client


def test_as_a_client_that_nobody_knows_and_nobody_decides_on(broker_harness: Make) -> None:
    harness = broker_harness([HookRecorder(id="gw")], config={"authz": {"default": "deny"}})
    with pytest.raises(PluginError, match="refused: not authorized"):
        harness.clock.run(harness.handle("gw").publish_and_wait("t", b"", as_client=unknown()))
    assert harness.clock.run(harness.handle("gw").publish_and_wait("t", b"")) == 0


def test_a_hook_does_not_move_a_message_to_a_topic_that_its_client_may_not_use(
    broker_harness: Make, other: HookRecorder
) -> None:
    mover = HookRecorder("on_publish", id="mover")
    harness = broker_harness([HookRecorder(id="gw"), mover, other])
    mover.answer("on_publish", lambda message: message.replace(topic="secret"))
    other.answer("authorize", lambda topic: Deny() if topic == "secret" else None)
    with pytest.raises(PluginError, match="refused: not authorized"):
        harness.clock.run(harness.handle("gw").publish_and_wait("t", b"", as_client=unknown()))
    other.answer("authorize", None)
    mover.answer("on_publish", ArithmeticError("broken"))
    with pytest.raises(PluginError, match="refused"):
        harness.clock.run(harness.handle("gw").publish_and_wait("t", b"", as_client=unknown()))


def test_a_client_that_ends_while_a_plugin_decides_on_its_message(
    broker_harness: Make,
) -> None:
    """A client may end while `authorize` is deciding on its message. The verdict must not be bypassed, and an allowed
    message must not be lost.
    """
    other = HookRecorder("authorize", id="other")
    harness = broker_harness([HookRecorder(id="gw"), other])
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 1)
    one = harness.connect("one", username="ann")
    client = harness.broker.sessions["one"].client
    for verdict, payloads in ((Deny(), []), (Allow(), [b"x"])):
        event = harness.clock.event()

        async def decide() -> Any:
            return await event  # noqa: B023

        other.answer("authorize", lambda client: decide() if client.username == "ann" else None)
        told = Told(harness, harness.handle("gw").publish_and_wait("t", b"x", as_client=client))
        harness.settle()
        assert not told.done
        one.disconnect()
        other.answer("authorize", None)
        one = harness.connect("one", username="bob")
        event.set(verdict)
        harness.settle()
        assert told.done
        assert received(harness) == payloads
