"""Test the counters of an instance, and the estimate of its waiting bytes."""

from hookmq_webhook.counts import Counts, Totals
from hookmq_webhook.events import Event
from hookmq_webhook.marks import MOST, Marks
from hookmq_webhook.queues import Numbered

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_counters_continue_after_the_process_has_died() -> None:
    totals = Totals()
    for life in range(3):
        counts = Counts()
        counts.delivered = 5
        counts.fail("status 503")
        counts.fail("timeout: no answer within 10 s")
        traced = Event("message.published", 1.0, trace=TRACE)
        counts.timed(0.25, 7.0 + life, [Numbered(0, traced, 1)])
        totals.take({**counts.plain, "status_204": 5}, counts.plain_durations)
        totals.take({**counts.plain, "status_204": 5}, counts.plain_durations)
        assert totals["delivered"] == 5 * (life + 1)
        totals.end()
    assert totals["delivered"] == 15
    assert totals.failures == {"status": 3, "timeout": 3}
    assert totals.statuses == {"204": 15}
    assert (totals.durations.count, totals.durations.sum) == (3, 0.75)
    [exemplar] = filter(None, totals.durations.exemplars or ())
    assert exemplar.time == 9.0
    assert totals["unknown"] == 0


def test_bytes_before_an_event_are_estimated() -> None:
    marks = Marks()
    assert marks.begin([(0, 1000), (10, 400)], 14) == 1400
    marks.add(15, 2400)
    assert marks.before(0) == 0
    assert marks.before(5) == 500
    assert marks.before(12) == 1200
    assert marks.before(14) == 1400
    assert marks.before(15) == 2400
    for number in range(16, 16 + 5 * MOST):
        marks.add(number, 2400 + (number - 15) * 10)
    assert len(marks._numbers) <= MOST
    for number in range(16, 16 + 5 * MOST, 500):
        assert marks.before(number) == 2400 + (number - 15) * 10
    assert marks.before(1) <= 2400 + 5 * MOST * 10  # events that are done long ago
