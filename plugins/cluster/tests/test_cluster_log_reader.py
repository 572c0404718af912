"""A copy of the log is of one position, although lanes are trimmed while it is read."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from filled_clusters import NAMES, Filled, run
from hookmq.plugin import StoreError
from hookmq.storage_api import Dequeue, Enqueue, PutMessage, Record
from hookmq_cluster.engine import Entry, Stored
from hookmq_cluster.frames import Origin, OwnerFrame, encode_owner
from hookmq_cluster.log_contents import read_contents
from hookmq_cluster.log_reader import copy_log
from hookmq_testing.runtime import VirtualRuntime
from lane_records import message
from simulated_engine import Faults

LANE = NAMES.lane("a")


def write(cluster: Filled, *records: Record) -> int:
    """Append a frame of the lane's owner, and return its sequence."""
    frame = OwnerFrame(Origin("a", "b1", 1), cluster.log.sequence, records)
    [data] = encode_owner(frame, 10_000)
    cluster.log.append([Entry(LANE, data)])
    return cluster.log.sequence


def entry(seq: int) -> tuple[PutMessage, Enqueue]:
    """Return a queue entry with its message."""
    return PutMessage(seq, message(seq)), Enqueue("c/x", seq, seq, 1, 10)


def trim_after_first_page(
    cluster: Filled, before: int, monkeypatch: pytest.MonkeyPatch, *more: Callable[[], object]
) -> None:
    """Let the owner trim its lane after the first page was read."""
    read = cluster.engine.read
    calls = [lambda: cluster.log.trim(LANE, before), *more]

    def trimming(filters: Sequence[str], after: int, done: Callable[[Any], None]) -> None:
        def answered(page: Any) -> None:
            while calls:
                calls.pop(0)()
            done(page)

        read(filters, after, answered)

    monkeypatch.setattr(cluster.engine, "read", trimming)


def test_what_was_read_before_a_gap_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Filled(VirtualRuntime(1), faults=Faults(page=1))
    write(cluster, *entry(1))
    write(cluster, Dequeue("c/x", 1))
    last = write(cluster, *entry(2))
    trim_after_first_page(cluster, last, monkeypatch)
    found = run(cluster.runtime, read_contents(cluster.engine, NAMES, cluster.runtime))
    state = found.lanes["a"].state
    assert [one.seq for one, _ in state.queue("c/x")] == [2]
    assert found.position == last


def test_an_object_that_is_written_again_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trim belongs to a frame that is written after the first page was read."""
    cluster = Filled(VirtualRuntime(1), faults=Faults(page=1))
    write(cluster, *entry(1))
    write(cluster, *entry(2))
    trim_after_first_page(
        cluster, 3, monkeypatch, lambda: write(cluster, *entry(1), *entry(2), *entry(3))
    )
    found = run(cluster.runtime, read_contents(cluster.engine, NAMES, cluster.runtime))
    assert [one.seq for one, _ in found.lanes["a"].state.queue("c/x")] == [1, 2, 3]


def test_leases_and_the_secret_are_left_out() -> None:
    cluster = Filled(VirtualRuntime(1))
    cluster.log.append([Entry(NAMES.secret, b"secret"), Entry(NAMES.lease("a"), b"x", ttl=10)])
    cluster.log.append([Entry(NAMES.session("c"), b"x")])
    found: list[Stored] = []
    work = copy_log(cluster.engine, NAMES, cluster.runtime, found.append)
    assert run(cluster.runtime, work).last == 3
    assert [one.subject for one in found] == [NAMES.session("c")]


def test_a_frame_without_its_end_is_an_error() -> None:
    cluster = Filled(VirtualRuntime(1))
    frame = OwnerFrame(Origin("a", "b1", 1), 0, tuple(entry(9)))
    first, *_ = encode_owner(frame, 120)
    cluster.log.append([Entry(LANE, first)])
    with pytest.raises(StoreError, match=f"{LANE} ends with an incomplete frame"):
        run(cluster.runtime, read_contents(cluster.engine, NAMES, cluster.runtime))
