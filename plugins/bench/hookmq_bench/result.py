"""Turn the processes' accounts into figures, a verdict and a list of exceeded limits. No I/O."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from hookmq_bench.control import Point, Watched
from hookmq_bench.histogram import Histogram, lower, upper
from hookmq_bench.outcome import Account, Connects, FlowSum
from hookmq_bench.plan import NAMES, SECOND, Limits, Plan

BUSY: Final = 0.8
"""The share of a core above which the generator itself may be the bottleneck."""
SUSTAINED: Final = 0.98
LATE: Final = 1_000_000
"""The report shows a warning if the generator's own p99 delay is above this, in nanoseconds."""
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}


@dataclass(slots=True)
class Result:
    """A run's result.

    `verdict` is "valid", "lossy" or "void". In a lossy run, messages are missing for a known reason. `connect` and
    `churn` runs are also lossy if connections failed or were lost. In a void run, something happened that must never
    happen, so its figures mean nothing. `faults` gives the reasons. `failures` lists the limits that were exceeded.
    """

    plan: Plan
    started: str
    points: list[Point]
    interrupted: bool
    seconds: float = 0.0
    sent: int = 0
    acked: int = 0
    received: int = 0
    expected: int = 0
    lost: int = 0
    unacked: int = 0
    duplicates: int = 0
    reordered: int = 0
    connects: int = 0
    rates: dict[str, float] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    acknowledged: Histogram = field(default_factory=Histogram)
    connected: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)
    cores: list[float] = field(default_factory=list)
    refused: "Counter[str]" = field(default_factory=Counter)
    lost_connections: "Counter[str]" = field(default_factory=Counter)
    connections: Connects | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Whether the figures can be trusted: "valid", "lossy" or "void"."""
        if self.faults:
            return "void"
        counts = self.connections
        broken = counts is not None and (counts.failed or self.lost_connections.total())
        return "lossy" if self.lost or self.unacked or broken else "valid"

    @property
    def main(self) -> Histogram:
        """The latencies that matter most for the scenario."""
        if self.plan.kind.connects:
            return self.connected
        return self.latency if self.plan.subscribers else self.acknowledged

    @property
    def exit_code(self) -> int:
        """1 if the run is void or exceeded a limit, else 0."""
        return 1 if self.faults or self.failures else 0


def conclude(plan: Plan, watched: Watched, started: str, limits: Limits) -> Result:
    """Compute the result from a run's raw outcome. `started` is when the run began."""
    result = Result(plan, started, watched.points, watched.interrupted)
    accounts = watched.accounts
    for account in accounts:
        tally = account.tally
        result.latency.merge(tally.latency)
        result.acknowledged.merge(tally.acknowledged)
        result.connected.merge(tally.connected)
        result.lag.merge(tally.lag)
        result.refused.update(tally.refused)
        result.lost_connections.update(tally.lost_connections)
        result.sent += tally.sent
        result.acked += tally.acked
        result.received += tally.received
        wall = max(1, account.end.at - account.begin.at)
        result.cores.append((account.end.cpu - account.begin.cpu) / wall)
    _measure(plan, accounts, result)
    if plan.kind.connects:
        _count_connections(accounts, result)
    else:
        _count_messages(plan, accounts, result)
        _judge_messages(plan, accounts, result)
    _warn(plan, accounts, result)
    if watched.stood_still:
        option = "--drain" if plan.native else "--timeout"
        seconds = f"{watched.stood_still:g} s"
        result.warnings.append(f"ended early: no progress for {seconds} ({option})")
    _check(limits, result)
    return result


def _measure(plan: Plan, accounts: list[Account], result: Result) -> None:
    """Compute the rates over the measured time. If the run ended because it reached a count, the measured time ends
    with the last arrival.
    """
    names = ["connects"] if plan.kind.connects else ["sent", "acked", "received"]
    if plan.count and not plan.kind.connects:
        begin = min(one.begin.at for one in accounts)
        offset_free = max(_latest(one) for one in accounts)
        seconds = max(offset_free - begin, 1) / SECOND
        result.seconds = seconds
        for name in names:
            total = sum(getattr(one.tally, name) - getattr(one.begin, name) for one in accounts)
            result.rates[name] = total / seconds
        return
    result.seconds = max(one.end.at - one.begin.at for one in accounts) / SECOND
    for name in names:
        result.rates[name] = sum(
            (getattr(one.end, name) - getattr(one.begin, name))
            / (max(1, one.end.at - one.begin.at) / SECOND)
            for one in accounts
        )


def _latest(account: Account) -> int:
    """Return the monotonic time when the last message or acknowledgement arrived."""
    tally = account.tally
    return max(tally.latest - account.offset if tally.latest else 0, account.begin.at)


def _count_connections(accounts: list[Account], result: Result) -> None:
    total = Connects()
    for account in accounts:
        one = account.connections or Connects()
        total.opened += one.opened
        total.resumed += one.resumed
        total.failed += one.failed
        total.wills_due += one.wills_due
        total.wills_came += one.wills_came
        total.storms = [max(pair) for pair in _longest(total.storms, one.storms)]
    result.connections = total
    result.connects = total.opened
    result.expected = total.wills_due
    result.received = total.wills_came
    result.lost = total.wills_due - total.wills_came
    if total.failed and not total.opened:
        result.faults.append("no connection was accepted")
    if result.lost < 0:
        result.faults.append(f"{-result.lost:,} more wills arrived than were due")
    for account in accounts:
        result.duplicates += sum(one.duplicates for one in account.flows.values())


def _longest(some: list[int], others: list[int]) -> list[tuple[int, int]]:
    size = max(len(some), len(others))
    return list(
        zip(some + [0] * (size - len(some)), others + [0] * (size - len(others)), strict=True)
    )


def _count_messages(plan: Plan, accounts: list[Account], result: Result) -> None:
    """Count lost, duplicated and reordered messages, flow by flow."""
    flows: dict[int, FlowSum] = {}
    sent: dict[int, int] = {}
    for account in accounts:
        sent.update({plan.key(number): count for number, count in account.sent.items()})
        result.unacked += sum(account.unacked.values())
        for key, one in account.flows.items():
            total = flows.setdefault(key, FlowSum())
            total.flows += one.flows
            total.received += one.received
            total.missing += one.missing
            total.highest = max(total.highest, one.highest)
            result.duplicates += one.duplicates
            result.reordered += one.reordered
    if plan.publishers and plan.subscribers:
        result.expected = result.lost = result.sent * plan.copies
    never = 0
    for key, flow in flows.items():
        if not plan.publishers:
            # If others publish, only skipped message numbers are known to be lost.
            result.lost += flow.missing
            result.expected += flow.received + flow.missing
            continue
        result.lost -= flow.received
        never += max(0, flow.highest - sent.get(key, 0))
    refused = sum(result.refused.values())
    unmatched = sum(account.tally.unmatched for account in accounts)
    if plan.subscribers and plan.publishers:
        result.lost = max(0, result.lost - refused * plan.copies)
    if never:
        result.faults.append(f"{never:,} messages arrived that were never sent")
    if unmatched and plan.subscribers:
        result.faults.append(
            f"the broker reported no matching subscriber for {unmatched:,} messages (0x10)"
        )


def _judge_messages(plan: Plan, accounts: list[Account], result: Result) -> None:
    """Record everything that happened but should not have."""
    faults = result.faults
    qos = min([plan.qos, *(one.granted for one in accounts)])
    whole = not result.lost_connections
    if result.duplicates:
        why = {
            0: "QoS 0 sends once",
            1: "QoS 1 resends only after a reconnect",
            2: "QoS 2 delivers once",
        }[qos]
        faults.append(f"{result.duplicates:,} duplicates: {why}")
    if result.reordered and not plan.shared:
        faults.append(f"{result.reordered:,} messages out of order, on one topic at one QoS")
    lost = result.lost - result.unacked * plan.copies
    if plan.publishers and qos and lost > 0 and whole:
        faults.append(
            f"{lost:,} acknowledged messages never arrived, though no connection was lost"
        )
    wrong = sum(one.tally.wrong_qos for one in accounts)
    if wrong:
        faults.append(f"{wrong:,} messages arrived at another QoS than {qos}")
    stray = sum(one.tally.stray_acks for one in accounts)
    if stray:
        faults.append(f"{stray:,} packets that belong to no message of this run")
    if plan.publishers and plan.subscribers and not result.received:
        faults.append("no message arrived")
    if result.lost and not faults:
        if not qos:
            why = "QoS 0 may lose messages"
        elif not whole:
            why = "connections were lost"
        else:
            why = "they were never acknowledged" if result.unacked else "the reason is unknown"
        result.notes.append(f"{result.lost:,} messages were lost: {why}")


def _warn(plan: Plan, accounts: list[Account], result: Result) -> None:
    warnings, notes = result.warnings, result.notes
    for index, share in enumerate(result.cores, 1):
        if share > BUSY:
            more = "" if plan.native else f"; try --processes {plan.processes * 2}"
            warnings.append(
                f"the generator is the limit, not the broker: its process {index} used {share:.0%} of a core{more}"
            )
    if plan.rate:
        asked = plan.rate
        if plan.count == 0 and result.rates["sent"] < asked * SUSTAINED and not plan.ramp_up:
            unsent = sum(one.unsent for one in accounts)
            warnings.append(
                f"only {result.rates['sent']:,.0f} of {asked:,.0f} messages a second were sent;"
                f" {unsent:,} due messages were never sent, and are in no latency"
            )
        due = result.rates["sent"] * plan.copies
        if plan.subscribers and result.rates["received"] < due * SUSTAINED and not plan.count:
            warnings.append(
                f"the broker did not keep up: {result.rates['received']:,.0f} of {due:,.0f} messages a second arrived"
            )
        late = result.lag.percentile(99)
        if late > LATE:
            warnings.append(
                f"the generator itself was late by {late / 1e6:.1f} ms (p99); the latencies include that"
            )
        if not all(one.precise for one in accounts):
            notes.append(
                "no precise timers on this system: latencies include up to 1 ms of the generator"
            )
    for reason, count in result.lost_connections.most_common(5):
        warnings.append(f"{count:,} connections were lost: {reason}")
    for reason, count in result.refused.most_common(5):
        what = "connections failed" if plan.kind.connects else "messages were refused"
        warnings.append(f"{count:,} {what}: {reason}")
    short = plan.duration and result.seconds < plan.duration * 0.9
    if short and result.lost_connections and plan.publishers:
        warnings.append(f"ended after {result.seconds:.1f} s: no publisher was left")
    stalls = sum(one.tally.stalls for one in accounts)
    if stalls:
        warnings.append(
            f"publishers stalled {stalls:,} times for one second, waiting for messages that never arrived"
        )
    granted = min(one.granted for one in accounts)
    if granted < plan.qos:
        notes.append(f"the broker granted only QoS {granted}")
    receive_maximum = min(one.receive_maximum for one in accounts)
    if plan.qos and plan.publishers and receive_maximum < (plan.window or 65_535):
        notes.append(f"the broker's Receive Maximum limits the window to {receive_maximum}")
    strangers = sum(one.tally.strangers for one in accounts)
    if strangers:
        notes.append(f"{strangers:,} messages of other runs arrived")
    if result.interrupted:
        notes.append("ended early by Ctrl-C")


def _check(limits: Limits, result: Result) -> None:
    failures = result.failures
    failed = result.connections.failed if result.connections else 0
    losses = {
        "messages lost": result.lost,
        "unacknowledged": result.unacked,
        "connections lost": result.lost_connections.total(),
        "connects failed": failed,
    }
    if limits.fail_on_loss and any(losses.values()):
        told = ", ".join(f"{count:,} {what}" for what, count in losses.items() if count)
        failures.append(f"{told} (--fail-on-loss)")
    for name, percent, limit in (
        ("p50", 50.0, limits.p50), ("p99", 99.0, limits.p99), ("p999", 99.9, limits.p999),
    ):  # fmt: skip
        if limit is None:
            continue
        if not result.main.count:
            failures.append(f"no latency was measured (--max-{name})")
        elif result.main.percentile(percent) > limit * SECOND:
            found = result.main.percentile(percent) / 1e6
            failures.append(f"{name} is {found:.3g} ms, above {limit * 1e3:g} ms (--max-{name})")
    if limits.rate is not None and headline(result) < limits.rate:
        failures.append(f"{headline(result):,.0f} a second, below {limits.rate:,.0f} (--min-rate)")


def headline(result: Result) -> float:
    """Return the scenario's main rate: connections, received messages, or acknowledged messages (at QoS 0, sent
    messages).
    """
    rates = result.rates
    if result.plan.kind.connects:
        return rates["connects"]
    if result.plan.subscribers:
        return rates["received"]
    return rates["acked"] if result.plan.qos else rates["sent"]


def to_json(result: Result, version: str) -> dict[str, Any]:
    """Return the result as a JSON document, with times in seconds and latencies in nanoseconds."""
    plan, connections = result.plan, result.connections
    return {
        "format": 1,
        "hookmq_bench": version,
        "started": result.started,
        "scenario": plan.scenario,
        "target": plan.target.address,
        "protocol": NAMES[plan.target.version],
        "load": {
            "publishers": plan.publishers,
            "subscribers": plan.subscribers,
            "clients": plan.clients,
            "processes": plan.processes,
            "rate": plan.rate,
            "window": plan.window,
            "qos": plan.qos,
            "payload": plan.size,
            "topic": plan.topic,
            "retain": plan.retain,
            "shared": plan.shared,
            "duration": plan.duration,
            "count": plan.count,
            "warm_up": plan.warm_up,
            "ramp_up": plan.ramp_up,
            "connect_rate": plan.connect_rate,
            "storm": plan.storm,
            "abrupt": plan.abrupt,
            "clean": plan.target.clean_start,
            "tls": plan.target.tls,
            "websocket": plan.target.websocket,
        },
        "verdict": result.verdict,
        "faults": result.faults,
        "failures": result.failures,
        "warnings": result.warnings,
        "notes": result.notes,
        "seconds": result.seconds,
        "sent": result.sent,
        "acked": result.acked,
        "received": result.received,
        "expected": result.expected,
        "lost": result.lost,
        "unacked": result.unacked,
        "duplicates": result.duplicates,
        "reordered": result.reordered,
        "rates": result.rates,
        "coordinated_omission": "corrected" if plan.rate else "no fixed rate",
        "latency": _histogram(result.latency),
        "acknowledged": _histogram(result.acknowledged),
        "connected": _histogram(result.connected),
        "generator": {
            "engine": "native" if plan.native else "asyncio",
            "cores": result.cores,
            "late": _histogram(result.lag),
        },
        "refused": dict(result.refused),
        "lost_connections": dict(result.lost_connections),
        "connections": None
        if connections is None
        else {
            "opened": connections.opened,
            "resumed": connections.resumed,
            "failed": connections.failed,
            "wills_due": connections.wills_due,
            "wills_came": connections.wills_came,
            "storms": connections.storms,
        },
        "series": [point._asdict() for point in result.points],
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    found: dict[str, Any] = {
        "count": histogram.count,
        "mean": round(histogram.mean),
        "max": histogram.largest,
    }
    for name, percent in PERCENTILES.items():
        found[name] = histogram.percentile(percent)
    found["buckets"] = [
        [lower(number), upper(number), times] for number, times in histogram.sparse().items()
    ]
    return found
