"""Test the dispatcher on a virtual clock: order per key, no loss, batches, retries and abandoned
events.
"""

import random
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Message
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.breaker import Breaker
from hookmq_webhook.dispatch import TOGETHER, Answer, Dispatcher, Policy, Verdict
from hookmq_webhook.events import Event
from hookmq_webhook.log_queue import LogQueue
from hookmq_webhook.outbox import Bounds, Outbox
from hookmq_webhook.queues import MemoryQueue, Numbered
from hookmq_webhook.window import SKIPPED
from hypothesis import example, given, settings
from hypothesis import strategies as st

ARRIVED = Answer(Verdict.ARRIVED)
AGAIN = Answer(Verdict.AGAIN, "status 500")
REFUSED = Answer(Verdict.REFUSED, "status 400")


PLAIN = Policy()


class World:
    """A dispatcher with an in-memory queue. `answer(events, attempt number)` returns (delay, answer)."""

    def __init__(
        self,
        policy: Policy = PLAIN,
        answer: Callable[[Sequence[Numbered], int], tuple[float, Answer]] | None = None,
        failures: int = 1_000_000,
        pause: float = 5.0,
        seed: int = 0,
    ) -> None:
        self.runtime = VirtualRuntime(seed)
        self.sent: list[tuple[float, list[int]]] = []
        self.arrived: list[int] = []
        self.buried: list[tuple[int, str, int]] = []
        self.bury_fails = 0
        self.busiest = self.busy = 0
        self.answer = answer or (lambda events, attempt: (0.0, ARRIVED))
        self.queue = MemoryQueue("q", 100_000, 1 << 30, "oldest", lambda event: None)
        self.breaker = Breaker(failures, pause, self.runtime.now)
        self.dispatcher = Dispatcher(
            self.runtime, self.queue, self.send, self.bury, lambda one: one.event.client or "",
            policy, self.breaker,
        )  # fmt: skip
        self.dispatcher.begin()

    async def send(self, events: Sequence[Numbered]) -> Answer:
        self.sent.append((self.runtime.now(), [one.number for one in events]))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            delay, answer = self.answer(events, len(self.sent))
            if delay:
                await self.runtime.sleep(delay)
        finally:
            self.busy -= 1
        if answer.verdict is Verdict.ARRIVED:
            self.arrived += [one.number for one in events]
        return answer

    def bury(self, one: Numbered, reason: str, attempts: int, done: Callable[[str], None]) -> None:
        if self.bury_fails:
            self.bury_fails -= 1
            done("disk full")
            return
        self.buried.append((one.number, reason, attempts))
        done("")

    def put(self, *keys: str, time: float | None = None, size: int = 0) -> None:
        when = self.runtime.time() if time is None else time
        for key in keys:
            self.queue.put(Event("x.y", when, key, payload=bytes(size)))
        self.dispatcher.wake()

    def run(self, seconds: float = 0.0) -> None:
        self.runtime.advance(seconds)


def test_one_by_one_in_order_and_fair() -> None:
    world = World(Policy(concurrency=1))
    world.put("a", "b", "a", "c")
    world.run()
    assert [numbers for _, numbers in world.sent] == [[0], [1], [3], [2]]  # each key in its turn
    assert world.dispatcher.counts.delivered == 4
    assert world.dispatcher.idle


def test_one_key_waits_for_its_answer_and_others_do_not() -> None:
    world = World(Policy(concurrency=3), lambda events, n: (1.0, ARRIVED))
    world.put("a", "a", "b", "c", "d")
    world.run(0.5)
    assert [numbers for _, numbers in world.sent] == [[0], [2], [3]]
    assert world.dispatcher.running == 3
    world.run(10)
    assert world.busiest == 3
    assert sorted(world.arrived) == list(range(5))


def test_nothing_overtakes_what_is_tried_again() -> None:
    def answer(events: Sequence[Numbered], n: int) -> tuple[float, Answer]:
        return 0.0, AGAIN if events[0].number == 0 and n < 4 else ARRIVED

    world = World(Policy(concurrency=4), answer)
    world.put("a", "a", "b")
    world.run(100)
    assert world.arrived == [2, 0, 1]


def test_batches_are_of_so_many_events_and_bytes() -> None:
    world = World(Policy(batch_count=3, concurrency=1))
    world.put(*"aabbccd")
    world.run()
    assert [len(numbers) for _, numbers in world.sent] == [3, 3, 1]
    world = World(Policy(batch_count=100, batch_bytes=1000, concurrency=1))
    world.put(*"abcd", size=400)
    world.put("e", size=5000)
    world.put("f")
    world.run()
    assert [numbers for _, numbers in world.sent] == [[0, 1], [2, 3], [4], [5]]


def test_lingering_fills_a_batch() -> None:
    world = World(Policy(batch_count=3, linger=0.5))
    world.put("a")
    world.run(0.4)
    assert world.sent == []
    world.run(0.2)
    assert [numbers for _, numbers in world.sent] == [[0]]
    world.put("a", "b")
    world.run(0.1)
    world.put("c")
    world.run()
    assert world.sent[1:] == [(world.runtime.now(), [1, 2, 3])]  # full, so at once
    world.put("d")
    world.dispatcher.drain(lambda: None)
    world.run()
    assert world.arrived[-1] == 4  # a drain does not linger


def test_the_window_bounds_memory() -> None:
    world = World(Policy(window_count=10, concurrency=1), lambda events, n: (1.0, ARRIVED))
    world.put(*("k" for _ in range(100)))
    world.run(0.5)
    assert world.dispatcher.loaded == 10
    world.run(200)
    assert world.arrived == list(range(100))
    world = World(Policy(window_bytes=3000, concurrency=1), lambda events, n: (1.0, ARRIVED))
    world.put(*("k" for _ in range(10)), size=1000)
    world.run(0.5)
    assert world.dispatcher.loaded == 3
    world.run(200)
    assert world.arrived == list(range(10))


def test_backoff_doubles_within_bounds_with_jitter() -> None:
    policy = Policy(first_delay=1.0, longest_delay=10.0)
    shares = set()
    for seed in range(20):
        world = World(policy, lambda events, n: (0.0, AGAIN if n < 8 else ARRIVED), seed=seed)
        world.put("a")
        world.run(1000)
        times = [when for when, _ in world.sent]
        gaps = [after - before for before, after in pairwise(times)]
        for gap, wanted in zip(gaps, [1, 2, 4, 8, 10, 10, 10], strict=True):
            assert wanted * 0.5 <= gap <= wanted * 1.5
            shares.add(round(gap / wanted, 3))
    assert len(shares) > 50
    assert min(shares) < 0.6
    assert max(shares) > 1.4


def test_retry_after_holds_everything_and_is_bounded() -> None:
    def answer(events: Sequence[Numbered], n: int) -> tuple[float, Answer]:
        return 0.0, Answer(Verdict.AGAIN, "status 429", 7.0) if n == 1 else ARRIVED

    world = World(Policy(concurrency=1), answer)
    world.put("a", "b")
    world.run(6.9)
    assert len(world.sent) == 1  # b waits too, because the service requested a delay
    world.run(1.2)
    assert sorted(world.arrived) == [0, 1]
    world = World(
        Policy(longest_delay=10.0),
        lambda events, n: (0.0, Answer(Verdict.AGAIN, "", 1e9) if n == 1 else ARRIVED),
    )
    world.put("a")
    world.run(10.1)
    assert world.arrived == [0]


def test_an_open_circuit_burns_no_attempts() -> None:
    policy = Policy(max_attempts=5, first_delay=0.01, longest_delay=0.01, concurrency=1)
    world = World(policy, lambda events, n: (0.0, AGAIN), failures=2, pause=10.0)
    world.put("a")
    world.run(9)
    assert len(world.sent) == 2
    assert world.breaker.state == "open"
    assert world.buried == []
    world.run(2)  # one request probes the service
    assert len(world.sent) == 3
    world.run(20)
    assert len(world.sent) == 4
    world.run(40)
    assert world.buried == [(0, "status 500", 5)]


def test_the_log_says_once_that_the_service_fails_and_once_that_it_is_back() -> None:
    policy = Policy(first_delay=0.01, longest_delay=0.01, concurrency=1)
    answers = {3: ARRIVED, 7: REFUSED}  # a service that refuses an event still works
    world = World(policy, lambda events, n: (0.0, answers.get(n, AGAIN)), failures=2, pause=1.0)
    world.put("a", "b", "c")
    logged = world.runtime.logged
    world.run(0.9)
    assert logged == [("warning", "webhook.service_failing", {"reason": "status 500"})]
    world.run(0.5)
    assert logged[1:2] == [("info", "webhook.service_back", {"waiting": 2})]
    world.run(20)
    assert [name for _, name, _ in logged[2:4]] == [
        "webhook.service_failing",
        "webhook.service_back",
    ]


def test_while_one_tries_whether_it_is_back_the_others_wait_for_it() -> None:
    def answer(events: Sequence[Numbered], n: int) -> tuple[float, Answer]:
        return (0.0, AGAIN) if n <= 2 else (3.0, ARRIVED)

    policy = Policy(first_delay=0.01, longest_delay=0.01, concurrency=4)
    world = World(policy, answer, failures=2, pause=10.0)
    world.put("a", "b")
    world.run(12)
    assert len(world.sent) == 3
    assert world.runtime.next_timer() == pytest.approx(13.0, abs=0.5)  # no polling
    world.run(10)
    assert sorted(world.arrived) == [0, 1]


def test_a_circuit_that_closes_between_two_looks_at_the_clock_is_not_waited_for_in_vain() -> None:
    policy = Policy(first_delay=0.01, longest_delay=0.01, concurrency=1)
    world = World(
        policy, lambda events, n: (0.0, AGAIN if n <= 2 else ARRIVED), failures=2, pause=10.0
    )
    world.put("a")
    world.run(9)
    assert world.breaker.state == "open"
    began = world.sent[-1][0]
    early = began + 10.0 - 1e-6
    clock = world.runtime.now
    looked: list[float] = []

    def creeping() -> float:
        """Return a slightly early time when the timer expires, and the correct time from then on."""
        if clock() >= early and not looked:
            looked.append(early)
            return early
        return clock()

    world.breaker._now = creeping
    world.run(10)
    assert looked
    assert world.arrived == [0]


def test_given_up_after_so_many_attempts() -> None:
    world = World(Policy(max_attempts=3), lambda events, n: (0.0, AGAIN))
    world.put("a", "a")
    world.run(1000)
    assert world.buried == [(0, "status 500", 3), (1, "status 500", 3)]
    assert world.queue.waiting == 0
    assert world.dispatcher.counts.given_up == 2


def test_given_up_at_an_age_that_counts_from_the_event() -> None:
    world = World(
        Policy(max_age=60.0, first_delay=10.0, longest_delay=10.0), lambda events, n: (0.0, AGAIN)
    )
    world.put("a")
    world.run(40)
    assert world.buried == []
    world.run(40)
    assert [number for number, _, _ in world.buried] == [0]
    assert 60 <= world.sent[-1][0] <= 75
    world.put("b", time=world.runtime.time() - 100)  # added by an earlier broker
    world.run(1)
    assert [number for number, _, attempts in world.buried if attempts == 1] == [1]


def test_of_a_batch_only_what_is_refused_is_given_up() -> None:
    def answer(events: Sequence[Numbered], n: int) -> tuple[float, Answer]:
        return 0.0, REFUSED if any(one.number in (2, 5) for one in events) else ARRIVED

    world = World(Policy(batch_count=10, concurrency=2), answer)
    world.put(*"abaabbcc")
    world.run(100)
    assert sorted(number for number, _, _ in world.buried) == [2, 5]
    assert sorted(world.arrived) == [0, 1, 3, 4, 6, 7]
    assert in_order(world.arrived, "abaabbcc")
    assert len(world.sent) == 1 + 8  # not one batch per remaining event
    world.put("a", "b")
    world.run()
    assert world.sent[-1][1] == [8, 9]  # later events are batched again


def test_of_a_worn_batch_each_has_one_more_try() -> None:
    def answer(events: Sequence[Numbered], n: int) -> tuple[float, Answer]:
        return 0.0, AGAIN if any(one.number == 1 for one in events) else ARRIVED

    world = World(Policy(batch_count=10, max_attempts=2), answer)
    world.put(*"abc")
    world.run(100)
    assert [number for number, _, _ in world.buried] == [1]
    assert sorted(world.arrived) == [0, 2]


def test_a_batch_that_fails_while_others_arrive_is_sent_one_by_one() -> None:
    def answer(events: Sequence[Numbered], n: int) -> tuple[float, Answer]:
        return 0.0, AGAIN if any(one.number == 1 for one in events) else ARRIVED

    world = World(Policy(batch_count=10), answer)
    world.put(*"abc")
    world.run()
    world.put("d")
    world.run(2)
    assert sorted(world.arrived) == [0, 2, 3]
    assert [numbers for _, numbers in world.sent][:5] == [[0, 1, 2], [3], [0, 1, 2], [0], [1]]
    world = World(Policy(batch_count=10), answer)
    world.put(*"abc")
    world.run(20)
    assert [numbers for _, numbers in world.sent].count([0, 1, 2]) == TOGETHER
    assert sorted(world.arrived) == [0, 2]


def test_an_event_that_cannot_become_a_dead_letter_is_not_lost() -> None:
    world = World(Policy(max_attempts=1), lambda events, n: (0.0, AGAIN if n == 1 else ARRIVED))
    world.bury_fails = 3
    world.put("a", "a")
    world.run(14)
    assert world.buried == []
    assert world.arrived == []  # the next of its key waits
    assert world.queue.waiting == 2
    world.run(2)
    assert (world.buried, world.arrived) == ([(0, "status 500", 1)], [1])


def test_a_sender_that_fails_is_one_that_is_tried_again() -> None:
    def answer(events: Sequence[Numbered], n: int) -> tuple[float, Answer]:
        if n == 1:
            raise RuntimeError("a bug")
        return 0.0, ARRIVED

    world = World(Policy(), answer)
    world.put("a")
    world.run(10)
    assert world.arrived == [0]
    assert world.dispatcher.counts.failed == 1


def test_drain_tells_when_all_arrived() -> None:
    world = World(Policy(concurrency=1), lambda events, n: (1.0, AGAIN if n == 2 else ARRIVED))
    world.put("a", "b")
    told: list[float] = []
    world.dispatcher.drain(lambda: told.append(world.runtime.now()))
    world.run(1.5)
    assert told == []
    world.run(10)
    assert len(told) == 1
    world.dispatcher.drain(lambda: told.append(0.0))
    assert told[1:] == [0.0]  # at once


def test_stop_ends_what_is_under_way() -> None:
    world = World(Policy(concurrency=2, linger=1.0, batch_count=9), lambda events, n: (5.0, AGAIN))
    world.put("a")
    world.run(3)
    world.put("b")
    world.dispatcher.stop()
    world.run(100)
    assert len(world.sent) == 1
    assert world.busy == 0
    assert world.runtime.tasks == set()
    assert world.runtime.next_timer() is None


def test_a_dead_letter_unfinished_at_the_stop_is_tried_again() -> None:
    world = World(Policy(max_attempts=1), lambda events, n: (0.0, AGAIN))
    later: list[Callable[[str], None]] = []

    def bury(one: Numbered, reason: str, attempts: int, done: Callable[[str], None]) -> None:
        later.append(done)

    world.dispatcher._bury = bury
    world.put("a", "a")
    world.run(1)
    world.dispatcher.stop()
    later[0]("")
    later[0]("disk full")
    world.run(100)
    assert world.queue.waiting == 2
    assert len(world.sent) == 1
    assert world.runtime.next_timer() is None


def test_the_oldest_event_has_an_age() -> None:
    world = World(Policy(first_delay=100, longest_delay=100), lambda events, n: (0.0, AGAIN))
    assert world.dispatcher.oldest_age == 0.0
    world.put("a")
    world.run(5)
    world.put("a", "b")
    world.run(2)
    assert world.dispatcher.oldest_age == 7.0


def test_a_queue_that_cannot_be_read_is_read_again() -> None:
    world = World()
    page = world.queue.page
    fails = [OSError("bad sector"), None]

    def failing(after: int, count: int, size: int, done: Any) -> None:
        error = fails.pop(0)
        if error is not None:
            done([], after, error)
        else:
            world.queue.page = page  # type: ignore[method-assign]
            page(after, count, size, done)

    world.queue.page = failing  # type: ignore[method-assign]
    world.put("a")
    world.run(1)
    assert [event for _, event, _ in world.runtime.logged] == ["webhook.queue_unreadable"]
    assert world.dispatcher.oldest_age == 1.0  # the waiting event is older
    world.run(10)
    assert world.arrived == [0]
    assert world.dispatcher.oldest_age == 0.0


# under every interleaving -----------------------------------------------------------------------------------------------


def in_order(arrived: Sequence[int], keys: Sequence[str]) -> bool:
    """Return whether the first arrivals of each key are in order."""
    for key in set(keys):
        firsts = list(dict.fromkeys(n for n in arrived if keys[n] == key))
        if firsts != sorted(firsts):
            return False
    return True


class Service:
    """A service that responds as configured. It records every request, even if its response is
    lost.
    """

    def __init__(self, answers: list[tuple[float, str]]) -> None:
        self.answers = answers
        self.seen: list[tuple[str, str]] = []
        """The payload and id of each event, in order of arrival."""
        self.poison: set[bytes] = set()
        self.stubborn = ""
        """A key for which every request fails."""
        self.everything = True
        """Whether the service responds at all."""

    async def send(self, runtime: VirtualRuntime, events: Sequence[Numbered]) -> Answer:
        if not self.everything:
            return AGAIN
        delay, kind = self.answers.pop() if self.answers else (0.0, "good")
        before, after = delay / 2, delay / 2
        await runtime.sleep(before)
        if any(one.event.payload in self.poison for one in events):
            return REFUSED
        if any(one.event.client == self.stubborn for one in events):
            kind = "down"
        if kind in ("good", "lost"):
            self.seen += [((one.event.payload or b"").decode(), one.id) for one in events]
        await runtime.sleep(after)
        if kind == "good":
            return ARRIVED
        return Answer(Verdict.AGAIN, kind, 3.0 if kind == "busy" else None)


answers = st.tuples(
    st.sampled_from([0.0, 0.1, 1.0, 4.0]), st.sampled_from(["good", "lost", "down", "busy"])
)
steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from("abc"), min_size=1, max_size=6)),
    st.tuples(st.just("pass"), st.sampled_from([0.0, 0.3, 2.0, 20.0])),
    st.tuples(st.just("kill"), st.none()),
    st.tuples(st.just("stop"), st.none()),
)


@settings(max_examples=60)
@example(
    steps=[("publish", ["b", "b", "a"])], answers=[], concurrency=1, batch=3, window=2, linger=0.0, failures=1,
    seed=0, stubborn="b",
)  # fmt: skip
@given(
    st.lists(steps, min_size=1, max_size=14),
    st.lists(answers, max_size=30),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 3, 50]),
    st.sampled_from([2, 5, 1000]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([1, 3, 1000]),
    st.integers(0, 3),
    st.sampled_from(["", "a", "b"]),
)
def test_nothing_is_lost_and_nothing_overtakes(
    steps: list[tuple[str, Any]],
    answers: list[tuple[float, str]],
    concurrency: int,
    batch: int,
    window: int,
    linger: float,
    failures: int,
    seed: int,
    stubborn: str,
) -> None:
    """No event is lost or overtaken, no matter how the service fails, and even if the outbox is killed or stopped.

    The outbox is on a real disk. Every committed event arrives, in order per key, and a repeated event has the same id.
    A key that always fails does not block the others.
    """
    service = Service(list(answers))
    service.stubborn = stubborn
    keys: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), service, concurrency, batch, window, linger, failures, seed, 0)
        for name, value in steps:
            if name == "publish":
                life.publish(value, keys)
            elif name == "pass":
                life.runtime.advance(value)
            else:
                life.end(name == "stop")
                life = Life(
                    Path(folder), service, concurrency, batch, window, linger, failures, seed,
                    life.commit,
                )  # fmt: skip
        service.answers.clear()
        life.runtime.advance(3000)
        assert life.outbox.waiting == keys.count(stubborn)
        service.stubborn = ""
        life.runtime.advance(3000)
        assert life.outbox.waiting == life.dispatcher.skipped == life.dispatcher.loaded == 0
        life.end(True)
    numbers = [int(payload) for payload, _ in service.seen]
    assert sorted(set(numbers)) == list(range(len(keys)))
    assert in_order(numbers, keys)
    ids: dict[str, str] = {}
    for payload, id in service.seen:
        assert ids.setdefault(payload, id) == id
    assert len(set(ids.values())) == len(ids)


def test_a_key_that_fails_for_ever_stops_no_other(tmp_path: Path) -> None:
    """A key that always fails does not block the others, even with ten times more waiting events than fit into memory.
    After a restart, the key works again.
    """
    window = 20
    service = Service([])
    service.stubborn = "bad"
    keys: list[str] = []
    life = Life(tmp_path, service, 2, 1, window, 0.0, 5, 0, 0)
    life.publish(["bad"] * 10 * window, keys)
    for _ in range(4):
        life.publish(["a", "bad", "b"] * 10, keys)
        life.runtime.advance(300)
        assert life.dispatcher.loaded <= window
    well = [n for n, key in enumerate(keys) if key != "bad"]
    numbers = [int(payload) for payload, _ in service.seen]
    assert sorted(numbers) == well
    assert in_order(numbers, keys)
    assert life.outbox.waiting == keys.count("bad")
    life.end(False)
    life = Life(tmp_path, service, 2, 1, window, 0.0, 5, 0, life.commit)
    life.runtime.advance(300)
    life.publish(["a", "bad"], keys)
    life.runtime.advance(300)
    assert keys[int(service.seen[-1][0])] == "a"
    service.stubborn = ""
    life.runtime.advance(300)
    life.end(True)
    numbers = list(dict.fromkeys(int(payload) for payload, _ in service.seen))
    assert sorted(numbers) == list(range(len(keys)))
    assert in_order(numbers, keys)


@pytest.mark.parametrize("seed", range(4))
def test_a_lane_that_joins_while_a_page_is_read_is_not_passed_over(
    tmp_path: Path, seed: int
) -> None:
    """A lane that catches up while a page is read is not skipped.

    The service was down, recovers, and fails occasionally, so many keys have a backlog. One key finishes its events in
    memory while a page for other keys, which starts further on, is being read.
    """
    chance = random.Random(seed)
    kinds = ["down" if chance.random() < 0.1 else "good" for _ in range(4000)]
    service = Service([(chance.choice([0.0, 0.01, 0.1]), kind) for kind in kinds])
    service.everything = False
    keys: list[str] = []
    life = Life(tmp_path, service, 4, 1, 40, 0.0, 5, seed, 0)
    for _ in range(30):
        life.publish([f"k{number}" for number in range(20)], keys)
    life.runtime.advance(60)
    service.everything = True
    life.runtime.advance(6000)
    numbers = [int(payload) for payload, _ in service.seen]
    assert sorted(numbers) == list(range(len(keys)))
    assert in_order(numbers, keys)
    assert life.outbox.waiting == life.dispatcher.skipped == life.dispatcher.loaded == 0
    assert life.dispatcher.idle
    life.end(True)


def test_the_oldest_event_counts_whether_it_is_in_memory_or_not(tmp_path: Path) -> None:
    """The age of the oldest event is always known. The event may be only in the outbox, behind other events, or left
    over from before a restart.
    """
    service = Service([])
    service.everything = False
    keys: list[str] = []
    life = Life(tmp_path, service, 1, 1, 2, 0.0, 5, 0, 0, timed=True)
    for _ in range(30):
        life.publish(["a"], keys)
        life.runtime.advance(10)
    assert life.dispatcher.loaded <= 3
    assert life.dispatcher.oldest_age == pytest.approx(300, abs=2)
    life.dispatcher.stop()  # nothing is in memory any more
    life.runtime.advance(100)
    assert life.dispatcher.oldest_age == pytest.approx(400, abs=2)
    life.end(False)
    later = Life(tmp_path, service, 1, 1, 2, 0.0, 5, 0, life.commit, timed=True)
    later.runtime.advance(500)  # its clock begins again
    assert later.dispatcher.oldest_age == pytest.approx(500, abs=2)
    ages = []
    service.everything = True
    while later.outbox.waiting:
        later.runtime.advance(0.05)
        ages.append(later.dispatcher.oldest_age)
    assert ages[-1] == 0.0
    assert ages[-2] < 250  # as it drains the age falls
    later.publish(["a"], keys)
    assert later.dispatcher.oldest_age < 1
    later.end(True)


def test_skipped_events_are_bounded(tmp_path: Path) -> None:
    service = Service([])
    service.stubborn = "bad"
    life = Life(tmp_path, service, 2, 1, 2, 0.0, 5, 0, 0)
    life.publish(["bad"] * (SKIPPED * 2 + 50) + ["a"], [])
    life.runtime.advance(300)
    assert SKIPPED * 2 <= life.dispatcher.skipped <= SKIPPED * 2 + 2
    assert service.seen == []  # beyond that limit, the other keys wait too
    service.stubborn = ""
    life.runtime.advance(600)
    assert len(service.seen) == SKIPPED * 2 + 51
    life.end(True)


@pytest.mark.parametrize("most", [10_000, 30])
def test_a_key_that_fails_for_ever_stops_no_other_in_memory(most: int) -> None:
    """A key that always fails does not block the others, even if it has more events than fit into the window and the
    queue.
    """
    service = {"bad": True}

    def answer(events: Sequence[Numbered], n: int) -> tuple[float, Answer]:
        return 0.0, AGAIN if service["bad"] and events[0].event.client == "bad" else ARRIVED

    world = World(Policy(window_count=4, concurrency=2), answer)
    dropped: list[Event] = []
    world.queue = MemoryQueue("q", most, 1 << 30, "oldest", dropped.append)
    world.dispatcher = Dispatcher(
        world.runtime, world.queue, world.send, world.bury, lambda one: one.event.client or "",
        Policy(window_count=4, concurrency=2), world.breaker,
    )  # fmt: skip
    world.dispatcher.begin()
    keys: list[str] = []
    for _ in range(60):
        for key in ("bad", "a", "bad", "bad", "b"):
            keys.append(key)
            world.put(key)
        world.run(2)
        assert world.dispatcher.loaded <= 4
        assert world.queue.waiting <= most
    well = [n for n, key in enumerate(keys) if key != "bad"]
    assert sorted(world.arrived) == well
    assert world.queue.waiting + len(dropped) == keys.count("bad")
    assert world.queue.waiting >= min(most, keys.count("bad")) - 2  # except the room for a and b
    assert {event.client for event in dropped} <= {"bad"}
    service["bad"] = False
    world.run(1000)
    assert len(world.arrived) == len(keys) - len(dropped)
    for key in ("a", "b", "bad"):
        mine = [n for n in world.arrived if keys[n] == key]
        assert mine == sorted(mine)
    assert world.dispatcher.idle
    assert (world.queue.waiting, world.queue.size, world.dispatcher.skipped) == (0, 0, 0)


class Life:
    """An outbox and its dispatcher, from one start to the next stop."""

    def __init__(
        self, folder: Path, service: Service, concurrency: int, batch: int, window: int,
        linger: float, failures: int, seed: int, commit: int, *, timed: bool = False,
    ) -> None:  # fmt: skip
        self.runtime = runtime = VirtualRuntime(seed)
        self.commit = commit

        def made(message: Message) -> list[Event]:
            when = runtime.time() if timed else 1.0
            return [Event("m.p", when, message.topic, payload=message.payload)]

        self.outbox = Outbox(
            "box", folder, runtime, lambda topic: True, made, self.ready, Bounds(65536, 1000)
        )
        self.begun = False
        self.outbox.recover(CommitId("s", commit))
        self.queue = LogQueue(
            folder, self.outbox.log.id, runtime, runtime.run_blocking, runtime.log, lambda first, end: None,
            self.changed,
        )  # fmt: skip
        self.queue.load()
        self.begun = True
        policy = Policy(
            concurrency=concurrency, batch_count=batch, window_count=window, linger=linger,
            longest_delay=10.0,
        )  # fmt: skip

        def bury(one: Numbered, reason: str, attempts: int, done: Callable[[str], None]) -> None:
            raise AssertionError("nothing is given up")

        self.dispatcher = Dispatcher(
            runtime, self.queue, lambda events: service.send(runtime, events), bury,
            lambda one: one.event.client or "", policy, Breaker(failures, 2.0, runtime.now),
        )  # fmt: skip
        self.queue.advance(*self.outbox.place)
        self.dispatcher.begin()

    def ready(self) -> None:
        if self.begun:
            self.queue.advance(*self.outbox.place)
            self.dispatcher.wake()

    def changed(self) -> None:
        self.outbox.take_position(self.queue.position())

    def publish(self, topics: list[str], keys: list[str]) -> None:
        self.commit += 1
        commit = CommitId("s", self.commit)
        for topic in topics:
            self.outbox.append(commit, Message(topic, b"%d" % len(keys)))
            keys.append(topic)
        told: list[StoreFailed | None] = []
        self.outbox.flush(commit, told.append)
        while not told:  # attempts go on meanwhile
            self.runtime.advance(0.001)
        assert told == [None]
        self.outbox.committed(commit)

    def end(self, gently: bool) -> None:
        self.dispatcher.stop()
        if gently:
            told: list[bool] = []
            self.queue.close(lambda: self.outbox.close(lambda: told.append(True)))
            self.runtime.run_until_idle()
            assert told
        else:
            self.outbox.log.close()


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=20),
    st.sets(st.integers(0, 19), max_size=4),
    st.lists(answers, max_size=10),
    st.sampled_from([1, 4, 100]),
)
def test_poison_is_given_up_and_nothing_else(
    keys: list[str], poison: set[int], answers: list[tuple[float, str]], batch: int
) -> None:
    service = Service(list(answers))
    service.poison = {b"%d" % number for number in poison}
    world = World(Policy(batch_count=batch, concurrency=2))
    world.dispatcher._send = lambda events: service.send(world.runtime, events)
    for number, key in enumerate(keys):
        world.queue.put(Event("x.y", 1.0, key, payload=b"%d" % number))
    world.dispatcher.wake()
    world.run(5000)
    poison &= set(range(len(keys)))
    assert sorted(number for number, _, _ in world.buried) == sorted(poison)
    numbers = [int(payload) for payload, _ in service.seen]
    assert set(numbers) == set(range(len(keys))) - poison
    assert in_order(numbers, keys)
