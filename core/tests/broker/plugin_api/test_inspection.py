"""Test how a plugin reads the broker's state: sessions, subscriptions, shared subscriptions and listeners."""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import pytest
from hookmq.broker.plugin_api import inspection
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.model.client import Peer, Scope
from hookmq.model.errors import PluginError, StaleCursor
from hookmq.model.snapshots import ListenerSnapshot, Page, SharedGroup
from hookmq.model.subscription import Subscription
from hookmq.mqtt.topics import matches
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, will
from hookmq_testing.runtime import EPOCH
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Harness]
Fetch = Callable[..., Page[Any]]


@pytest.fixture
def harness(broker_harness: Make) -> Harness:
    return broker_harness(plugins=[HookRecorder("on_publish", id="mine")])


@pytest.fixture
def broker(harness: Harness) -> BrokerHandle:
    return harness.handle("mine")


def everything(fetch: Fetch) -> list[Any]:
    """Return the items of all pages."""
    found: list[Any] = []
    page = fetch()
    found += page.items
    while page.cursor:
        page = fetch(cursor=page.cursor)
        found += page.items
    return found


def names(items: Any) -> list[str]:
    return [item.client_id for item in items]


def test_a_client_is_one_that_is_connected(harness: Harness, broker: BrokerHandle) -> None:
    one = harness.connect("one", session_expiry_interval=60)
    assert broker.client("one") is harness.broker.sessions["one"].client
    assert broker.client("three") is None
    one.disconnect()
    assert broker.client("one") is None  # a session, but no connection


def test_a_session_and_each_of_its_fields(harness: Harness, broker: BrokerHandle) -> None:
    harness.advance(2)
    one = harness.connect(
        "one", 5, False, 30, "ann", will=will("gone", b"x"), scope=Scope("internal"), peer=Peer("192.0.2.9", 7),
        session_expiry_interval=60, receive_maximum=2,
    )  # fmt: skip
    one.auto_ack = False
    one.subscribe(["a", "b"], 1)
    pub = harness.connect("pub")
    for _ in range(5):
        pub.publish("a", b"123", 1)
    shown = broker.session("one")
    assert shown is not None
    (also,) = broker.sessions(client_id="one").items
    assert also == shown
    assert shown.client_id == "one"
    assert (shown.username, shown.identity) == ("ann", None)
    assert (shown.listener, shown.peer, shown.version) == ("internal", Peer("192.0.2.9", 7), 5)
    assert (shown.connected, shown.connected_at, shown.ended_at) == (True, EPOCH + 2, None)
    assert (shown.clean_start, shown.keep_alive) == (False, 30)
    assert (shown.expiry, shown.durable) == (60, True)
    assert (shown.subscriptions, shown.inflight, shown.queued, shown.queued_bytes) == (2, 2, 3, 12)
    assert (shown.will, shown.receive_maximum) == ("gone", 2)
    harness.advance(3)
    one.disconnect()
    later = broker.session("one")
    assert later is not None
    assert (later.connected, later.connected_at, later.ended_at) == (False, EPOCH + 2, EPOCH + 5)
    assert later.will is None
    assert shown.connected  # the snapshot did not change
    harness.advance(61)
    assert broker.session("one") is None


def test_a_clean_session_and_one_that_never_ends(broker_harness: Make) -> None:
    harness = broker_harness(
        plugins=[HookRecorder("on_publish", id="mine")], config={"session": {"max_expiry": inf}}
    )
    broker = harness.handle("mine")
    harness.connect("clean")
    harness.connect("ever", session_expiry_interval=0xFFFFFFFF)
    shown = [(one.client_id, one.expiry, one.durable) for one in broker.sessions().items]
    assert shown == [("clean", 0, False), ("ever", inf, True)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["door-1", "door-2", "lamp", "away"]),
        ({"client_id": "door-"}, ["door-1", "door-2"]),
        ({"client_id": "door-2"}, ["door-2"]),
        ({"client_id": "DOOR"}, []),
        ({"username": "ann"}, ["door-1", "lamp"]),
        ({"username": "anna"}, ["lamp"]),
        ({"listener": "internal"}, ["lamp"]),
        ({"listener": "inter"}, []),
        ({"connected": True}, ["door-1", "door-2", "lamp"]),
        ({"connected": False}, ["away"]),
        ({"connected": True, "client_id": "door", "username": "ann"}, ["door-1"]),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_sessions_are_selected(
    harness: Harness, broker: BrokerHandle, query: dict[str, Any], found: list[str], limit: int
) -> None:
    harness.connect("door-1", username="ann")
    harness.connect("door-2")
    harness.connect("lamp", username="anna", scope=Scope("internal"))
    harness.connect("away", session_expiry_interval=60).disconnect()
    assert names(everything(partial(broker.sessions, limit=limit, **query))) == found


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 1000])
def test_only_the_last_page_has_no_cursor(
    harness: Harness, broker: BrokerHandle, limit: int
) -> None:
    for number in range(4):
        harness.connect(f"c{number}")
    for query in ({}, {"connected": True}):
        sizes = []
        page = broker.sessions(limit=limit, **query)  # type: ignore[arg-type]
        while page.cursor:
            sizes.append(len(page.items))
            page = broker.sessions(page.cursor, limit, **query)  # type: ignore[arg-type]
        sizes.append(len(page.items))
        assert sizes == [limit] * ((4 - 1) // limit) + [(4 - 1) % limit + 1]


def test_there_are_no_sessions(broker: BrokerHandle) -> None:
    assert broker.sessions() == Page(())
    assert broker.subscriptions() == Page(())
    assert broker.subscriptions(client_id="nobody") == Page(())
    assert broker.shared_groups() == Page(())


def test_one_call_examines_a_bounded_number(
    harness: Harness, broker: BrokerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "EXAMINED", 5)
    for number in range(23):
        harness.connect(f"c{number}").subscribe(f"t/{number}")
    page = broker.sessions(client_id="c22")
    assert page.items == ()  # an empty page, but not the last one
    calls = 1
    while page.cursor:
        page = broker.sessions(page.cursor, client_id="c22")
        calls += 1
    assert names(page.items) == ["c22"]
    assert calls == 5
    found: list[Any] = []
    fetch = partial(broker.subscriptions, filter="t/22")
    subscriptions = fetch()
    calls = 1
    while subscriptions.cursor:
        found += subscriptions.items
        subscriptions = fetch(subscriptions.cursor)
        calls += 1
    assert names([*found, *subscriptions.items]) == ["c22"]
    assert calls >= 23 // 5


# --- under change ------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["new", "end", "away", "back", "page"]), st.integers(0, 99)),
    max_size=40,
)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(1, 4))
def test_a_session_that_stays_is_seen_once(steps: list[tuple[str, int]], limit: int) -> None:
    """A session that exists throughout is listed once, even if other sessions begin and end, or its own connection
    changes.
    """
    with Harness(plugins=[HookRecorder("on_publish", id="mine")]) as harness:
        broker = harness.handle("mine")
        stay = [harness.connect(f"s{number}", session_expiry_interval=60) for number in range(6)]
        others: list[MemoryClient] = []
        seen: list[str] = []
        page = broker.sessions(limit=limit)
        seen += names(page.items)
        for step, number in steps:
            if step == "new":
                others.append(harness.connect(f"o{len(harness.clients)}"))
            elif step == "end" and others:
                others.pop(number % len(others)).disconnect()
            elif step == "away":
                client = stay[number % 6]
                if not client.closed:
                    client.disconnect()
            elif step == "back":
                client = stay[number % 6]
                if client.closed:
                    client.reconnect()
            elif step == "page" and page.cursor:
                page = broker.sessions(page.cursor, limit)
                seen += names(page.items)
        while page.cursor:
            page = broker.sessions(page.cursor, limit)
            seen += names(page.items)
        assert [name for name in seen if name[0] == "s"] == [f"s{n}" for n in range(6)]
        assert names(everything(broker.sessions)) == list(harness.broker.sessions)
        assert len(set(seen)) == len(seen)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("+-p"), st.integers(0, 2), st.integers(0, 30)), max_size=50),
    st.integers(1, 5),
    st.sampled_from(["", "a/7", "a/#"]),
)
def test_a_subscription_that_stays_is_seen_once(
    steps: list[tuple[str, int, int]], limit: int, filter: str
) -> None:
    with Harness(plugins=[HookRecorder("on_publish", id="mine")]) as harness:
        broker = harness.handle("mine")
        clients = [harness.connect(f"c{number}") for number in range(3)]
        for client in clients:
            client.subscribe(["a/+", "a/7", "b", "#"])
        stay = [
            (f"c{number}", name) for number in range(3) for name in sorted(["a/+", "a/7", "b", "#"])
            if not filter or name == "#" or name[0] == "a"
        ]  # fmt: skip
        seen: list[tuple[str, str]] = []
        page = broker.subscriptions(limit=limit, filter=filter)
        seen += [(one.client_id, one.subscription.filter) for one in page.items]
        for step, number, name in steps:
            if step == "+":
                clients[number].subscribe(f"a/x/{name}")
            elif step == "-":
                clients[number].unsubscribe(f"a/x/{name}")
            elif page.cursor:
                page = broker.subscriptions(page.cursor, limit, filter=filter)
                seen += [(one.client_id, one.subscription.filter) for one in page.items]
        while page.cursor:
            page = broker.subscriptions(page.cursor, limit, filter=filter)
            seen += [(one.client_id, one.subscription.filter) for one in page.items]
        assert [one for one in seen if "x" not in one[1]] == stay
        assert len(set(seen)) == len(seen)


# --- subscriptions -----------------------------------------------------------------------------------------------------


def test_subscriptions_of_one_session_and_of_all(harness: Harness, broker: BrokerHandle) -> None:
    one, two = harness.connect("one"), harness.connect("two")
    one.subscribe(["b", "a/#"], 1)
    two.subscribe("$share/g/a/+", 2)
    assert broker.subscriptions(client_id="two").items[0].subscription == Subscription(
        "$share/g/a/+", "a/+", 2, share="g"
    )
    for limit in (1, 2, 100):
        fetch = partial(broker.subscriptions, limit=limit)
        shown = [(each.client_id, each.subscription.filter) for each in everything(fetch)]
        assert shown == [("one", "a/#"), ("one", "b"), ("two", "$share/g/a/+")]
        mine = everything(partial(fetch, client_id="one"))
        assert [each.subscription.filter for each in mine] == ["a/#", "b"]


FILTERS = ["#", "a", "a/#", "a/+", "a/b", "+/b", "b", "$share/g/a/b", "$share/h/#", "$SYS/#"]


@pytest.mark.parametrize("asked", FILTERS)
def test_a_filter_selects_what_overlaps_it(
    harness: Harness, broker: BrokerHandle, asked: str
) -> None:
    one = harness.connect("one")
    one.subscribe(FILTERS)
    share, _, inner = (
        asked.removeprefix("$share/").partition("/") if asked.startswith("$share/") else ("", "", asked)
    )  # fmt: skip
    topics = ["a", "b", "a/b", "a/c", "c/b", "c", "a/b/c", "$SYS/x"]
    expected = []
    for name in FILTERS:
        own, _, topic_filter = (
            name.removeprefix("$share/").partition("/") if name.startswith("$share/") else ("", "", name)
        )  # fmt: skip
        if share in ("", own) and any(
            matches(inner, topic) and matches(topic_filter, topic) for topic in topics
        ):
            expected.append(name)
    found = [one.subscription.filter for one in broker.subscriptions(filter=asked).items]
    assert found == sorted(expected)


# --- shared subscriptions ----------------------------------------------------------------------------------------------


def test_shared_subscriptions(harness: Harness, broker: BrokerHandle) -> None:
    one = harness.connect("one", session_expiry_interval=60)
    two = harness.connect("two", session_expiry_interval=60)
    one.subscribe(["$share/g/a", "$share/h/b"], 1)
    two.subscribe("$share/g/a", 1)
    two.disconnect()
    assert everything(partial(broker.shared_groups, limit=1)) == [
        SharedGroup("g", "a", "round_robin", 2, 1, 0, 0),
        SharedGroup("h", "b", "round_robin", 1, 1, 0, 0),
    ]
    one.disconnect()
    harness.connect("pub").publish("a", b"123", 1)
    (waiting, _) = broker.shared_groups().items
    assert (waiting.online, waiting.queued) == (0, 1)
    assert waiting.queued_bytes >= 4
    first = broker.shared_groups(limit=1)
    harness.advance(61)  # all sessions have expired
    assert broker.shared_groups(first.cursor) == broker.shared_groups() == Page(())


# --- listeners ---------------------------------------------------------------------------------------------------------


def test_the_server_names_its_listeners(harness: Harness, broker: BrokerHandle) -> None:
    assert broker.listeners() == ()
    listeners = (ListenerSnapshot("tcp", "tcp", "127.0.0.1:1883", 1, 9),)
    harness.broker.listeners = lambda: listeners
    assert broker.listeners() is listeners


# --- arguments ---------------------------------------------------------------------------------------------------------

PAGED: list[tuple[str, Callable[..., Any]]] = [
    ("sessions", lambda broker, **more: broker.sessions(**more)),
    ("subscriptions", lambda broker, **more: broker.subscriptions(**more)),
    ("shared_groups", lambda broker, **more: broker.shared_groups(**more)),
    ("queue", lambda broker, **more: broker.queue("one", **more)),
    ("inflight", lambda broker, **more: broker.inflight("one", **more)),
    ("retained", lambda broker, **more: broker.retained(**more)),
]


@pytest.mark.parametrize(("name", "call"), PAGED)
def test_wrong_limits_and_cursors_are_refused(
    harness: Harness, broker: BrokerHandle, name: str, call: Callable[..., Any]
) -> None:
    harness.connect("one")
    for limit in (0, 1001, True, 1.0, "1", None):
        with pytest.raises(PluginError, match=rf"plugin 'mine': {name}\(\): the limit must be"):
            call(broker, limit=limit)
    cursors = harness.broker.state.cursors
    other = cursors.make("others", (), "1")
    damaged = cursors.make(name, ("one",) if name in ("queue", "inflight") else (), "x:y")
    for cursor in ("x", "....", None, 7, other, damaged):
        with pytest.raises(
            PluginError, match=rf"plugin 'mine': {name}\(\): .*(cursor|another call)"
        ):
            call(broker, cursor=cursor)


@pytest.mark.parametrize("argument", ["client_id", "username", "listener", "connected"])
def test_arguments_of_a_wrong_type_are_refused(broker: BrokerHandle, argument: str) -> None:
    with pytest.raises(PluginError, match=rf"cannot list sessions: {argument} is int, not"):
        broker.sessions(**{argument: 1})  # type: ignore[arg-type]
    for call in (broker.session, broker.inflight, broker.queue):
        with pytest.raises(PluginError, match=r"cannot .*: client_id is int, not str"):
            call(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("filter", ["a/#/b", "a\0", "$share/g", "a+"])
def test_invalid_filters_are_refused(broker: BrokerHandle, filter: str) -> None:
    for call in (broker.subscriptions, broker.retained):
        with pytest.raises(
            PluginError, match=r"plugin 'mine': cannot list (subscriptions|retained messages): "
        ):
            call(filter=filter)


def test_a_cursor_belongs_to_its_arguments(harness: Harness, broker: BrokerHandle) -> None:
    for name in ("one", "two"):
        harness.connect(name).subscribe("a")
    cursor = broker.sessions(limit=1).cursor
    with pytest.raises(PluginError, match="of a call with other arguments"):
        broker.sessions(cursor, connected=True)
    with pytest.raises(PluginError, match="of another call"):
        broker.subscriptions(cursor)
    assert names(broker.sessions(cursor, limit=7).items) == ["two"]  # the limit may change
    assert names(broker.sessions(cursor).items) == ["two"]  # and a page can be read again


def test_a_cursor_ends_with_the_process(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")], store=DurableStore())
    for name in ("one", "two"):
        harness.connect(name, session_expiry_interval=60)
    cursor = harness.handle("mine").sessions(limit=1).cursor
    harness.restart()
    broker = harness.handle("mine")
    with pytest.raises(StaleCursor, match="from before the broker started; begin again"):
        broker.sessions(cursor)
    assert names(everything(partial(broker.sessions, limit=1))) == ["one", "two"]


def test_a_reload_keeps_cursors(harness: Harness, broker: BrokerHandle) -> None:
    for name in ("one", "two"):
        harness.connect(name)
    cursor = broker.sessions(limit=1).cursor
    harness.reload({"broker": {"max_qos": 1}})
    assert names(harness.handle("mine").sessions(cursor).items) == ["two"]


def test_the_cursor_of_a_sessions_subscriptions_ends_with_it(
    harness: Harness, broker: BrokerHandle
) -> None:
    one = harness.connect("one")
    one.subscribe(["a", "b"])
    cursor = broker.subscriptions(limit=1, client_id="one").cursor
    one.disconnect()
    for _ in range(2):
        with pytest.raises(StaleCursor, match=r"subscriptions\(\): the session of 'one' has ended"):
            broker.subscriptions(cursor, client_id="one")
        harness.connect("one").subscribe(["a", "b"])


def test_plugins_and_the_counters_of_their_hooks(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect", "on_session", id="rec")
    harness = broker_harness([recorder])
    harness.fail("rec", "on_session", ValueError("broken"))
    harness.connect("one")
    harness.settle()
    (plugin,) = harness.handle("rec").plugins()
    assert (plugin.id, plugin.use, plugin.disabled, plugin.circuit_open) == (
        "rec",
        "rec",
        "",
        False,
    )
    assert (plugin.listeners, plugin.filters) == (None, None)
    hooks = {hook.name: hook for hook in plugin.hooks}
    assert hooks.keys() == {"on_connect", "on_session"}
    assert hooks["on_connect"].outcomes["abstain"] == hooks["on_connect"].timed == 1
    assert hooks["on_session"].outcomes["error"] == 1
    assert "broken" in hooks["on_session"].last_error


def test_the_server_shows_its_configuration(harness: Harness, broker: BrokerHandle) -> None:
    assert broker.configuration() == ""
    harness.broker.configuration = lambda: "version: 1\n"
    assert broker.configuration() == "version: 1\n"


def test_services_of_started_plugins(broker_harness: Make) -> None:
    one, other = HookRecorder("on_connect", id="one"), HookRecorder("on_connect", id="other")
    service = object()
    one.offered_services = {"doors": service}
    harness = broker_harness([other, one])
    broker = harness.handle("other")
    assert broker.services("doors") == {"one": service}
    assert broker.services("windows") == {}
    with pytest.raises(PluginError, match="name is int"):
        broker.services(5)  # type: ignore[arg-type]
    harness.hooks.disable("one", "broken")
    assert broker.services("doors") == {}
