"""Test the parent process: open files, processes that exit, and samples. test_bench_run.py tests whole runs."""

import resource
from multiprocessing import Pipe
from multiprocessing.connection import wait
from types import SimpleNamespace
from typing import Any

import pytest
from hookmq_bench.address import BenchError
from hookmq_bench.control import Point, _allow_files, _Watch
from hookmq_bench.outcome import Account, Mark, Sample
from hookmq_bench.tally import Tally
from unwired import vary


def test_files_are_allowed_as_far_as_the_system_lets(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = vary(scenario="connect", publishers=0, subscribers=0, clients=5000, processes=2)
    allowed: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: allowed.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    _allow_files(plan)
    assert allowed == [(2568, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, resource.RLIM_INFINITY))
    _allow_files(plan)
    assert len(allowed) == 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2000))
    with pytest.raises(BenchError, match=r"needs 2568 open files, the limit is 2000.*--processes"):
        _allow_files(plan)


class Told:
    """Pipes to simulated processes. Through them, tests send reports and read the parent's orders."""

    def __init__(self, plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[tuple[str, Point]] = []
        pairs = [Pipe() for _ in range(plan.processes)]
        self.ours = [one for one, _ in pairs]
        self.theirs = [other for _, other in pairs]
        self.watch = _Watch(plan, self.ours, lambda phase, point: self.shown.append((phase, point)))
        self.now = 1_000_000_000_000
        clock = SimpleNamespace(
            monotonic_ns=lambda: self.now, monotonic=lambda: self.now / 1e9, sleep=self.sleep
        )
        monkeypatch.setattr("hookmq_bench.control.time", clock)

        def passing(pipes: Any, timeout: float) -> Any:
            self.sleep(timeout)
            return wait(pipes, 0)

        monkeypatch.setattr("hookmq_bench.control.wait", passing)

    def sleep(self, seconds: float) -> None:
        """Let time pass while the parent waits."""
        self.now += int(seconds * 1e9)

    def tell(self, process: int, what: str, more: Any = None) -> None:
        self.theirs[process].send((what, more))

    def heard(self, process: int) -> list[str]:
        found = []
        while self.theirs[process].poll():
            found.append(self.theirs[process].recv()[0])
        return found


def account() -> Account:
    return Account(Tally(), Mark(0, 0), Mark(1, 0))


def test_a_run_goes_through_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(vary(processes=2), monkeypatch)
    for process in (0, 1):
        told.tell(process, "ready")
        sample = Sample(at=told.now, sent=5, acked=0, received=5, progress=5)
        told.tell(process, "sample", sample)
        told.tell(process, "sample", sample._replace(sending=False))
        told.tell(process, "done", account())
    watched = told.watch.run()
    assert len(watched.accounts) == 2
    assert not watched.interrupted
    assert [told.heard(0), told.heard(1)] == [["go", "finish"]] * 2
    assert told.shown[-1][1].sent == 10


def test_it_waits_for_what_is_missing_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(vary(drain=2.0), monkeypatch)
    told.tell(0, "ready")
    told.tell(0, "sample", Sample(at=told.now, sent=10, received=9, progress=9, sending=False))
    told.tell(0, "done", account())
    began = told.now
    told.watch.run()
    assert told.now - began >= 2_000_000_000


def test_a_broker_that_hangs_ends_a_run_that_a_count_would_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(vary(count=10, duration=0.0, qos=1, drain=0.1), monkeypatch)
    told.tell(0, "ready")
    told.tell(0, "sample", Sample(at=told.now, sent=5, outstanding=5, unacked=5))
    told.tell(0, "done", account())
    watched = told.watch.run()
    assert watched.stood_still
    assert told.heard(0) == ["go", "stop", "finish"]


@pytest.mark.parametrize("ready", [True, False])
def test_a_process_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch, ready: bool) -> None:
    told = Told(vary(), monkeypatch)
    if ready:
        told.tell(0, "ready")
    told.tell(0, "failed", "subscriber 3: not authorized")
    with pytest.raises(BenchError, match="subscriber 3: not authorized"):
        told.watch.run()


def test_a_process_that_is_gone_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(vary(), monkeypatch)
    told.theirs[0].close()
    with pytest.raises(BenchError, match="process 1 ended unexpectedly"):
        told.watch.run()


def test_subscribers_alone_end_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(vary(scenario="sub", publishers=0, count=100, duration=0.0), monkeypatch)
    told.tell(0, "ready")
    for received in (50, 100):
        told.tell(0, "sample", Sample(at=told.now, received=received))
    told.tell(0, "done", account())
    told.watch.run()
    assert told.heard(0) == ["go", "stop", "finish"]
