"""Test how a process finds out what became of its commits."""

from collections.abc import Callable
from typing import Any

import pytest
from cluster_stores import NAMES, Bench, Process
from hookmq.storage_api import CommitId, DropSession
from hookmq_cluster.engine import Appended, Entry, Refused, Unavailable
from hookmq_cluster.frames import Origin, OwnerFrame, encode_owner
from hookmq_cluster.lane_log import ATTEMPTS, RETRY, LaneFrame, LaneLog
from hookmq_cluster.pending_commit import PendingCommit
from hookmq_cluster.result_search import ResultSearch

ORIGIN = Origin("n1", "b1", 7)


class Asked:
    """A process with the lanes n1 and n2, its search, and the answers."""

    def __init__(self) -> None:
        self.bench = Bench()
        process = Process(self.bench, lanes=("n1", "n2"))
        self.engine = process.engine
        self.fences: list[tuple[str, int]] = []
        self.answers: list[Any] = []
        self.lanes: dict[str, LaneLog] = {}
        for lane in ("n1", "n2"):
            fence = self.bench.own(lane, process.boot)
            self.lanes[lane] = LaneLog(self.engine, NAMES, self.bench.runtime, lane, fence)
        self.search = ResultSearch(
            self.engine, NAMES, self.bench.runtime, self.lanes, lambda *one: self.fences.append(one)
        )

    def answer(self) -> Any:
        """Return the only answer, once it is there."""
        self.bench.wait(lambda: self.answers)
        self.bench.runtime.advance(10 * RETRY)
        [answer] = self.answers
        return answer


@pytest.fixture
def asked() -> Asked:
    return Asked()


# lost lanes ------------------------------------------------------------------------------------------------------


def test_all_lost_lanes_are_named_and_no_others(asked: Asked) -> None:
    asked.bench.own("n2", "other")
    asked.search.lost_lanes(["n1", "n2"], "the fence", asked.answers.append)
    assert asked.answer() == {"n2": "another process owns lane 'n2': the fence"}


def test_no_lane_can_be_lost_if_none_is_asked_for(asked: Asked) -> None:
    asked.search.lost_lanes([], "the fence", asked.answers.append)
    assert asked.answer() == {}


def test_a_lane_without_an_owner_is_lost(asked: Asked) -> None:
    asked.lanes["n3"] = LaneLog(asked.engine, NAMES, asked.bench.runtime, "n3", 1)
    asked.search.lost_lanes(["n3"], "the fence", asked.answers.append)
    assert "the log was deleted" in asked.answer()["n3"]


def test_a_lane_whose_owner_cannot_be_read_is_lost_after_some_attempts(asked: Asked) -> None:
    asked.engine.cut()
    asked.search.lost_lanes(["n1"], "the fence", asked.answers.append)
    asked.bench.wait(lambda: asked.answers, 100.0 * ATTEMPTS)
    assert "the owner of lane 'n1' cannot be read" in asked.answer()["n1"]


# fences ----------------------------------------------------------------------------------------------------------


def test_fences_are_renewed_until_the_log_answers(asked: Asked) -> None:
    results: dict[str, list[Any]] = {"n1": [Unavailable("late"), 20], "n2": [21]}

    def renew(lane: str, done: Callable[[Any], None]) -> None:
        done(results[lane].pop(0))

    asked.search.renew_fences(["n1", "n2"], renew, asked.answers.append)
    assert asked.answers == []
    assert asked.answer() is None
    assert sorted(asked.fences) == [("n1", 20), ("n2", 21)]


def test_a_refused_fence_is_reported_once(asked: Asked) -> None:
    refused = Refused("", "another owner")
    asked.search.renew_fences(["n1", "n2"], lambda _, done: done(refused), asked.answers.append)
    assert asked.answer() is refused
    assert asked.fences == []


# the commit ------------------------------------------------------------------------------------------------------


def commit_of(parts: int) -> tuple[PendingCommit, list[Entry]]:
    """Return a commit with a frame of lane n1 that has several parts, and the entries of that frame."""
    frame = OwnerFrame(ORIGIN, 0, tuple(DropSession("c" * 100) for _ in range(parts)))
    data = encode_owner(frame, 160)
    assert len(data) >= parts
    entries = [Entry(NAMES.lane("n1"), one) for one in data]
    commit = PendingCommit(CommitId("c/n1/b1", 7), lambda _: None)
    commit.frames["n1"] = LaneFrame(frame, entries, 1, 0)
    return commit, entries


@pytest.mark.parametrize("parts", [1, 3])
def test_the_first_entry_of_a_commit_is_found(asked: Asked, parts: int) -> None:
    commit, entries = commit_of(parts)
    result = asked.bench.log.append(entries)
    assert isinstance(result, Appended)
    asked.search.find(commit, ORIGIN, asked.answers.append)
    assert asked.answer() == result.last - len(entries) + 1


def test_another_commit_is_not_taken_for_it(asked: Asked) -> None:
    commit, entries = commit_of(1)
    asked.bench.log.append(entries)
    asked.search.find(commit, ORIGIN._replace(number=8), asked.answers.append)
    assert asked.answer() == 0


def test_a_commit_without_frames_is_not_found(asked: Asked) -> None:
    commit = PendingCommit(CommitId("c/n1/b1", 7), lambda _: None)
    asked.search.find(commit, ORIGIN, asked.answers.append)
    assert asked.answer() == 0
