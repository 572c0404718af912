"""Test the queue of a lane, with entries and with runs of records."""

import random

from hookmq.storage_api import MessageColumns, make_message
from hookmq_sinks.lane_queue import Entry, LaneQueue
from hookmq_sinks.record_maker import RecordMaker
from hookmq_sinks.record_run import RecordRun, RunRecords
from hookmq_sinks.testing import LOG_ID, make_record
from hypothesis import given
from hypothesis import strategies as st


def run(first: int, count: int, size: int = 4) -> RecordRun:
    """Return a run whose payloads and topics have `size` bytes together."""
    columns = MessageColumns()
    for number in range(count):
        columns.add_message(
            make_message("t", b"x" * (size - 1), 1, received_at=100.0 + first + number)
        )
    return RecordRun(RecordMaker("s"), columns, first, 0, count, LOG_ID, 5.0)


def entry(offset: int, reason: str = "", size: int = 4) -> Entry:
    return Entry(make_record(offset), reason, size, 5.0)


def test_records_of_runs_are_made_only_if_they_are_used() -> None:
    queue = LaneQueue()
    queue.add(run(0, 3))
    queue.add(run(3, 3))
    good, dead, end = queue.peek(4)
    assert isinstance(good, RunRecords)
    assert (dead, end, len(good), good._made) == ([], 4, 4, None)
    assert [one.offset for one in good] == [0, 1, 2, 3]
    assert good[3].id == f"s:{LOG_ID}:3"
    assert good[1:3][0].offset == 1


def test_an_empty_queue_has_no_first_record() -> None:
    queue = LaneQueue()
    assert (queue.first, queue.received_at, len(queue)) == (None, None, 0)


def test_a_batch_ends_before_the_record_that_exceeds_its_size() -> None:
    queue = LaneQueue()
    queue.add(run(0, 3, 10))
    queue.add(entry(3, size=10))
    queue.add(run(4, 3, 10))
    assert queue.fitting(100, 70) == 7
    assert queue.fitting(100, 69) == 6
    assert queue.fitting(100, 30) == 3
    assert queue.fitting(100, 25) == 2
    assert queue.fitting(2, 69) == 2
    assert queue.fitting(100, 1) == 1


def test_the_first_record_of_a_run_can_be_refused() -> None:
    queue = LaneQueue()
    queue.add(run(7, 2))
    before = queue.bytes
    queue.refuse_first("bad")
    good, dead, end = queue.peek(2)
    assert [(one.offset, why) for one, why in dead] == [(7, "bad")]
    assert ([one.offset for one in good], end) == ([8], 9)
    assert (len(queue), queue.bytes, queue.first) == (2, before, 7)
    queue.drop_below(8)
    queue.refuse_first("too")
    assert [one.offset for one, _ in queue.peek(1).dead] == [8]


@given(st.integers(0, 1 << 32))
def test_it_holds_the_same_records_as_a_list(seed: int) -> None:
    drawn = random.Random(seed)
    queue, model = LaneQueue(), list[tuple[int, int, str]]()
    offset = 0
    for _ in range(drawn.randrange(1, 30)):
        choice = drawn.randrange(4)
        if choice == 0:
            count, size = drawn.randrange(1, 6), drawn.randrange(1, 9)
            queue.add(run(offset, count, size))
            model += [(offset + number, size, "") for number in range(count)]
            offset += count + drawn.choice((0, 0, 2))
        elif choice == 1:
            reason, size = drawn.choice(("", "", "bad")), drawn.randrange(1, 9)
            queue.add(entry(offset, reason, size))
            model.append((offset, size, reason))
            offset += 1
        elif model and choice == 2:
            below = model[0][0] + drawn.randrange(8)
            queue.drop_below(below)
            model = [one for one in model if one[0] >= below]
        elif model:
            most, size = drawn.randrange(1, 9), drawn.randrange(1, 40)
            fits = 1
            while fits < min(most, len(model)) and sum(one[1] for one in model[: fits + 1]) <= size:
                fits += 1
            assert queue.fitting(most, size) == fits
            good, dead, end = queue.peek(fits)
            assert [one.offset for one in good] == [one[0] for one in model[:fits] if not one[2]]
            assert [one.offset for one, _ in dead] == [one[0] for one in model[:fits] if one[2]]
            assert end == model[fits - 1][0] + 1
        assert (len(queue), queue.bytes) == (len(model), sum(one[1] for one in model))
        assert queue.first == (model[0][0] if model else None)
