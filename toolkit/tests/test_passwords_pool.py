"""Test the pool, the checker and the cache on a virtual clock."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hookmq.plugin import Cancel
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.passwords.cache import Cache
from hookmq_toolkit.passwords.checker import Checker
from hookmq_toolkit.passwords.hashes import read
from hookmq_toolkit.passwords.pool import Busy, Pool, neighbours
from hypothesis import given
from hypothesis import strategies as st
from passwords import ALICE, BOB


class Threads(VirtualRuntime):
    """A runtime whose threads return only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[Callable[[], None]] = []

    def run_blocking(self, call: Callable[[], Any], done: Any) -> Cancel:
        def end() -> None:
            try:
                result, error = call(), None
            except Exception as problem:
                result, error = None, problem
            self.call_soon(partial(done, result, error))

        self.began.append(end)
        return lambda: None

    def finish(self, count: int = 1) -> None:
        for _ in range(count):
            self.began.pop(0)()
            self.run_until_idle()


class Caller:
    """A caller that submits named calls and keeps their results."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.told: list[tuple[str, Any]] = []

    def submit(self, host: str, name: str) -> Cancel:
        return self.pool.submit(host, lambda: name, partial(self.done, name))

    def done(self, name: str, result: Any, error: BaseException | None) -> None:
        self.told.append((name, error if error is not None else result))

    @property
    def names(self) -> list[str]:
        return [name for name, result in self.told if result == name]


@pytest.fixture
def threads() -> Threads:
    return Threads()


def test_no_more_at_once_than_threads(threads: Threads) -> None:
    caller = Caller(Pool(threads, 2, 10))
    for name in "abcd":
        caller.submit("h", name)
    assert (len(threads.began), caller.pool.running, caller.pool.waiting) == (2, 2, 2)
    threads.finish(4)
    assert caller.names == ["a", "b", "c", "d"]
    assert (caller.pool.running, caller.pool.waiting, caller.pool.finished) == (0, 0, 4)


def test_no_more_waiting_than_the_queue(threads: Threads) -> None:
    caller = Caller(Pool(threads, 1, 2))
    for name in "abc":
        caller.submit("h", name)
    with pytest.raises(Busy):
        caller.submit("h", "d")
    threads.finish(3)
    assert caller.names == ["a", "b", "c"]
    caller.submit("h", "e")
    threads.finish()
    assert caller.names[-1] == "e"


def test_hosts_take_turns(threads: Threads) -> None:
    caller = Caller(Pool(threads, 1, 10))
    for name in ("f0", "f1", "f2", "f3"):
        caller.submit("flood", name)
    caller.submit("other", "o1")
    caller.submit("third", "t1")
    threads.finish(6)
    assert caller.names == ["f0", "f1", "o1", "t1", "f2", "f3"]


def test_the_longest_line_makes_room_for_others(threads: Threads) -> None:
    caller = Caller(Pool(threads, 1, 3))
    for name in ("f0", "f1", "f2", "f3"):
        caller.submit("flood", name)
    caller.submit("other", "o1")
    threads.run_until_idle()
    assert [(name, type(result)) for name, result in caller.told] == [("f3", Busy)]
    assert caller.pool.waiting == 3
    with pytest.raises(Busy):
        caller.submit("flood", "f4")
    threads.finish(4)
    assert caller.names == ["f0", "f1", "o1", "f2"]


def test_a_line_as_long_gives_up_nothing(threads: Threads) -> None:
    caller = Caller(Pool(threads, 1, 3))
    for host, name in (("a", "a0"), ("a", "a1"), ("a", "a2"), ("b", "b1")):
        caller.submit(host, name)
    with pytest.raises(Busy):
        caller.submit("b", "b2")
    threads.finish(4)
    assert sorted(caller.names) == ["a0", "a1", "a2", "b1"]


def test_neighbours_share_a_line() -> None:
    for one, other, same in (
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("", "", True),
        ("a:b", "a:c", False),
    ):
        assert (neighbours(one) == neighbours(other)) is same


def test_a_cancelled_check_is_not_started(threads: Threads) -> None:
    caller = Caller(Pool(threads, 1, 10))
    running = caller.submit("h", "a")
    waiting = caller.submit("h", "b")
    caller.submit("h", "c")
    running()
    waiting()
    waiting()
    assert caller.pool.waiting == 1
    assert caller.pool.running == 1, "its thread is taken until it returns"
    threads.finish(2)
    assert caller.names == ["c"]
    assert caller.pool.running == 0


def test_a_call_that_raises(threads: Threads) -> None:
    pool = Pool(threads, 1, 10)
    told: list[Any] = []

    def broken() -> None:
        raise MemoryError("no memory")

    pool.submit("h", broken, lambda result, error: told.append(error))
    threads.finish()
    assert isinstance(told[0], MemoryError)
    assert pool.running == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["submit", "finish", "cancel"]), st.integers(0, 3)), max_size=60
    )
)
def test_every_call_is_told_once_and_bounds_hold(steps: list[tuple[str, int]]) -> None:
    threads = Threads()
    pool = Pool(threads, 2, 4)
    told: list[int] = []
    cancels: dict[int, Cancel] = {}
    cancelled: set[int] = set()
    refused: set[int] = set()
    count = 0

    def landed(number: int, result: object, error: BaseException | None) -> None:
        told.append(number)

    for action, number in steps:
        if action == "submit":
            mine, count = count, count + 1
            try:
                cancels[mine] = pool.submit(f"h{number}", lambda: None, partial(landed, mine))
            except Busy:
                refused.add(mine)
        elif action == "finish" and threads.began:
            threads.finish()
        elif action == "cancel" and cancels:
            mine = sorted(cancels)[number % len(cancels)]
            if mine not in told:
                cancels[mine]()
                cancelled.add(mine)
        threads.run_until_idle()
        assert pool.running == len(threads.began) <= 2
        assert 0 <= pool.waiting <= 4
        assert not pool.waiting or pool.running == 2
    while threads.began:
        threads.finish()
    assert sorted([*told, *cancelled, *refused]) == list(range(count))
    assert (pool.running, pool.waiting) == (0, 0)


def test_the_same_question_at_the_same_time_is_asked_once(threads: Threads) -> None:
    checker = Checker(threads, Pool(threads, 4, 10))
    told: list[Any] = []
    calls: list[str] = []

    def ask(key: bytes, host: str = "h", answer: bool = True) -> Cancel:
        def verify() -> bool:
            calls.append(host)
            return answer

        return threads.spawn(
            checker.ask(key, host, verify), lambda result, error: told.append(error or result)
        )

    ask(b"k")
    ask(b"k")
    ask(b"k", "other")
    ask(b"l", answer=False)
    threads.run_until_idle()
    assert len(threads.began) == 2
    threads.finish(2)
    assert told == [True, True, True, False]
    ask(b"k")
    threads.run_until_idle()
    threads.finish()
    assert len(calls) == 3, "nothing is remembered here"


def test_it_goes_on_as_long_as_one_waits(threads: Threads) -> None:
    pool = Pool(threads, 1, 10)
    checker = Checker(threads, pool)
    told: list[Any] = []

    def ask(key: bytes) -> Cancel:
        return threads.spawn(
            checker.ask(key, "h", lambda: True), lambda result, error: told.append(error or result)
        )

    ask(b"first")
    one, two = ask(b"k"), ask(b"k")
    threads.run_until_idle()
    assert pool.waiting == 1
    one()
    threads.run_until_idle()
    assert pool.waiting == 1
    two()
    threads.run_until_idle()
    assert pool.waiting == 0
    ask(b"k")
    threads.run_until_idle()
    assert pool.waiting == 1
    threads.finish(2)
    assert told == [True, True]


def test_busy_and_failures_reach_all_that_wait(threads: Threads) -> None:
    checker = Checker(threads, Pool(threads, 1, 2))
    told: list[Any] = []

    def ask(key: bytes, host: str, verify: Callable[[], bool] = lambda: True) -> None:
        threads.spawn(
            checker.ask(key, host, verify), lambda result, error: told.append(error or result)
        )
        threads.run_until_idle()

    def broken() -> bool:
        raise MemoryError

    ask(b"a", "flood", broken)
    ask(b"a", "flood", broken)
    for key in (b"b", b"c"):
        ask(key, "flood")
    ask(b"c", "flood")
    ask(b"d", "flood")
    assert [type(one) for one in told] == [Busy]
    ask(b"e", "other")
    assert [type(one) for one in told] == [Busy, Busy, Busy]
    threads.finish(3)
    assert [type(one) for one in told[3:]] == [MemoryError, MemoryError, bool, bool]


A, B = read(ALICE, "yaml"), read(BOB, "yaml")


def test_the_cache_forgets() -> None:
    cache = Cache(60, 2)
    one, two, three = (cache.key(name, A, b"p") for name in ("a", "b", "c"))
    cache.add(one, "a", 0)
    cache.add(two, "b", 30)
    assert cache.has(one, 59.9)
    assert not cache.has(one, 60)
    assert cache.has(two, 60)
    cache.add(one, "a", 60)
    assert cache.has(two, 61)
    cache.add(three, "c", 61)
    assert len(cache) == 2
    assert not cache.has(one, 62), "the one unused for longest goes first"
    cache.forget({"b", "x"})
    assert not cache.has(two, 62)
    assert cache.has(three, 62)
    cache.clear()
    assert len(cache) == 0


def test_a_cache_may_be_off() -> None:
    for cache in (Cache(0, 10), Cache(10, 0)):
        cache.add(cache.key("a", A, b"p"), "a", 0)
        assert len(cache) == 0


def test_keys_tell_apart_and_tell_nothing() -> None:
    cache = Cache(60, 10)
    keys = {
        cache.key(name, hash, password)
        for name in ("a", "ab", "")
        for hash in (A, B)
        for password in (b"", b"b", b"secret", b"\0")
    }
    assert len(keys) == 24
    assert cache.key("a", A, b"p") == cache.key("a", A, b"p")
    assert cache.key("a", A, b"p") != Cache(60, 10).key("a", A, b"p")
    cache.add(cache.key("a", A, b"geheim"), "a", 0)
    assert b"geheim" not in repr(vars(cache)).encode()
    assert ALICE not in repr(vars(cache))


def test_a_name_that_holds_a_hash_is_another_name() -> None:
    cache = Cache(60, 10)
    assert cache.key("a", A, A.text.encode() + b"x") != cache.key("a" + A.text, A, b"x")


@given(
    st.tuples(st.text(max_size=4), st.binary(max_size=4)),
    st.tuples(st.text(max_size=4), st.binary(max_size=4)),
)
def test_two_users_never_share_a_key(one: tuple[str, bytes], two: tuple[str, bytes]) -> None:
    cache = Cache(60, 10)
    assert (cache.key(one[0], A, one[1]) == cache.key(two[0], A, two[1])) == (one == two)
