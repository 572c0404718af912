"""Test the parts of the devices-to-tables test: its verdicts and its choice of victims.

`make crash-spark KILLS=6`, which is part of `make test-all`, runs the whole test.
"""

from collections import Counter
from random import Random

import pytest
from devices.fleet import Topic
from devices.judging import Row, Verdict, judge
from devices.runs import VICTIMS, Summary, victims
from hookmq_spark_sink.placement import by_name

PARTITIONS = 3


def topics(acknowledged: int = 12, sent: int = 12) -> list[Topic]:
    """Return one QoS 1 topic and one QoS 2 topic, with the given numbers of sent and acknowledged messages."""
    made = [Topic("d/0/0", 1), Topic("d/1/0", 2)]
    for topic in made:
        for _ in range(sent):
            topic.next()
        for number in range(1, acknowledged + 1):
            topic.acknowledge(number)
    return made


def rows(*published: tuple[Topic, int]) -> list[Row]:
    """Return the rows in a log after these messages were published in order."""
    ends: Counter[int] = Counter()
    found = []
    for topic, number in published:
        partition = by_name(topic.topic, PARTITIONS)
        found.append(
            Row(
                partition,
                ends[partition],
                topic.topic,
                topic.body(number),
                topic.message_id(number),
            )
        )
        ends[partition] += 1
    return found


def verdict(found: list[Row], known: list[Topic], once: bool = False) -> Verdict:
    return judge("table", found, known, PARTITIONS, once=once)


def every(known: list[Topic], *numbers: int) -> list[tuple[Topic, int]]:
    return [(topic, number) for topic in known for number in numbers or range(1, 13)]


def test_a_table_that_has_all_is_right() -> None:
    known = topics()
    table = rows(*every(known))
    assert verdict(table[::-1], known).broken == {}
    assert verdict(table, known, once=True).broken == {}
    ends = Counter(row.partition for row in table)
    found = judge("table", table, known, PARTITIONS, ends=dict(ends))
    assert (found.rows, found.broken) == (24, {})


def test_unacknowledged_messages_may_be_present_or_missing() -> None:
    known = topics(acknowledged=10)
    assert verdict(rows(*every(known)), known).broken == {}
    assert verdict(rows(*every(known, *range(1, 11))), known).broken == {}
    assert verdict(rows(*every(known, *range(1, 10))), known).broken == {"lost": 2}


def test_a_repeated_message_counts_as_one() -> None:
    known = topics()
    one, two = known
    table = rows(*every(known), (one, 11), (one, 12))
    found = verdict(table, known)
    assert (found.broken, found.repeated) == ({}, 2)
    assert verdict(table, known, once=True).broken == {"duplicated": 2}
    assert verdict(rows(*every(known), (two, 12)), known).broken == {"duplicated": 1}


def test_a_batch_that_is_appended_twice() -> None:
    """The check finds duplicates left by a sink without transactions. They occur if the driver is killed after it
    writes a batch but before it records the batch.
    """
    known = topics()
    table = rows(*every(known))
    assert verdict([*table, *table[6:14]], known).broken == {"duplicated": 8}
    assert verdict([*table, *table[6:14]], known, once=True).broken == {"duplicated": 8}


def test_a_log_that_began_anew_without_notice() -> None:
    """The check finds the messages lost by a reader that ignores log_id. Such a reader skips a new log's messages,
    because it has already read their offsets.
    """
    known = topics()
    before = rows(*every(known, 1, 2, 3, 4, 5, 6))
    after = rows(*every(known, 7, 8, 9, 10, 11, 12))
    hidden = [row for row in after if row.offset >= 6]
    assert verdict(before + hidden, known).broken == {"lost": 12 - len(hidden)}
    assert verdict(before + after, known).broken["duplicated"] == 12


def test_offsets_that_were_given_twice() -> None:
    """The check finds offsets that were used twice. This happens if a crash loses messages that were served before they
    were durable. The messages that reuse their offsets are then never read.
    """
    known = topics(acknowledged=0)
    one, _ = known
    for number in (1, 3):
        one.acknowledge(number)
    assert verdict(rows((one, 1), (one, 2)), known).broken == {"lost": 1}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"payload": b"{}"}, {"invented": 1, "lost": 1}),
        ({"message_id": "d/1/0:13"}, {"invented": 1, "lost": 1}),
        ({"topic": "d/1/0"}, {"invented": 1, "lost": 1}),
        ({"partition": 9}, {"invented": 1, "lost": 1}),
        ({"offset": 99}, {"reordered": 1}),
    ],
)
def test_a_row_that_is_not_as_it_was_sent(change: dict[str, object], broken: object) -> None:
    known = topics()
    table = rows(*every(known))
    table[0] = table[0]._replace(**change)  # type: ignore[arg-type]
    found = verdict(table, known)
    assert found.broken == broken
    assert found.examples


def test_offsets_that_are_missing_and_messages_of_another_table() -> None:
    known = topics()
    table = [row for row in rows(*every(known)) if row.message_id != "d/0/0:5"]
    partition = by_name("d/0/0", PARTITIONS)
    found = judge("table", table, known, PARTITIONS, ends={partition: 12})
    assert found.broken == {"lost": 1, "gaps": 1}
    table = rows(*every(known))
    assert judge("silver", table, known, PARTITIONS, belongs=Topic.good).broken == {"invented": 2}
    good = [row for row in table if not row.payload.startswith(b"ERR")]
    assert judge("silver", good, known, PARTITIONS, belongs=Topic.good).broken == {}


def test_a_summary_names_what_is_broken() -> None:
    told = Summary(1, verdicts=[Verdict("bronze", lost=2, examples=["x"]), Verdict("silver")])
    assert told.broken == ["bronze: {'lost': 2} ['x']"]
    assert Summary(1, sessions_lost=1).broken
    assert "2 lost" in told.text()


@pytest.mark.parametrize("kills", [4, 5, 6, 9, 40])
def test_each_is_killed_and_the_driver_at_the_end(kills: int) -> None:
    for seed in range(20):
        count = Counter([*victims(Random(seed), kills), "driver"])
        assert count.total() == kills
        assert set(count) == set(VICTIMS)
        assert max(count.values()) - min(count.values()) <= 2
