"""Test starting offsets, where a batch ends, and what each task reads. Spark is not needed."""

import json
import random
from itertools import pairwise

import pytest
from pyspark_mqtt.errors import DataLossError, MqttError, OptionError
from pyspark_mqtt.offsets import (
    Log,
    Offsets,
    Range,
    advance,
    at_time,
    bounded,
    check,
    combined,
    ranges,
    resolve,
    split,
    waiting,
)

LOG = Log("s", "a" * 32, {0: 10, 1: 0}, {0: 110, 1: 40})


def at(*offsets: int, log_id: str = LOG.log_id) -> Offsets:
    return Offsets(log_id, dict(enumerate(offsets)))


def test_offsets_are_kept_as_text_that_is_always_the_same() -> None:
    shuffled = Offsets("x", {10: 1, 2: 3, 0: 5})
    assert json.dumps(shuffled.json()) == '{"log_id": "x", "0": 5, "2": 3, "10": 1}'
    assert Offsets.of(shuffled.json()) == shuffled


@pytest.mark.parametrize(
    "json", [{}, {"0": 1}, {"log_id": 5}, {"log_id": "x", "topic": 1}, {"index": 3}]
)
def test_a_checkpoint_of_another_source(json: dict[str, str | int]) -> None:
    with pytest.raises(MqttError, match="checkpointLocation of its own"):
        Offsets.of(json)


def test_where_options_begin() -> None:
    assert resolve("earliest", LOG, "startingOffsets") == at(10, 0)
    assert resolve("latest", LOG, "startingOffsets") == at(110, 40)
    assert resolve({"1": -1, "0": -2}, LOG, "startingOffsets") == at(10, 40)
    assert resolve({"0": 50, "1": 7}, LOG, "startingOffsets") == at(50, 7)


@pytest.mark.parametrize("given", [{"0": 50}, {"0": 50, "1": 7, "2": 0}])
def test_each_partition_is_named(given: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="has 0, 1: name each of them"):
        resolve(given, LOG, "startingOffsets")


def test_offsets_of_another_log_are_not_taken() -> None:
    given: dict[str, int] = {"log_id": "b", "0": 50, "1": 7}  # type: ignore[dict-item]
    with pytest.raises(DataLossError, match="names log b, but stream s is log a"):
        resolve(given, LOG, "startingOffsets")


def test_offsets_that_are_not_there() -> None:
    warnings: list[str] = []
    assert bounded(at(50, 40), LOG, "startingOffsets", True, warnings) == at(50, 40)
    with pytest.raises(DataLossError, match=r"names offset 9 of partition 0 .* holds 10 to 110"):
        bounded(at(9, 0), LOG, "startingOffsets", True, warnings)
    assert not warnings
    assert bounded(at(9, 41), LOG, "startingOffsets", False, warnings) == at(10, 40)
    assert len(warnings) == 2


def test_where_a_time_begins() -> None:
    assert at_time({0: 60, 1: 0}, LOG, "startingTimestamp", "error") == at(60, 0)
    assert at_time({0: 60, 1: None}, LOG, "startingTimestamp", "latest") == at(60, 40)
    with pytest.raises(OptionError, match="later than all of partition 1 "):
        at_time({0: 60, 1: None}, LOG, "startingTimestamp", "error")


@pytest.mark.parametrize("start", [at(10, 0), at(110, 40), at(60, 5)])
def test_a_log_that_has_all_is_read_on(start: Offsets) -> None:
    assert check(start, LOG, True, []) == start


@pytest.mark.parametrize(
    ("start", "said", "goes_on"),
    [
        (at(9, 5), "lost offsets 9 to 9 of partition 0", at(10, 5)),
        (at(60, 41), "ends at offset 40 of partition 1, but 41 was read", at(60, 0)),
        (at(60, 5, log_id="b"), "is not the log that the checkpoint belongs to", at(10, 0)),
        (at(60), "had 1 partitions in the checkpoint and has 2", at(60, 0)),
        (at(60, 5, 5), "had 3 partitions in the checkpoint and has 2", at(60, 5)),
    ],
)
def test_a_log_that_lost_something(start: Offsets, said: str, goes_on: Offsets) -> None:
    with pytest.raises(DataLossError, match=said) as raised:
        check(start, LOG, True, [])
    assert "failOnDataLoss=false" in str(raised.value)
    assert "\n" not in str(raised.value)
    warnings: list[str] = []
    assert check(start, LOG, False, warnings) == goes_on
    assert said in warnings[0]


def test_a_batch_without_limit_takes_all() -> None:
    assert advance(at(60, 5), LOG.latest, None) == at(110, 40)
    assert advance(at(60, 5), LOG.latest, 85) == at(110, 40)
    assert waiting(at(60, 5), LOG.latest) == 85


def test_a_batch_never_ends_before_it_began() -> None:
    assert advance(at(200, 5), LOG.latest, None) == at(200, 40)
    assert advance(at(200, 50), LOG.latest, 3) == at(200, 50)


@pytest.mark.parametrize("seed", range(200))
def test_a_limit_is_met_and_shared(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 12)
    start = at(*(chance.randint(0, 1000) for _ in range(count)))
    latest = {p: o + chance.choice([0, 1, 2, 500, 10**6]) for p, o in start.next.items()}
    most = chance.choice([1, 2, 7, 100, 10**5])
    end = advance(start, latest, most)
    steps = {p: end.next[p] - start.next[p] for p in start.next}
    assert sum(steps.values()) == min(most, waiting(start, latest))
    for p, step in steps.items():
        assert 0 <= step <= latest[p] - start.next[p]
        # In proportion to what waits, but for rounding.
        if (total := waiting(start, latest)) > most:
            assert abs(step - (latest[p] - start.next[p]) * most / total) <= 1


def test_small_partitions_beside_large_ones_are_read_in_the_end() -> None:
    position, latest = at(0, 0), {0: 10_000, 1: 1}
    batches = 0
    while waiting(position, latest):
        position = advance(position, latest, 100)
        batches += 1
    assert batches == 101


def test_what_a_batch_reads() -> None:
    assert ranges(at(10, 5), at(110, 5)) == [Range(0, 10, 110)]
    assert ranges(at(10, 5), at(10, 5)) == []


@pytest.mark.parametrize("least", [None, 1, 3, 8, 1000])
@pytest.mark.parametrize("most", [None, 1, 17, 1000])
def test_tasks_cover_a_batch(least: int | None, most: int | None) -> None:
    whole = [Range(0, 10, 110), Range(1, 0, 7)]
    pieces = split(whole, least, most)
    for one in whole:
        of_it = [piece for piece in pieces if piece.partition == one.partition]
        assert of_it[0].start == one.start
        assert of_it[-1].end == one.end
        assert all(a.end == b.start for a, b in pairwise(of_it))
    assert all(1 <= piece.rows <= (most or 1000) for piece in pieces)
    assert len(pieces) >= min(least or 1, 107)


@pytest.mark.parametrize("seed", range(200))
def test_small_pieces_share_a_task(seed: int) -> None:
    chance = random.Random(seed)
    pieces = [Range(n, 5, 5 + chance.choice([1, 3, 50, 400])) for n in range(chance.randint(1, 12))]
    least, rows = chance.choice([None, 1, 2, 5, 40]), chance.choice([1, 10, 100, 1000])
    tasks = combined(pieces, least, rows)
    assert [one for task in tasks for one in task] == pieces
    assert all(tasks)
    assert len(tasks) >= min(least or 1, len(pieces))
    total = sum(one.rows for one in pieces)
    assert len(tasks) <= max(least or 1, total // rows)


def test_tasks_by_rows() -> None:
    pieces = [Range(n, 0, 100) for n in range(4)]
    assert combined(pieces, None, 1) == [[one] for one in pieces]
    assert combined(pieces, None, 200) == [pieces[:2], pieces[2:]]
    assert combined(pieces, None, 10_000) == [pieces]
    assert combined(pieces, 2, 10_000) == [pieces[:2], pieces[2:]]
    assert combined([], None, 10_000) == []
