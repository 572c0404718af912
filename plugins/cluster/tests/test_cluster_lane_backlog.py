"""Test how the log of a lane is read before the lane is opened."""

import pytest
from cluster_stores import NAMES, Bench, Process
from hookmq_cluster.engine import Entry
from hookmq_cluster.frames import MessageItem, Origin, PeerFrame, encode_peer
from hookmq_cluster.lane_backlog import LaneBacklog
from hookmq_testing.contracts import make_message
from simulated_engine import Faults


def send(bench: Bench, count: int) -> None:
    """Write messages of another node into lane n1."""
    for number in range(count):
        item = MessageItem(make_message(f"m{number}"), (), True)
        [data] = encode_peer(PeerFrame(Origin("n9", "b9", number + 1), (item,)), 1000)
        bench.log.append([Entry(NAMES.lane("n1"), data)])


def read(bench: Bench, backlog: LaneBacklog) -> bool:
    """Read the backlog, and return the result."""
    results: list[bool] = []
    bench.runtime.spawn(backlog.read(), lambda result, _: results.append(result))
    bench.wait(lambda: results)
    return results[0]


def test_frames_of_other_nodes_are_read_up_to_the_end_of_the_log() -> None:
    bench = Bench()
    process = Process(bench)
    backlog = LaneBacklog(bench.runtime, process.engine, NAMES.lane("n1"), 0)
    assert read(bench, backlog)
    assert (backlog.frames, backlog.last) == ([], 0)
    send(bench, 250)
    process.store.received("n1", 7)
    process.commit()
    assert read(bench, backlog)
    assert (len(backlog.frames), backlog.last) == (250, bench.log.sequence)
    send(bench, 1)
    assert read(bench, backlog)
    assert (len(backlog.frames), backlog.frames[-1].sequence) == (251, bench.log.sequence)
    assert not backlog.too_large


def test_a_log_that_does_not_answer_is_read_later() -> None:
    bench = Bench()
    process = Process(bench)
    send(bench, 3)
    backlog = LaneBacklog(bench.runtime, process.engine, NAMES.lane("n1"), 0)
    bench.log.stop()
    assert not read(bench, backlog)
    bench.log.start()
    assert read(bench, backlog)
    assert len(backlog.frames) == 3


def test_a_large_backlog_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookmq_cluster.lane_backlog.MOST", 1000)
    bench = Bench()
    process = Process(bench)
    send(bench, 250)
    backlog = LaneBacklog(bench.runtime, process.engine, NAMES.lane("n1"), 0)
    assert read(bench, backlog)
    assert backlog.too_large
    assert 0 < len(backlog.frames) < 250


def test_a_page_that_is_lost_is_read_again() -> None:
    bench = Bench()
    process = Process(bench)
    send(bench, 300)
    bench.log.faults = Faults(lost_answer=0.3, page=5)
    backlog = LaneBacklog(bench.runtime, process.engine, NAMES.lane("n1"), 0)
    rounds = 1
    while not read(bench, backlog):
        rounds += 1
    assert len(backlog.frames) == 300
    assert rounds < 10
