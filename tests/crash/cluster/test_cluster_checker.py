"""Test the checker on small histories: correct ones, and one for each kind of violation."""

from collections.abc import Iterable

import pytest
from clusterkill.checker import check
from clusterkill.history import FAULTS, Event
from clusterkill.recovery import percentile, recovery_times

SUBSCRIBED = ("s invoke subscribe d/# durable", "s ok subscribe d/# durable")


def events(*lines: str) -> list[Event]:
    """Return the events in lines of CLIENT TYPE ACTION [TOPIC [NUMBER [QOS [PART]]]] [DETAIL], one each second."""
    found = []
    for at, line in enumerate(lines):
        client, kind, action, *more = line.split()
        topic = more.pop(0) if more else ""
        numbers = [int(more.pop(0)) for _ in range(3) if more and more[0].isdigit()]
        number, qos, part = [*numbers, 0, 0, 0][:3]
        detail = more[0] if more else ""
        found.append(Event(at, client, kind, action, topic, number, qos, part, detail))  # type: ignore[arg-type]
    return found


def sent(numbers: Iterable[int], qos: int = 2, topic: str = "d/1") -> list[str]:
    """Return the lines of acknowledged messages."""
    lines = []
    for number in numbers:
        lines.append(f"p invoke publish {topic} {number} {qos}")
        lines.append(f"p ok publish {topic} {number} {qos}")
    return lines


def received(*numbers: int, client: str = "s", topic: str = "d/1") -> list[str]:
    """Return the lines of received messages."""
    return [f"{client} ok receive {topic} {number}" for number in numbers]


def findings(*lines: str) -> dict[str, int]:
    """Return the findings in a history."""
    return dict(check(events(*lines)).findings)


def test_a_correct_history_has_no_findings() -> None:
    verdict = check(events(*SUBSCRIBED, *sent([1, 2, 3]), *received(1, 2, 3)))
    assert verdict.ok
    assert not verdict.lines()
    assert verdict.counts["acknowledged"] == 3
    assert verdict.counts["due"] == 3
    assert verdict.counts["delivered"] == 3


def test_an_acknowledged_message_that_does_not_arrive_is_lost() -> None:
    verdict = check(events(*SUBSCRIBED, *sent([1, 2, 3]), *received(1, 3)))
    assert verdict.findings == {"lost": 1}
    assert verdict.lines() == ["1 lost: d/1 2 QoS 2 to s"]


@pytest.mark.parametrize(
    "lines",
    [
        (*sent([1]), *SUBSCRIBED),
        ("s invoke subscribe d/# durable", "p invoke publish d/1 1 1", "p ok publish d/1 1 1",
         "s ok subscribe d/# durable"),
        ("s invoke subscribe d/# durable", *sent([1])),
        ("s invoke subscribe e/# durable", "s ok subscribe e/# durable", *sent([1])),
        (*SUBSCRIBED, *sent([1], qos=0)),
        (*SUBSCRIBED, "p invoke publish d/1 1 1", "p unknown publish d/1 1 1"),
        (*SUBSCRIBED, "p invoke publish d/1 1 1", "p fail publish d/1 1 1"),
    ],
)  # fmt: skip
def test_a_message_is_not_due_before_suback_nor_without_an_acknowledgement(
    lines: tuple[str, ...],
) -> None:
    verdict = check(events(*lines))
    assert verdict.ok
    assert verdict.counts["due"] == 0


def test_a_message_with_an_unknown_outcome_may_arrive() -> None:
    lines = (*SUBSCRIBED, "p invoke publish d/1 1 2", "p unknown publish d/1 1 2", *received(1))
    assert findings(*lines) == {}
    assert findings(*lines, *received(1)) == {"doubled": 1}


@pytest.mark.parametrize(("qos", "expected"), [(0, {"doubled": 1}), (1, {}), (2, {"doubled": 1})])
def test_only_qos_1_may_arrive_twice(qos: int, expected: dict[str, int]) -> None:
    verdict = check(events(*SUBSCRIBED, *sent([1], qos), *received(1, 1)))
    assert verdict.findings == expected
    assert verdict.counts["repeated"] == (qos == 1)


def test_a_first_delivery_after_a_later_message_is_reordered() -> None:
    assert findings(*SUBSCRIBED, *sent([1, 2, 3], 1), *received(1, 3, 2)) == {"reordered": 1}


def test_a_repetition_is_not_reordered() -> None:
    assert findings(*SUBSCRIBED, *sent([1, 2, 3], 1), *received(1, 2, 3, 2)) == {}


def test_a_message_from_before_suback_may_come_late() -> None:
    lines = (
        "p invoke publish d/1 1 1",
        *SUBSCRIBED,
        *sent([2], 1),
        *received(2, 1),
        "p ok publish d/1 1",
    )
    assert findings(*lines) == {}


def test_order_is_judged_for_each_topic_and_each_part() -> None:
    topics = [*sent([1, 2], 1, "d/1"), *sent([1, 2], 1, "d/2")]
    mixed = [*received(2, topic="d/2"), *received(1, 2), *received(1, topic="d/2")]
    assert findings(*SUBSCRIBED, *topics, *mixed) == {"reordered": 1}
    parts = ("p invoke publish d/1 1 1 0", "p unknown publish d/1 1", "p invoke publish d/1 2 1 1",
             "p ok publish d/1 2")  # fmt: skip
    assert findings(*SUBSCRIBED, *parts, *received(2, 1)) == {}


def test_a_message_that_nobody_sent_is_invented() -> None:
    assert findings(*SUBSCRIBED, *received(7)) == {"invented": 1}
    assert findings(*SUBSCRIBED, *received(1), *sent([1])) == {"invented": 1, "lost": 1}
    assert findings(*sent([1]), *received(1)) == {"invented": 1}


def test_qos_2_messages_that_a_volatile_session_misses_are_counted() -> None:
    lines = ["v invoke subscribe d/# volatile", "v ok subscribe d/# volatile", *sent([1], 2)]
    verdict = check(events(*lines))
    assert verdict.findings == {}
    assert verdict.counts["lost, volatile"] == 1


def test_a_volatile_session_counts_while_its_connection_is_open() -> None:
    lines = ["v invoke subscribe d/# volatile", "v ok subscribe d/# volatile", *sent([1], 1)]
    assert findings(*lines) == {"lost": 1}
    assert findings(*lines, "v ok close") == {}
    again = [*lines, *received(1, client="v"), "v ok close", *lines[:2], *received(1, client="v")]
    assert findings(*again) == {}


def test_the_members_of_a_group_count_together() -> None:
    lines = []
    for member in "ab":
        lines.append(f"{member} invoke subscribe $share/g/d/# durable")
        lines.append(f"{member} ok subscribe $share/g/d/# durable")
    lines += sent([1, 2])
    halves = [*received(2, client="a"), *received(1, client="b")]
    assert findings(*lines, *halves) == {}
    assert findings(*lines, *halves[:1]) == {"lost": 1}
    assert findings(*lines, *halves, *received(2, client="b")) == {"doubled": 1}


def test_wills() -> None:
    lines = ["s invoke subscribe w/# durable", "s ok subscribe w/# durable", "c invoke will w/1"]
    arrived = received(1, topic="w/1")
    assert findings(*lines) == {}
    assert findings(*lines, *arrived) == {}
    assert findings(*lines, "c ok will w/1") == {"will lost": 1}
    assert findings(*lines, "c ok will w/1", *arrived) == {}
    assert findings(*lines, "c ok will w/1", *arrived, *arrived) == {"will doubled": 1}
    assert findings(*lines, "c fail will w/1") == {}
    assert findings(*lines, "c fail will w/1", *arrived) == {"will wrong": 1}


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ((3, 3), {}),
        ((2, 2), {}),
        ((0, 0), {}),
        ((1, 1), {"retained wrong": 2}),
        ((5, 5), {"retained wrong": 2}),
        ((2, 3), {"retained differs": 1}),
    ],
)
def test_retained_messages(reads: tuple[int, int], expected: dict[str, int]) -> None:
    # Message 2 is the last acknowledged one. Message 3 may have been accepted, and message 4 clears the topic.
    lines = [*sent([1, 2], 1, "r/1")]
    for number, detail in ((3, ""), (4, "clear")):
        lines.append(f"p invoke publish r/1 {number} 1 {detail}")
        lines.append(f"p unknown publish r/1 {number} 1")
    lines += [f"c ok read r/1 {number} {node}" for number, node in zip(reads, "ab", strict=True)]
    assert findings(*lines) == expected


def test_a_topic_without_acknowledged_messages_may_have_no_retained_message() -> None:
    assert findings("c ok read r/1 0 a") == {}
    assert findings("c ok read r/1 1 a") == {"retained wrong": 1}


def test_a_durable_session_must_be_found_again() -> None:
    events_of = [Event(at, "s", "ok", "connect", detail=detail) for at, detail in enumerate(
        ("new", "resumed", "new"))]  # fmt: skip
    assert check(events_of[:2]).ok
    assert check(events_of).findings == {"session lost": 1}
    clean = [Event(at, "v", "ok", "connect", detail="clean") for at in range(2)]
    assert check(clean).ok


def test_a_message_without_an_outcome_is_stuck() -> None:
    assert findings("p invoke publish d/1 1 1") == {"stuck": 1}


def faulty(*others: Event) -> list[Event]:
    """Return a history with a killed broker, and `others` in it."""
    lines = [
        Event(0.0, "p", "invoke", "publish", "d/1", 1, 1),
        Event(1.0, FAULTS, "invoke", "fault", "1", detail="kill broker"),
        Event(1.1, "p", "ok", "publish", "d/1", 1, 1),
        Event(1.2, "p", "invoke", "publish", "d/1", 2, 1),
        Event(1.3, "q", "invoke", "publish", "d/2", 1, 0),
        Event(2.0, FAULTS, "ok", "fault", "1", detail="kill broker"),
        Event(4.0, "p", "ok", "publish", "d/1", 2, 1),
        Event(4.1, "p", "invoke", "publish", "d/1", 3, 1),
        Event(9.0, "p", "ok", "publish", "d/1", 3, 1),
        *others,
    ]
    return sorted(lines, key=lambda event: event.at)


def test_recovery_is_the_time_to_the_first_acknowledgement_of_a_later_message() -> None:
    assert recovery_times(faulty()) == {"kill broker": [3.0]}


@pytest.mark.parametrize(("start", "end", "counts"), [
    (0.5, 0.9, True), (0.5, 1.05, False), (3.0, 3.5, False), (3.0, 9.5, False), (5.0, 6.0, True),
])  # fmt: skip
def test_recovery_is_not_measured_with_another_fault_in_between(
    start: float, end: float, counts: bool
) -> None:
    history = faulty(
        Event(start, FAULTS, "invoke", "fault", "2", detail="other"),
        Event(end, FAULTS, "ok", "fault", "2", detail="other"),
    )
    assert recovery_times(history)["kill broker"] == ([3.0] if counts else [])


def test_percentiles() -> None:
    times = [float(one) for one in range(100, 0, -1)]
    assert percentile(times, 0.5) == 50
    assert percentile(times, 0.99) == 99
    assert percentile([7.0], 0.5) == 7
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3
