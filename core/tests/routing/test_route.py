"""Test a session's entry in a route, which combines its overlapping subscriptions."""

from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.stats import HookStats
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.subscription import Subscription
from hookmq.routing.route import CachedPublish, Recipient, Route
from hookmq.session.session import Session
from hookmq.storage.cluster import Remote, RemoteMatch, RemoteRoute


def session(name: str = "a", version: int = 5, durable: bool = False) -> Session:
    made = Session(ClientInfo(name, version, None, Peer("127.0.0.1"), Scope()))
    made.encoding_version = version
    made.durable = durable
    return made


def recipient(*subscriptions: Subscription) -> Recipient:
    made = Recipient(session(), subscriptions[0])
    for one in subscriptions[1:]:
        made.merge(one)
    made.complete()
    return made


PLAIN = Subscription("a/#", "a/#", 0, identifier=1)
HIGH = Subscription("a/+", "a/+", 2, identifier=2)
LOCAL = Subscription("a/b", "a/b", 1, no_local=True, retain_as_published=True)


def test_overlapping_subscriptions_are_one_copy_at_the_highest_qos_with_all_identifiers() -> None:
    merged = recipient(PLAIN, HIGH, LOCAL)
    assert (merged.qos, merged.subscription) == (2, HIGH)
    assert merged.identifiers == (1, 2)
    assert merged.retain_as_published


def test_a_message_of_its_own_goes_by_the_subscriptions_that_want_it() -> None:
    merged = recipient(PLAIN, HIGH, LOCAL)
    remote = merged.without_local()
    assert remote is not None
    assert (remote.qos, remote.identifiers, remote.retain_as_published) == (2, (1, 2), False)
    assert merged.without_local() is remote
    assert recipient(PLAIN, HIGH).without_local() is not None


def test_a_message_of_its_own_goes_nowhere_if_every_subscription_is_no_local() -> None:
    assert recipient(LOCAL, LOCAL.replace(topic_filter="a/#")).without_local() is None
    assert recipient(LOCAL).without_local() is None


def test_sessions_that_take_the_same_bytes_are_told_apart_by_version() -> None:
    sessions = [session("a", 3), session("b", 5), session("c", 5)]
    found = [Recipient(one, PLAIN) for one in sessions]
    for one in found[:2]:
        one.plain = True
    route = Route("t", found, [], [], 100)
    assert (route.plain3, route.plain5) == (sessions[:1], sessions[1:2])
    assert not route.simple
    assert route.matched == 3
    assert route.recipient_of(sessions[2]) is found[2]
    assert route.recipient_of(session("d")) is None


def test_recipients_that_a_plugin_decides_on_keep_a_route_simple() -> None:
    stats = HookStats("p", "on_deliver")
    call = HookImplementation("p", "on_deliver", lambda *_: None, stats=stats)
    found = [Recipient(session(name, 3), PLAIN) for name in "ab"]
    found[0].plain = True
    found[1].calls = (call,)
    route = Route("t", found, [], [], 100)
    assert (route.plain3, route.asked, route.simple) == ([found[0].session], (found[1],), True)
    assert not Route("t", found[1:], [], [], 100).single_durable
    assert not CachedPublish(0x30, route, False, True).raw_forwardable
    assert CachedPublish(0x30, Route("t", found[:1], [], [], 100), False, True).raw_forwardable


def test_a_route_of_more_recipients_than_a_slice_is_large() -> None:
    found = [Recipient(session(str(number)), PLAIN) for number in range(3)]
    assert [Route("t", found, [], [], size).large for size in (2, 3)] == [True, False]


def test_remotes_match_but_make_a_route_neither_simple_nor_volatile() -> None:
    made = recipient(PLAIN)
    made.plain = True
    alone = Route("a/b", [made], [], [], 100)
    assert (alone.simple, alone.volatile, alone.matched, alone.remotes) == (True, True, 1, None)
    remotes = RemoteRoute((RemoteMatch(Remote("one"), PLAIN), RemoteMatch(Remote("two"), HIGH)))
    route = Route("a/b", [made], [], [], 100, remotes)
    assert (route.simple, route.volatile, route.single_durable) == (False, False, False)
    assert (route.matched, route.remotes) == (3, remotes)
    made.session.durable = True
    assert not Route("a/b", [made], [], [], 100, remotes).single_durable
