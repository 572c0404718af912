"""Test that no window ever admits more than its limit, whatever the sequence of events. No waiting message is lost or
overtaken, and memory is limited.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.config_api import Rate
from hookmq.plugin import ClientInfo, LimitExceeded, Peer, Runtime, Scope
from hookmq_ratelimit.buckets import Allowance, Bucket
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_ratelimit.settings import Limit, parse_rates
from hookmq_ratelimit.tolls import Outgoing, Toll
from hookmq_testing import Harness, make_plugin
from hookmq_testing.runtime import VirtualRuntime
from hypothesis import given, settings
from hypothesis import strategies as st


def _rates(most: int) -> st.SearchStrategy[str]:
    return st.lists(
        st.tuples(st.integers(1, most), st.sampled_from(["100ms", "s", "5s", "min"])),
        min_size=1,
        max_size=3,
        unique_by=lambda one: one[1],
    ).map(lambda found: ", ".join(f"{count}/{per}" for count, per in found))


RATES = _rates(40)
TIGHT = _rates(3)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.001, 0.05, 0.3, 1.0, 7.0]), st.integers(0, 2), st.integers(2, 60)
    ),
    max_size=60,
)


class Office:
    """A `LimitOwner` that counts the calls it receives."""

    def __init__(self) -> None:
        self.clock = VirtualRuntime()
        self.runtime: Runtime = self.clock
        self.told: list[str] = []

    def limited(self, bucket: Bucket, client: ClientInfo, outcome: str) -> None:
        self.told.append(outcome)

    def waited(self, bucket: Bucket, seconds: float) -> None:
        self.told.append("went on")

    def gave_up(self) -> None:
        self.told.append("gave up")

    def bucket(self, allowance: Allowance, client: ClientInfo) -> Bucket:
        return allowance.get("", self.runtime.now())


CLIENT = ClientInfo("c", 5, None, Peer("192.0.2.1"), Scope())


def never_more(passed: list[tuple[float, float]], rates: tuple[Rate, ...], most: float = 1) -> None:
    """Assert that every window admits at most the burst plus the tokens refilled during that window.

    In addition, a single message larger than the window may pass.
    """
    for rate in rates:
        extra = max(0.0, most - rate.count)
        for first in range(len(passed)):
            total = 0.0
            for when, cost in passed[first:]:
                total += cost
                span = when - passed[first][0]
                assert (
                    total
                    <= max(rate.count, 1) + rate.count / rate.per_seconds * span + extra + 0.01
                )


class Sender:
    """A client that sends messages one at a time. A waiting message holds back the later ones."""

    def __init__(self, office: Office, toll: Toll, passed: list[Any], number: int) -> None:
        self.office, self.toll, self.passed, self.number = office, toll, passed, number
        self.held: list[tuple[int, int]] = []
        self.sent = 0
        self.waiting = False
        self.cancel: Callable[[], None] | None = None

    def send(self, size: int) -> None:
        self.held.append((self.sent, size))
        self.sent += 1
        self.go_on()

    def go_on(self) -> None:
        while self.held and not self.waiting:
            index, size = self.held[0]
            if self.toll.take(size):
                self._passes(index, size)
                continue
            answer = self.toll.over(size, 1, self.go)
            assert not isinstance(answer, LimitExceeded)
            self.waiting, self.cancel = True, answer

    def go(self, refusal: LimitExceeded | None) -> None:
        assert refusal is None
        assert self.waiting
        self.waiting = False
        self._passes(*self.held[0])
        self.go_on()

    def _passes(self, index: int, size: int) -> None:
        self.held.pop(0)
        self.passed.append((self.number, index, self.office.runtime.now(), size))


@settings(max_examples=60, deadline=None)
@given(RATES, RATES, RATES, STEPS)
def test_throttling_passes_what_the_windows_allow_in_order_and_all_of_it(
    own: str, shared: str, size: str, steps: list[tuple[float, int, int]]
) -> None:
    office = Office()
    runtime = office.clock
    mine = Allowance(Limit("publishes", "client", own), "p/own", 10)
    all_of_us = Allowance(Limit("publishes", "broker", shared), "p/all", 10)
    bytes_of_all = Allowance(Limit("bytes", "broker", size.replace("/", "0/")), "p/bytes", 10)
    everybody = [one.get("", 0.0) for one in (all_of_us, bytes_of_all)]
    passed: list[Any] = []
    senders = [
        Sender(office, Toll(office, CLIENT, [mine.get(str(n), 0.0), *everybody]), passed, n)
        for n in range(3)
    ]
    for pause, number, cost in steps:
        runtime.advance(pause)
        senders[number].send(cost)
    for _ in range(400):
        if not any(sender.held for sender in senders):
            break
        runtime.advance(60.0)
    # Nothing is lost, and each sender's messages keep their order.
    for number, sender in enumerate(senders):
        assert [i for who, i, _, _ in passed if who == number] == list(range(sender.sent))
        never_more([(when, 1.0) for who, _, when, _ in passed if who == number], parse_rates(own))
    never_more([(when, 1.0) for _, _, when, _ in passed], parse_rates(shared))
    never_more(
        [(when, float(cost)) for _, _, when, cost in passed],
        parse_rates(size.replace("/", "0/")),
        most=60.0,
    )
    assert office.told.count("throttled") == office.told.count("went on")
    for bucket in everybody:
        assert not bucket.gated
        assert all(cell.room == cell.base for cell in bucket.cells)


@settings(max_examples=50, deadline=None)
@given(RATES, STEPS)
def test_refusing_passes_what_the_windows_allow(
    rate: str, steps: list[tuple[float, int, int]]
) -> None:
    office = Office()
    bucket = Allowance(Limit("publishes", "client", rate, mode="reject"), "p/x", 10).get("", 0.0)
    toll = Toll(office, CLIENT, [bucket])
    passed = []
    for pause, _, cost in steps:
        office.clock.advance(pause)
        if toll.take(cost):
            passed.append((office.runtime.now(), 1.0))
        else:
            answer = toll.over(cost, 1, lambda refusal: None)
            assert isinstance(answer, LimitExceeded)
    never_more(passed, parse_rates(rate))
    assert len(passed) + len(office.told) == len(steps)


@settings(max_examples=60, deadline=None)
@given(TIGHT, STEPS, st.randoms(use_true_random=False))
def test_a_client_that_leaves_a_line_uses_no_allowance(
    rate: str, steps: list[tuple[float, int, int]], random: Any
) -> None:
    office = Office()
    bucket = Allowance(Limit("publishes", "broker", rate), "p/x", 10).get("", 0.0)
    passed: list[Any] = []
    senders = [Sender(office, Toll(office, CLIENT, [bucket]), passed, n) for n in range(20)]
    left: set[int] = set()
    for pause, _, cost in steps:
        office.clock.advance(pause)
        sender = random.choice(senders)
        if sender.number in left:
            continue
        sender.send(cost)
        if sender.waiting and random.random() < 0.4:
            assert sender.cancel is not None
            sender.cancel()
            sender.waiting = False  # to be told now is a failure
            left.add(sender.number)
    for _ in range(200):
        office.clock.advance(60.0)
    for sender in senders:
        assert not sender.held or sender.number in left
    never_more([(when, 1.0) for _, _, when, _ in passed], parse_rates(rate))
    assert not bucket.gated


def test_only_clients_that_still_wait_are_resumed() -> None:
    office = Office()
    bucket = Allowance(Limit("publishes", "broker", "1/s"), "p/x", 10).get("", 0.0)
    passed: list[Any] = []
    senders = [Sender(office, Toll(office, CLIENT, [bucket]), passed, n) for n in range(4)]
    for sender in senders:
        sender.send(1)
    for leaving in senders[1:3]:  # from the front
        assert leaving.cancel is not None
        leaving.cancel()
        leaving.waiting = False
    office.clock.advance(1.5)
    assert [who for who, *_ in passed] == [0, 3]
    assert office.told.count("gave up") == 2


def test_first_come_first_served() -> None:
    office = Office()
    bucket = Allowance(Limit("publishes", "broker", "1/s"), "p/x", 10).get("", 0.0)
    passed: list[Any] = []
    senders = [Sender(office, Toll(office, CLIENT, [bucket]), passed, n) for n in range(5)]
    for sender in senders:
        sender.send(1)
    for sender in senders:
        sender.send(1)
    office.clock.advance(20)
    assert [who for who, *_ in passed] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert [round(when) for *_, when, _ in passed] == list(range(10))


def test_a_smaller_request_does_not_overtake() -> None:
    office = Office()
    everybody = Allowance(Limit("bytes", "broker", "100/s"), "p/x", 10).get("", 0.0)
    own = Allowance(Limit("publishes", "client", "2/s", burst=1), "p/y", 10).get("", 0.0)
    passed: list[Any] = []
    first, second = (Sender(office, Toll(office, CLIENT, [everybody]), passed, n) for n in (1, 2))
    third = Sender(office, Toll(office, CLIENT, [own, everybody]), passed, 3)
    assert own.take(0.0)
    first.send(100)
    second.send(100)
    third.send(1)  # waits for an allowance of its own until others' 50 are there
    office.clock.advance(0.7)
    fourth = Sender(office, Toll(office, CLIENT, [everybody]), passed, 4)
    fourth.send(1)
    office.clock.advance(2)
    assert [who for who, *_ in passed] == [1, 2, 3, 4]
    assert passed[1][2] == pytest.approx(1.0, abs=0.001)


def test_a_message_larger_than_the_window_passes_if_the_line_is_empty() -> None:
    office = Office()
    bucket = Allowance(Limit("bytes", "broker", "100/s"), "p/x", 10).get("", 0.0)
    toll = Toll(office, CLIENT, [bucket])
    told: list[Any] = []
    assert not isinstance(
        toll.over(1, 1, told.append), LimitExceeded
    )  # late by nothing, but in the line
    assert not toll.take(1000)
    office.clock.advance(0)
    assert told == [None]
    office.clock.advance(1)
    assert toll.take(1000)
    assert not toll.take(1)


def test_a_line_has_one_timer_however_many_wait() -> None:
    office = Office()
    bucket = Allowance(Limit("publishes", "broker", "100/s", burst=1), "p/x", 10).get("", 0.0)
    passed: list[Any] = []
    for number in range(1000):
        Sender(office, Toll(office, CLIENT, [bucket]), passed, number).send(1)
    assert len(passed) == 1
    assert len([timer for timer in office.clock._timers if timer.call is not None]) == 1
    office.clock.advance(10)
    assert len(passed) == 1000


@settings(max_examples=40, deadline=None)
@given(RATES, STEPS)
def test_deliveries_respect_the_windows(rate: str, steps: list[tuple[float, int, int]]) -> None:
    office = Office()
    bucket = Allowance(Limit("deliveries", "broker", rate), "p/x", 10).get("", 0.0)
    delivery_limits = [Outgoing(office, CLIENT, [bucket]) for _ in range(3)]
    waiting = [0, 0, 0]
    lines: list[Any] = [None, None, None]
    passed: list[tuple[float, float]] = []

    def pump(number: int) -> None:
        lines[number] = None
        while waiting[number] and delivery_limits[number].ready():
            delivery_limits[number].sent()
            waiting[number] -= 1
            passed.append((office.runtime.now(), 1.0))
        if waiting[number]:
            lines[number] = delivery_limits[number].wait(lambda: pump(number))

    total = 0
    for pause, number, _ in steps:
        office.clock.advance(pause)
        waiting[number] += 1
        total += 1
        if lines[number] is None:
            pump(number)
    for _ in range(200):
        office.clock.advance(60.0)
    assert len(passed) == total
    never_more(passed, parse_rates(rate))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=80))
def test_memory_is_bounded_by_count_and_the_latest_are_kept(
    most: int, uses: list[tuple[int, bool]]
) -> None:
    allowance = Allowance(Limit("publishes", "client", "1/s"), "p/x", most)
    order: list[str] = []
    held: dict[str, Bucket] = {}
    for number, hold in uses:
        key = str(number)
        bucket = allowance.get(key, 0.0)
        if key in held:
            assert bucket is held[key]  # a key in use has one bucket, forgotten or not
        if hold:
            held[key] = bucket
        if key in order:
            order.remove(key)
        order.append(key)
        assert len(allowance) <= most
    assert [bucket.key for bucket in allowance.buckets()] == order[-most:]


@pytest.mark.parametrize("count", [30_000, pytest.param(400_000, marks=pytest.mark.slow)])
def test_a_flood_of_addresses_is_bounded_and_washes_no_ban_out(count: int) -> None:
    plugin = make_plugin(
        RateLimitPlugin,
        {
            "limits": [{"what": "connections", "rate": "2/s"}],
            "ban": {"after": "3/min", "duration": 600},
            "max_keys": 1000,
            "max_bans": 100,
        },
        "ratelimit",
    )
    one: Any = plugin.plugin
    with Harness([plugin]) as harness:
        broker = harness.handle("ratelimit")
        bad = Peer("203.0.113.66")
        for _ in range(8):
            harness.connect("x", peer=bad, expect=None)
        assert len(one.bans) == 1
        scope = Scope()
        # Asked as a listener would have it asked: a whole connection each would take minutes.
        for number in range(count):
            host = f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1"
            client = ClientInfo("c", 5, None, Peer(host), scope)
            assert one.on_connect(client, broker) is None
        (allowance,) = one.allowances
        assert len(allowance) == 1000
        assert len(allowance._used) == 0
        harness.connect("x", peer=bad, expect=0x8A)


@pytest.mark.parametrize("most", [1, 10])
def test_a_full_table_of_bans_forgets_none_that_holds(most: int) -> None:
    from hookmq_ratelimit.bans import Bans

    bans = Bans(most)
    for number in range(most):
        assert bans.add(("ip", str(number), ""), 100.0, "", 0.0) is not None
    assert bans.add(("ip", "new", ""), 100.0, "", 50.0) is None
    assert bans.find(("ip", "0", ""), 50.0) is not None
    assert (len(bans), bans.refused) == (most, 1)
    assert bans.add(("ip", "new", ""), 200.0, "", 101.0) is not None
    assert len(bans) == 1


NUMBERS = st.integers(1, 10**6)


@given(
    st.lists(
        st.tuples(NUMBERS, st.sampled_from(["s", "min", "h", "7s"])),
        min_size=1,
        unique_by=lambda x: x[1],
    )
)
def test_rates_that_are_written_are_read(rates: list[tuple[int, str]]) -> None:
    text = ", ".join(f"{count}/{per}" for count, per in rates)
    found = parse_rates(text)
    assert sorted(rate.count for rate in found) == sorted(count for count, _ in rates)
    assert [r.per_seconds for r in found] == sorted(r.per_seconds for r in found)
    assert parse_rates(", ".join(map(str, found))) == found


@given(st.text(max_size=40))
def test_whatever_is_written_is_read_or_refused_with_a_reason(text: str) -> None:
    try:
        found = parse_rates(text)
    except ValueError as error:
        why = str(error)
    else:
        why = "read"
        assert found
        assert all(rate.count > 0 and rate.per_seconds > 0 for rate in found)
    assert why
