"""Test the members of a shared subscription: the order in which messages are offered to them, and the limits on waiting
messages.
"""

from typing import Any

import pytest
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.session import Session

FILTER = Subscription("$share/g/t", "t", 1, share="g")
MESSAGE = Message("t", b"", sender="p")


def session(name: str) -> Session:
    return Session(ClientInfo(name, 5, None, Peer("127.0.0.1"), Scope()))


def shared(strategy: Any, *members: Session) -> SharedSubscription:
    made = SharedSubscription("g", "t", "g/g/t", strategy)
    for one in members:
        made.admit(one, FILTER)
        made.enter(one)
    return made


def order(group: SharedSubscription, message: Message = MESSAGE, random: float = 0.5) -> str:
    return "".join(one.client_id for one in group.candidates(message, lambda: random))


def test_round_robin_takes_turns() -> None:
    group = shared("round_robin", *map(session, "abc"))
    assert [order(group) for _ in range(4)] == ["abc", "bca", "cab", "abc"]


def test_sticky_stays_until_its_member_leaves() -> None:
    a, b, c = map(session, "abc")
    group = shared("sticky", a, b, c)
    assert [order(group), order(group)] == ["abc", "abc"]
    group.leave(a)
    assert order(group) == "bc"


@pytest.mark.parametrize(("random", "expected"), [(0.0, "abc"), (0.5, "bca"), (0.99, "cab")])
def test_random_is_that_of_the_runtime(random: float, expected: str) -> None:
    assert order(shared("random", *map(session, "abc")), random=random) == expected


@pytest.mark.parametrize(
    ("strategy", "field"), [("hash_topic", "topic"), ("hash_client", "sender")]
)
def test_a_hash_gives_one_member_for_one_value(strategy: str, field: str) -> None:
    group = shared(strategy, *map(session, "abc"))
    firsts: dict[str, set[str]] = {}
    for _ in range(3):
        for value in map(str, range(50)):
            found = order(group, MESSAGE.replace(**{field: value}))[0]
            firsts.setdefault(value, set()).add(found)
    assert all(len(one) == 1 for one in firsts.values())
    assert set().union(*firsts.values()) == {"a", "b", "c"}


def test_least_inflight_counts_what_waits_too() -> None:
    a, b, c = map(session, "abc")
    a.queued, c.queued = 2, 1
    assert order(shared("least_inflight", a, b, c)) == "bca"


def test_one_member_is_tried_alone() -> None:
    group = shared("hash_topic", session("a"))
    assert order(group) == "a"
    assert order(shared("random")) == ""


def test_a_member_enters_once() -> None:
    a, b = map(session, "ab")
    group = shared("round_robin", a, b)
    group.enter(a)
    assert order(group) == "ab"


def test_waiting_messages_count_against_one_member_at_a_time() -> None:
    a, b = map(session, "ab")
    group = shared("round_robin", a, b)
    group.waits(10)
    group.waits(5)
    assert (a.shared_queued, a.shared_bytes, b.shared_queued, b.shared_bytes) == (2, 15, 0, 0)
    group.expel(a)
    assert (a.shared_queued, a.shared_bytes, b.shared_queued, b.shared_bytes) == (0, 0, 2, 15)
    group.gone(10)
    assert (b.shared_queued, b.shared_bytes) == (1, 5)
    group.expel(b)
    assert (b.shared_queued, b.shared_bytes, group.queued, group.queued_bytes) == (0, 0, 1, 5)


def test_it_is_as_durable_as_its_most_durable_member_and_as_good_as_its_best_qos() -> None:
    a, b = map(session, "ab")
    group = shared("round_robin", a)
    assert (group.durable, group.qos) == (False, 1)
    b.durable = True
    group.admit(b, FILTER.replace(qos=2))
    assert (group.durable, group.qos) == (True, 2)
    group.expel(b)
    assert (group.durable, group.qos) == (False, 1)
    group.expel(a)
    assert group.qos == 0
