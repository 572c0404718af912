"""Test a run's result: verdict, failures, warnings and reports."""

import json
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hookmq_bench.control import Point, Watched
from hookmq_bench.outcome import Account, Connects, FlowSum, Mark
from hookmq_bench.page import page
from hookmq_bench.plan import SECOND, Limits, Plan
from hookmq_bench.result import Result, conclude, to_json
from hookmq_bench.tally import Tally
from hookmq_bench.text import duration, table
from unwired import vary

FANIN = vary(scenario="fanin", publishers=1, subscribers=1, warm_up=0.0)
NO_LIMITS = Limits()


def points() -> list[Point]:
    return [
        Point(number / 2, number * 50, number * 50, number * 50, 0, 2, 3, 0, 1000, 2000, 0)
        for number in range(1, 20)
    ]


def account(plan: Plan, sent: int = 1000, received: int = 1000, **more: int) -> Account:
    """Return the account of a process that ran for ten seconds."""
    tally = Tally(
        sent=sent, acked=sent if plan.qos else 0, received=received + more.get("duplicates", 0)
    )
    for number in range(received):
        tally.latency.add(1_000_000 + number)
        tally.acknowledged.add(500_000)
    flow = FlowSum(1, received, 0, more.get("duplicates", 0), more.get("reordered", 0), sent)
    return Account(
        tally,
        Mark(0, 0),
        Mark(10 * SECOND, more.get("cpu", SECOND), sent, tally.acked, tally.received),
        {0: sent},
        {0: more.get("unacked", 0)},
        {plan.key(0): flow},
    )


def result(plan: Plan, *accounts: Account, limits: Limits = NO_LIMITS) -> Result:
    watched = Watched([*accounts], points())
    return conclude(plan, watched, "2026-11-20T12:00:00+00:00", limits)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_run_without_fault(qos: int) -> None:
    plan = replace(FANIN, qos=qos)
    found = result(plan, account(plan), limits=Limits(True, 0.01, 0.01, 0.01, 99))
    assert (found.verdict, found.exit_code, found.lost) == ("valid", 0, 0)
    assert found.rates["received"] == 100.0
    assert found.cores == [0.1]
    assert not found.warnings
    assert "verdict     valid" in table(found)


def test_qos_0_may_lose() -> None:
    found = result(FANIN, account(FANIN, received=990))
    assert (found.verdict, found.exit_code, found.lost) == ("lossy", 0, 10)
    assert "QoS 0 may lose messages" in found.notes[0]
    assert result(FANIN, account(FANIN, received=990), limits=Limits(True)).exit_code == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledged_message_may_not_be_lost(qos: int) -> None:
    plan = replace(FANIN, qos=qos)
    found = result(plan, account(plan, received=990))
    assert (found.verdict, found.exit_code) == ("void", 1)
    assert "10 acknowledged messages never arrived" in found.faults[0]


def test_unacknowledged_messages_explain_the_loss() -> None:
    plan = replace(FANIN, qos=1)
    found = result(plan, account(plan, received=990, unacked=10))
    assert (found.verdict, found.unacked, found.faults) == ("lossy", 10, [])


def test_a_lost_connection_explains_losses() -> None:
    plan = replace(FANIN, qos=1)
    one = account(plan, received=990)
    one.tally.lost_connections["closed by the broker"] += 1
    found = result(plan, one)
    assert found.verdict == "lossy"
    assert "1 connections were lost: closed by the broker" in found.warnings
    assert not any("no publisher was left" in told for told in found.warnings)
    one.end.at = 4 * SECOND
    assert "ended after 4.0 s: no publisher was left" in result(plan, one).warnings


@pytest.mark.parametrize(
    ("qos", "told"), [(0, "QoS 0 sends once"), (1, "after a reconnect"), (2, "QoS 2 delivers once")]
)
def test_duplicates_are_never_explained(qos: int, told: str) -> None:
    plan = replace(FANIN, qos=qos)
    found = result(plan, account(plan, duplicates=3))
    assert found.verdict == "void"
    assert told in found.faults[0]


def test_order() -> None:
    assert "out of order" in result(FANIN, account(FANIN, reordered=1)).faults[0]
    shared = replace(FANIN, shared=True)
    assert result(shared, account(shared, reordered=1)).verdict == "valid"


def test_impossible_counts_are_reported_as_faults() -> None:
    plan = replace(FANIN, qos=1)
    one = account(plan)
    one.flows[plan.key(0)].highest = 1005
    one.tally.wrong_qos, one.tally.stray_acks = 2, 3
    told = " ".join(result(plan, one).faults)
    assert "5 messages arrived that were never sent" in told
    assert "2 messages arrived at another QoS" in told
    assert "3 packets that belong to no message of this run" in told
    assert result(FANIN, account(FANIN, received=0)).faults == ["no message arrived"]


def test_a_refusal_is_told_and_no_loss() -> None:
    plan = replace(FANIN, qos=1)
    one = account(plan, received=990)
    one.tally.refused["quota exceeded (0x97)"] = 10
    found = result(plan, one)
    assert (found.lost, found.verdict) == (0, "valid")
    assert "10 messages were refused: quota exceeded (0x97)" in found.warnings


def test_the_processes_are_added_up() -> None:
    plan = replace(FANIN, publishers=2, processes=2)
    first, second = account(plan), account(plan)
    second.sent = {1: 1000}
    second.flows = {plan.key(1): FlowSum(1, 995, 5, 0, 0, 1000)}
    found = result(plan, first, second)
    assert (found.sent, found.expected, found.lost) == (2000, 2000, 5)
    assert found.rates["received"] == 200.0
    assert found.latency.count == 2000


def test_a_busy_generator_warns() -> None:
    found = result(FANIN, account(FANIN, cpu=9 * SECOND))
    assert "the generator is the limit, not the broker" in found.warnings[0]
    assert "--processes 2" in found.warnings[0]


def test_a_rate_that_was_not_kept_warns() -> None:
    plan = replace(FANIN, rate=150.0)
    one = account(plan)
    one.unsent = 500
    one.tally.lag.add(5_000_000)
    told = " ".join(result(plan, one).warnings)
    assert "only 100 of 150 messages a second were sent; 500 due messages were never sent" in told
    assert "the generator itself was late by 5.0 ms" in told
    slow = account(FANIN)
    slow.end.received = 100
    told = " ".join(result(replace(FANIN, rate=100.0), slow).warnings)
    assert "the broker did not keep up: 10 of 100 messages a second arrived" in told


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (Limits(p50=0.001), "p50 is 1 ms, above 1 ms (--max-p50)"),
        (Limits(p99=0.0005), "p99 is 1 ms, above 0.5 ms (--max-p99)"),
        (Limits(p999=0.0005), "--max-p999"),
        (Limits(rate=101), "100 a second, below 101 (--min-rate)"),
    ],
)
def test_limits_that_are_broken(limits: Limits, told: str) -> None:
    found = result(FANIN, account(FANIN), limits=limits)
    assert told in found.failures[0]
    assert (found.exit_code, found.verdict) == (1, "valid")


def test_a_limit_without_latencies_is_broken() -> None:
    plan = replace(FANIN, scenario="pub", subscribers=0)
    one = account(plan, received=0)
    one.flows = {}
    assert result(plan, one, limits=Limits(p99=1)).failures == [
        "no latency was measured (--max-p99)"
    ]


def test_a_count_is_measured_until_the_last_message() -> None:
    plan = replace(FANIN, count=1000, duration=0.0)
    one = account(plan)
    one.tally.latest, one.offset = 5 * SECOND + 7, 7
    found = result(plan, one)
    assert (found.seconds, found.rates["received"]) == (5.0, 200.0)


def churned(**more: int) -> Account:
    tally = Tally()
    tally.connected.add(3_000_000)
    counts = Connects(50, 20, more.get("failed", 0), 10, more.get("came", 10), [SECOND])
    return Account(tally, Mark(0, 0), Mark(10 * SECOND, 0, connects=50), connections=counts)


def test_wills_are_counted() -> None:
    plan = vary(
        scenario="churn", publishers=0, subscribers=0, clients=5, target={"clean_start": False}
    )
    assert result(plan, churned()).verdict == "valid"
    assert result(plan, churned(came=8), limits=Limits(True)).exit_code == 1
    assert "1 more wills arrived than were due" in result(plan, churned(came=11)).faults[0]
    text = table(result(plan, churned()))
    assert "found session" in text
    assert "1 storms of 5: all connected again within 1.00 s" in text


def test_connections_that_fail_or_are_lost_are_in_the_verdict() -> None:
    plan = vary(scenario="connect", publishers=0, subscribers=0, clients=5)
    failed = result(plan, churned(failed=2))
    assert (failed.verdict, failed.exit_code) == ("lossy", 0)
    gone = churned()
    gone.tally.lost_connections["closed by the broker"] = 1
    assert result(plan, gone).verdict == "lossy"
    none = churned(failed=50)
    assert none.connections is not None
    none.connections.opened = 0
    found = result(plan, none)
    assert (found.verdict, found.exit_code) == ("void", 1)
    assert found.faults == ["no connection was accepted"]


@pytest.mark.parametrize("version", [4, 5])
def test_all_forms_of_a_result(version: int) -> None:
    nasty = "<script>alert('&')</script>"
    plan = replace(vary(version), topic=nasty, scenario="fanin", publishers=1, subscribers=1, qos=1)
    one = account(plan, received=990)
    one.tally.lost_connections[nasty] = 1
    one.tally.connected.add(1)
    found = result(plan, one)
    text = page(found, "1.0")
    assert "<script" not in text
    assert "http" not in text.replace("<!doctype html>", "")
    assert "&lt;script&gt;" in text
    ElementTree.fromstring(text.partition("\n")[2].replace('<meta charset="utf-8">', "").replace(
        '<meta name="viewport" content="width=device-width,initial-scale=1">', ""
    ))  # fmt: skip
    assert text.count("<svg") == 5
    told = json.loads(json.dumps(to_json(found, "1.0")))
    assert told["verdict"] == found.verdict
    assert told["latency"]["p50"] == found.latency.percentile(50)
    assert sum(times for _, _, times in told["latency"]["buckets"]) == 990
    assert nasty in table(found)


def test_a_page_of_connections_and_one_of_nothing() -> None:
    plan = vary(scenario="churn", publishers=0, subscribers=0, clients=5)
    assert page(result(plan, churned(failed=2)), "1").count("<svg") == 5
    empty = Watched([Account(Tally(), Mark(0, 0), Mark(SECOND, 0))], [])
    text = page(conclude(FANIN, empty, "", NO_LIMITS), "1")
    assert "No latency was measured" in text


@pytest.mark.parametrize(
    ("nanoseconds", "told"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 us"), (25_000_000, "25.0 ms"), (3.2e11, "320 s")],
)
def test_durations(nanoseconds: float, told: str) -> None:
    assert duration(nanoseconds) == told


def test_refusals_of_connections_are_told_by_reason() -> None:
    plan = vary(scenario="connect", publishers=0, subscribers=0, clients=5)
    one = churned(failed=2)
    one.tally.refused = Counter({"refused: not authorized (0x87)": 2})
    assert "2 connections failed: refused: not authorized (0x87)" in result(plan, one).warnings
