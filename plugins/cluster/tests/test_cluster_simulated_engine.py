"""The simulated engine: it passes the engines' contract, with and without faults, and its faults happen."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from engine_contract import Calls, EngineBench, EngineContract, appended, commit, read_all
from hookmq_cluster.engine import Appended, Engine, Entry, Refused, Stored, Unavailable
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import Faults, SimulatedEngine, SimulatedLog


class SimulatedBench:
    """Engines on one simulated log and one virtual clock."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.prefix = "hmq.test."
        self.runtime = VirtualRuntime(seed)
        self.random = Random(seed)
        self.log = SimulatedLog(self.runtime, self.random, faults)

    def engine(self) -> SimulatedEngine:
        """Return the engine of a new node."""
        return SimulatedEngine(self.log, self.runtime, self.random)

    def wait(self, until: Callable[[], object], seconds: float = 10.0) -> None:
        """Advance the clock until `until()` is true."""
        end = self.runtime.now() + seconds
        self.runtime.run_until_idle()
        while not until():
            now = self.runtime.now()
            assert now < end, "the awaited event does not happen"
            due = self.runtime.next_timer()
            self.runtime.advance(min(due - now if due is not None else 0.05, 0.05))

    def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        self.runtime.advance(seconds)


class TestContract(EngineContract):
    """The contract without faults, and with followers that lag and slow travel."""

    @pytest.fixture(params=["quiet", "lagging", "small pages"])
    def bench(self, request: pytest.FixtureRequest) -> EngineBench:
        """Return a bench."""
        faults = {
            "quiet": Faults(),
            "lagging": Faults(lag=0.3, slow_one_in=16),
            "small pages": Faults(page=7),
        }
        return SimulatedBench(7, faults[request.param])


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> tuple[list[object], float]:
        bench = SimulatedBench(seed, Faults.drawn(Random(seed)))
        engines = [bench.engine() for _ in range(3)]
        results: list[object] = []
        for number in range(60):
            entry = Entry("hmq.test.lane.a", b"", ("hmq.test.own.a", 0))
            engines[number % 3].commit([entry], results.append, f"key/{number}")
        bench.wait(lambda: len(results) == 60, 10_000.0)
        return [*results, *bench.log.commits], bench.runtime.now()

    assert run(3) == run(3)
    assert len({run(seed)[1] for seed in range(20)}) == 20


@pytest.mark.parametrize("seed", range(40))
def test_with_faults_a_key_is_appended_at_most_once_and_results_are_true(seed: int) -> None:
    faults = Faults(lost_request=0.1, lost_answer=0.2, late=0.2, lag=0.5, slow_one_in=8)
    bench = SimulatedBench(seed, faults)
    engine = bench.engine()
    results: dict[str, object] = {}
    for number in range(60):
        key = f"key/{number}"
        entries = [Entry("hmq.test.lane.a", key.encode())] * (1 + number % 3)
        engine.commit(entries, partial(results.__setitem__, key), key)
    bench.wait(lambda: len(results) == 60, 10_000.0)
    assert all(isinstance(one, Appended) for one in results.values())
    stored = bench.log.messages(["hmq.test.lane.a"])
    bench.pass_time(20.0)
    assert bench.log.messages(["hmq.test.lane.a"]) == stored
    by_key = {one.key: one for one in bench.log.commits}
    assert len(by_key) == len(bench.log.commits) == 60
    for number in range(60):
        mine = by_key[f"key/{number}"]
        assert mine.last - mine.first == number % 3
        assert results[mine.key] == Appended(mine.last)
    assert [one.key for one in bench.log.commits] == [f"key/{number}" for number in range(60)]


def test_unknown_results_are_reported_both_for_commits_that_were_made_and_that_were_not() -> None:
    bench = SimulatedBench(1, Faults(lost_request=0.2, lost_answer=0.2))
    engine = bench.engine()
    made = {True: 0, False: 0}
    for number in range(100):
        entry = Entry("hmq.test.lane.a", b"%d" % number)
        result = commit(bench, engine, entry)
        if isinstance(result, Unavailable):
            made[any(one.data == entry.data for one in bench.log.messages(["hmq.>"]))] += 1
    assert made[True] > 5
    assert made[False] > 5


def test_without_a_majority_nothing_is_decided_and_a_keyed_commit_waits_for_it() -> None:
    bench = SimulatedBench(1, Faults())
    engine = bench.engine()
    lane = "hmq.test.lane.a"
    bench.log.stop()
    assert isinstance(commit(bench, engine, Entry(lane, b"1")), Unavailable)
    calls, exact, page = Calls(bench), Calls(bench), Calls(bench)
    engine.commit([Entry(lane, b"2")], calls, "key")
    engine.last(lane, exact, True)
    engine.read([lane], 0, page)
    bench.pass_time(5.0)
    assert calls.all == []
    assert isinstance(exact.one(), Unavailable)
    assert isinstance(page.one(), Unavailable)
    bench.log.start()
    assert calls.one() == Appended(1)
    bench.log.stop()
    engine.commit([Entry(lane, b"3")], calls, "key 3")
    bench.pass_time(30.0)
    assert isinstance(calls.all[1], Unavailable)
    assert len(calls.all) == 2


@pytest.mark.parametrize("notice", [0.0, 3.0])
def test_a_node_that_is_cut_off(notice: float) -> None:
    bench = SimulatedBench(1, Faults(notice=notice))
    engine, other = bench.engine(), bench.engine()
    lane, all_ = "hmq.test.lane.a", "hmqc.test.all"
    told: list[bool] = []
    heard: list[bytes] = []
    seen: list[Stored] = []
    engine.on_connection(told.append)
    engine.listen(all_, lambda _, data: heard.append(data))
    engine.follow([lane], 0, seen.append)
    bench.pass_time(1.0)
    engine.cut()
    for number in range(30):
        other.send(all_, b"lost")
        appended(bench, other, Entry(lane, b"%d" % number))
    engine.commit([Entry(lane, b"mine")], Calls(bench), "key")
    bench.pass_time(4.0)
    assert (told, heard, seen) == ([False], [], [])
    assert not engine.connected()
    engine.heal()
    bench.wait(lambda: len(seen) == 31 and len(told) == 2)
    assert told == [False, True]
    assert engine.connected()
    assert [one.sequence for one in seen] == list(range(1, 32))
    other.send(all_, b"arrives")
    bench.pass_time(1.0)
    assert heard == [b"arrives"]
    engine.cut()
    engine.heal()
    bench.pass_time(5.0)
    assert told == [False, True, False, True]


def test_a_cut_loses_messages_under_way() -> None:
    bench = SimulatedBench(1, Faults())
    engine, other = bench.engine(), bench.engine()
    heard: list[bytes] = []
    engine.listen("hmqc.test.all", lambda _, data: heard.append(data))
    other.send("hmqc.test.all", b"1")
    engine.cut()
    engine.heal()
    bench.pass_time(1.0)
    other.send("hmqc.test.all", b"2")
    bench.pass_time(1.0)
    assert heard == [b"2"]


def test_a_broken_route_loses_messages_between_two_nodes_only() -> None:
    bench = SimulatedBench(1, Faults())
    one, other, third = (bench.engine() for _ in range(3))
    heard: dict[int, list[bytes]] = {number: [] for number in range(3)}

    def heard_by(number: int, _subject: str, data: bytes) -> None:
        heard[number].append(data)

    for number, engine in enumerate((one, other, third)):
        engine.listen("hmqc.test.all", partial(heard_by, number))
    bench.log.break_route(one, other)
    one.send("hmqc.test.all", b"1")
    bench.pass_time(1.0)
    bench.log.mend_route(one, other)
    one.send("hmqc.test.all", b"2")
    bench.pass_time(1.0)
    assert heard == {0: [b"1", b"2"], 1: [b"2"], 2: [b"1", b"2"]}


def test_a_commit_of_a_node_that_crashes_may_be_appended_and_nothing_is_called_afterwards() -> None:
    counts = set()
    for seed in range(30):
        bench = SimulatedBench(seed, Faults())
        engine, other = bench.engine(), bench.engine()
        calls = Calls(bench)
        engine.commit([Entry("hmq.test.lane.a", b"")], calls, "key")
        engine.commit([Entry("hmq.test.lane.a", b"")], calls, "key 2")
        engine.follow(["hmq.>"], 0, calls)
        bench.runtime.advance(bench.random.random() * 0.006)
        before = len(calls.all)
        engine.crash()
        bench.pass_time(60.0)
        assert len(calls.all) == before
        counts.add(len(read_all(bench, other, "hmq.>")))
    assert counts == {1, 2}


def test_a_late_request_without_a_key_can_be_appended_after_its_result_was_unknown() -> None:
    bench = SimulatedBench(3, Faults(late=1.0))
    engine = bench.engine()
    assert isinstance(commit(bench, engine, Entry("hmq.test.lane.a", b"")), Unavailable)
    assert bench.log.messages(["hmq.>"]) == []
    bench.pass_time(12.0)
    assert len(bench.log.messages(["hmq.>"])) == 1


def test_a_lagging_follower_shows_what_was_replaced() -> None:
    bench = SimulatedBench(3, Faults(lag=1.0))
    writer, reader = bench.engine(), bench.engine()
    subject = "hmq.test.ret.a"
    appended(bench, writer, Entry(subject, b"old"))
    bench.pass_time(2.0)
    appended(bench, writer, Entry(subject, b"new", replace=True))
    found = set()
    for _ in range(40):
        calls = Calls(bench)
        reader.last(subject, calls)
        found.add(calls.one().data)
    assert found == {b"old", b"new"}
    bench.pass_time(2.0)
    assert [one.data for one in read_all(bench, reader, "hmq.>")] == [b"new"]


def test_the_engine_satisfies_the_protocol() -> None:
    bench = SimulatedBench(3, Faults())
    engine: Engine = bench.engine()
    result = commit(bench, engine, Entry("hmq.test.own.a", b"", ("hmq.test.own.a", 4)))
    assert result == Refused("hmq.test.own.a", "its last sequence is 0, not 4")


def test_a_commit_with_a_key_can_be_appended_after_its_result_was_unknown_but_only_once() -> None:
    late = 0
    for seed in range(20):
        bench = SimulatedBench(seed, Faults(late=1.0))
        calls = Calls(bench)
        bench.engine().commit([Entry("hmq.test.lane.a", b"")], calls, "key")
        bench.wait(lambda calls=calls: calls.all, 30.0)  # type: ignore[misc]
        before = len(bench.log.commits)
        bench.pass_time(30.0)
        assert len(bench.log.commits) == 1
        late += before == 0
        if isinstance(calls.all[0], Appended):
            assert before == 1
    bench = SimulatedBench(1, Faults(late=0.3, lost_request=0.97))
    for number in range(100):
        calls = Calls(bench)
        bench.engine().commit([Entry("hmq.test.lane.a", b"")], calls, f"key/{number}")
        bench.wait(lambda calls=calls: calls.all, 30.0)  # type: ignore[misc]
        before = len(bench.log.commits)
        bench.pass_time(30.0)
        late += len(bench.log.commits) > before
    assert late
