"""Test how a table records its batches, and how a repeated batch is handled. Spark is not needed."""

import random
from collections import Counter

import pytest
from mqtt_pipelines.sinks import ledger
from mqtt_pipelines.sinks.ledger import Span
from pyspark_mqtt.errors import MqttError

A, B = "0" * 32, "1" * 32


def noted(table: dict[str, int], app: str, batch_id: int, *found: Span) -> tuple[Span, ...]:
    """Write a batch, and record the spans that were missing. Return the spans that the table already contained."""
    verdict = ledger.judge(table.get, app, batch_id, found, keyed=True)
    assert not verdict.repeated
    table.update(verdict.entries)
    return verdict.done


def repeated(table: dict[str, int], app: str, batch_id: int) -> bool:
    return ledger.judge(table.get, app, batch_id, (), keyed=True).repeated


def test_a_batch_is_known_by_its_number_and_those_before_it_are() -> None:
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 0, 9))
    noted(table, "p.q.one", 4, Span(A, 0, 10, 19))
    assert [repeated(table, "p.q.one", n) for n in (0, 3, 4, 5)] == [True, True, True, False]
    assert not repeated(table, "p.other.one", 0)
    assert not repeated(table, "other.q.one", 0)


def test_a_new_checkpoint_leaves_out_what_the_old_one_wrote() -> None:
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 0, 9), Span(A, 1, 0, 4))
    assert noted(table, "p.q.two", 0, Span(A, 0, 5, 14)) == (Span(A, 0, 5, 9),)
    # Its next batches are not begun with, and are judged the same.
    assert noted(table, "p.q.two", 1, Span(A, 0, 15, 19), Span(A, 1, 0, 4)) == (Span(A, 1, 0, 4),)
    assert repeated(table, "p.q.two", 1)
    assert noted(table, "p.q.three", 0, Span(A, 0, 0, 30)) == (Span(A, 0, 0, 19),)


OLDER = r"p\.q writes rows of older messages after .* Restore the checkpoint"


def test_after_a_new_checkpoint_the_order_is_free() -> None:
    """With a new checkpoint, rows may arrive in any order. Only the rows that were written with the old checkpoint are
    skipped.

    If the checkpoint is lost again, the query is refused, because the notes would not show which rows exist.
    """
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 0, 9))
    assert noted(table, "p.q.two", 0, Span(A, 0, 30, 39)) == ()
    assert noted(table, "p.q.two", 1, Span(A, 0, 20, 29)) == ()
    assert noted(table, "p.q.two", 2, Span(A, 0, 5, 19)) == (Span(A, 0, 5, 9),)
    with pytest.raises(MqttError, match=OLDER):
        noted(table, "p.q.three", 0, Span(A, 0, 0, 39))


def test_another_log_another_query_another_partition_are_nothing_of_the_kind() -> None:
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 0, 9))
    assert noted(table, "p.q.two", 0, Span(B, 0, 0, 9), Span(A, 1, 0, 9)) == ()
    assert noted(table, "p.r.one", 0, Span(A, 0, 0, 9)) == ()


def test_a_checkpoint_that_was_not_lost_may_write_in_any_order() -> None:
    """While a query keeps its checkpoint, it may write rows in any order, and no row is skipped. Once the checkpoint is
    lost or too old, the query is refused.
    """
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 50, 60))
    assert noted(table, "p.q.one", 1, Span(A, 0, 10, 20)) == ()
    with pytest.raises(MqttError, match=OLDER):
        noted(table, "p.q.two", 0, Span(A, 0, 0, 70))
    with pytest.raises(MqttError, match=OLDER):  # of a checkpoint that is older than the table
        noted(table, "p.q.one", 0, Span(A, 0, 0, 70))


def test_of_two_drivers_with_checkpoints_of_their_own_the_older_ends() -> None:
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 0, 9))
    noted(table, "p.q.two", 0, Span(A, 0, 0, 19))
    for batch_id in (0, 1):
        with pytest.raises(MqttError, match=r"p\.q has .* a newer checkpoint than one since"):
            noted(table, "p.q.one", batch_id, Span(A, 0, 10, 19))
    assert noted(table, "p.q.two", 1, Span(A, 0, 20, 29)) == ()
    assert noted(table, "p.q.three", 0, Span(A, 0, 0, 29)) == (Span(A, 0, 0, 29),)
    with pytest.raises(MqttError, match=r"a newer checkpoint than two since"):
        noted(table, "p.q.two", 2, Span(A, 0, 30, 39))


def test_rows_without_offsets_cannot_begin_anew() -> None:
    table: dict[str, int] = {}
    table |= ledger.judge(table.get, "p.gold.one", 0, (), keyed=False).entries
    table |= ledger.judge(table.get, "p.gold.one", 1, (), keyed=False).entries
    with pytest.raises(
        MqttError, match=r"p\.gold wrote .* \(two is new\).* restore the checkpoint"
    ):
        ledger.judge(table.get, "p.gold.two", 0, (), keyed=False)
    assert ledger.judge(table.get, "p.gold.two", 0, (), keyed=True).entries


def test_an_older_checkpoint_makes_other_batches_of_the_same_numbers() -> None:
    table: dict[str, int] = {}
    for n in range(3):
        noted(table, "p.q.one", n, Span(A, 0, 10 * n, 10 * n + 9))
    assert not ledger.judge(table.get, "p.q.one", 1, [Span(A, 0, 10, 49)], keyed=True).repeated
    assert noted(table, "p.q.one", 1, Span(A, 0, 10, 49)) == (Span(A, 0, 10, 29),)
    assert noted(table, "p.q.one", 2, Span(A, 0, 50, 59), Span(A, 1, 0, 3)) == ()
    assert table["p.q.one"] == 2
    assert table["p.q.one#resumed"] == 1
    assert ledger.judge(table.get, "p.q.one", 2, [Span(A, 0, 50, 59)], keyed=True).repeated
    assert noted(table, "p.q.one", 3, Span(A, 0, 60, 69)) == ()


def test_an_older_checkpoint_of_rows_without_offsets_is_told() -> None:
    table: dict[str, int] = {}
    for n in range(3):
        table |= ledger.judge(table.get, "p.gold.one", n, (), keyed=False).entries
    assert ledger.judge(table.get, "p.gold.one", 2, (), keyed=False).repeated
    with pytest.raises(MqttError, match=r"checkpoint of p\.gold is older .* at batch 1, .* has 2"):
        ledger.judge(table.get, "p.gold.one", 1, (), keyed=False)


def test_spans_of_files_are_one_span() -> None:
    found = [Span(A, 0, 5, 9), Span(B, 0, 1, 1), Span(A, 0, 0, 3), Span(A, 1, 2, 2)]
    assert ledger.spans(found) == [Span(A, 0, 0, 9), Span(A, 1, 2, 2), Span(B, 0, 1, 1)]


class Table:
    """A sink that applies the verdicts. It has a ledger and a list of rows, which are (partition, offset) pairs of one
    log.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.ledger: dict[str, int] = {}

    def write(self, app: str, batch_id: int, batch: list[tuple[int, int]]) -> None:
        left, whole = batch, None
        while True:
            found = ledger.spans(Span(A, place, offset, offset) for place, offset in left)
            whole = whole or ledger.shape(found, len(batch))
            verdict = ledger.judge(self.ledger.get, app, batch_id, found, True, whole)
            if verdict.repeated and not verdict.note:
                return
            if not verdict.done or verdict.repeated:
                break
            left = [
                (place, offset)
                for place, offset in left
                if not any(
                    s.partition == place and s.first <= offset <= s.last for s in verdict.done
                )
            ]
        if (left and not verdict.repeated) or verdict.note:
            self.rows += [] if verdict.repeated else left
            self.ledger.update(verdict.entries)


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_whatever_becomes_of_the_checkpoint(first: int) -> None:
    for seed in range(first, first + 50):
        whatever(seed)


def whatever(seed: int) -> None:
    """Read three partitions in random batches of random rows. The query may be killed before or after it records a
    batch.

    Its checkpoint may be lost, or restored from an earlier time. In the end, each row must exist exactly once.
    """
    chance, table = random.Random(seed), Table()
    ends = {place: chance.randrange(40) for place in range(3)}
    kept = {(place, n) for place, end in ends.items() for n in range(end) if chance.random() < 0.8}
    Checkpoint = tuple[str, list[dict[int, int]]]
    now: Checkpoint = ("p.q.0", [dict.fromkeys(ends, 0)])
    saved: list[Checkpoint] = []
    planned: dict[int, int] | None = None
    for step in range(2000):
        app, done = now
        at = done[-1]
        if planned is None:
            most = chance.choice((1, 3, 10, 100))
            planned = {p: min(end, at[p] + chance.randrange(most + 1)) for p, end in ends.items()}
        batch = [(p, n) for p in ends for n in range(at[p], planned[p]) if (p, n) in kept]
        table.write(app, len(done) - 1, batch)
        what = chance.random() if step < 60 else 1.0
        if what < 0.15:  # killed before it noted the batch: which is planned, and comes again
            continue
        if what < 0.2:
            now = (f"p.q.{step + 1}", [dict.fromkeys(ends, 0)])
            saved, planned = [], None  # what was saved of the older one is refused
            continue
        if what < 0.3 and saved:
            old, steps = chance.choice(saved)
            now, planned = (old, list(steps)), None
            continue
        done.append(planned)
        planned = None
        if chance.random() < 0.3:
            saved.append((app, list(done)))
        if done[-1] == ends and step > 60:
            break
    assert [row for row, n in Counter(table.rows).items() if n != 1] == [], seed
    assert set(table.rows) == kept, seed
