"""What a table notes with a batch, and what it makes of a batch that comes again. No Spark."""

import pytest
from mqtt_pipelines.sinks import ledger
from mqtt_pipelines.sinks.ledger import Span
from pyspark_mqtt.errors import MqttError

A, B = "0" * 32, "1" * 32


def noted(table: dict[str, int], app: str, batch_id: int, *found: Span) -> tuple[Span, ...]:
    """Write a batch: what of it was there already; the rest is noted."""
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
    assert noted(table, "p.q.three", 0, Span(A, 0, 0, 30)) == (Span(A, 0, 0, 19),)
    assert repeated(table, "p.q.two", 1)


def test_after_a_new_checkpoint_the_order_is_free() -> None:
    """What is left out is what the old one wrote: rows of the new one do not hide others that come later."""
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 0, 9))
    assert noted(table, "p.q.two", 0, Span(A, 0, 30, 39)) == ()
    assert noted(table, "p.q.two", 1, Span(A, 0, 20, 29)) == ()
    assert noted(table, "p.q.two", 2, Span(A, 0, 5, 19)) == (Span(A, 0, 5, 9),)
    assert noted(table, "p.q.three", 0, Span(A, 0, 0, 39)) == (Span(A, 0, 0, 39),)


def test_another_log_another_query_another_partition_are_nothing_of_the_kind() -> None:
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 0, 9))
    assert noted(table, "p.q.two", 0, Span(B, 0, 0, 9), Span(A, 1, 0, 9)) == ()
    assert noted(table, "p.r.one", 0, Span(A, 0, 0, 9)) == ()


def test_a_checkpoint_that_was_not_lost_may_write_in_any_order() -> None:
    """A stateful query may give rows of messages long past: nothing is left out while it knows what it wrote."""
    table: dict[str, int] = {}
    noted(table, "p.q.one", 0, Span(A, 0, 50, 60))
    assert noted(table, "p.q.one", 1, Span(A, 0, 10, 20)) == ()
    assert noted(table, "p.q.two", 0, Span(A, 0, 0, 70)) == (Span(A, 0, 0, 60),)


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
