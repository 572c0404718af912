"""Summarize raw runs as medians and ratios, and format them as a table and as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

from hookmq_bench import native

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .scenarios import Scenario

BASELINE = "mosquitto"
BUSY = 0.8
WAITED = 0.1

RIVAL = "nats"
"""The broker that HookMQ should beat in every throughput row."""

PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99_9": 99.9}


@dataclasses.dataclass(slots=True)
class Run:
    """One run of one scenario against one broker: the generator's counts, or the error.

    If the broker does not support the load, `left_out` gives the reason. That is not a defect.
    """

    scenario: Scenario
    broker: str
    raw: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""
    left_out: str = ""

    def defects(self) -> str:
        """Return why this run does not count, or an empty string if it does."""
        return self.error or native.defects(self.raw)

    def latency_us(self) -> dict[str, float]:
        """Return latency percentiles in microseconds. The result is empty for loads without a fixed rate."""
        found = native.latencies(self.raw)
        if not found.count:
            return {}
        return {name: found.percentile(percent) / 1e3 for name, percent in PERCENTILES.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the run's counts for the results file, with percentiles instead of the histogram."""
        raw = {key: value for key, value in self.raw.items() if key != "latency"}
        latency = self.latency_us()
        return raw | ({"latency_us": latency} if latency else {}) or {"error": self.error}

    def figures(self) -> dict[str, float]:
        """Return the figures. The run must have no defects.

        `rate` is per second. `cost` is CPU time in microseconds, or memory in KiB for idle connections. `core` and
        `generator` are fractions of a core. `store` is CPU microseconds per message stored for later. Latencies are in
        microseconds.
        """
        raw = self.raw
        seconds = raw["elapsed_ns"] / 1e9
        figures = {"core": raw["broker_cpu_ns"] / raw["elapsed_ns"]}
        if self.scenario.mode == "idle":
            figures["cost"] = (raw["rss_after_kib"] - raw["rss_before_kib"]) / raw["clients"]
            return figures
        count = raw["connects"] if self.scenario.mode == "connect" else raw["delivered"]
        figures["rate"] = count / seconds
        figures["cost"] = raw["broker_cpu_ns"] / 1e3 / max(1, count)
        figures["generator"] = raw["generator_share"]
        # The share of the time during which other work occupied one of the two cores.
        waits = (raw.get("broker_wait_ns", 0), raw.get("generator_wait_ns", 0))
        figures["waited"] = max(waits) / raw["elapsed_ns"]
        if "stored" in raw:
            figures["store"] = raw["store_cpu_ns"] / 1e3 / raw["stored"]
        return figures | self.latency_us()


@dataclasses.dataclass(slots=True)
class Row:
    """All runs of one scenario against one broker, with medians, extremes, and ratios to mosquitto.

    A ratio above 1 is better than mosquitto, unless noted otherwise. Ratios are None if the other side was not measured:

        cost_ratio     mosquitto's cost divided by this row's cost
        rate_ratio     this row's rate divided by mosquitto's rate
        latency_ratio  this row's p50 divided by mosquitto's p50 (below 1 is better)
        rival_ratio    `RIVAL`'s cost divided by this row's cost
        own_ratio      this row's cost divided by the same broker's cost in the scenario that the goal names
        against        another checkout's cost divided by this row's cost, for the medians and for the lowest runs

    `build` is "compiled" or "pure" for this checkout's HookMQ, and empty for other brokers.
    """

    scenario: Scenario
    broker: str
    runs: list[Run]
    build: str = ""
    median: dict[str, float] = dataclasses.field(default_factory=dict)
    least: dict[str, float] = dataclasses.field(default_factory=dict)
    most: dict[str, float] = dataclasses.field(default_factory=dict)
    void: list[str] = dataclasses.field(default_factory=list)
    left_out: str = ""
    cost_ratio: float | None = None
    rate_ratio: float | None = None
    rival_ratio: float | None = None
    own_ratio: float | None = None
    latency_ratio: float | None = None
    against: tuple[float, float] | None = None

    def goal(self) -> str:
        """Return HookMQ's goal and whether the row meets it. Return '' for other brokers, and for scenarios without a
        goal.
        """
        goal = self.scenario.goal
        if goal is None or not self.build or self.left_out:
            return ""
        bar: float = getattr(goal, self.build)
        if goal.kib:
            value, unit, least = self.median.get("cost"), " KiB", False
        elif goal.relative_to:
            value, unit, least = self.own_ratio, f"x {goal.relative_to}", False
        else:
            value, unit, least = self.cost_ratio, "x", True
        if value is None and self.median:
            return ""  # the other side was not measured
        met = value is not None and (value >= bar if least else value <= bar)
        return f"{'>=' if least else '<='} {bar:g}{unit} {'met' if met else 'MISSED'}"

    def notes(self) -> str:
        """Return notes about the row: void runs, a busy generator, latencies."""
        notes = []
        if self.left_out:
            notes.append(f"left out: {self.left_out}")
        if self.void:
            notes.append(f"VOID {len(self.void)} of {len(self.runs)} runs: {'; '.join(self.void)}")
        window = min((run.raw.get("window", self.scenario.window) for run in self.runs), default=0)
        if self.scenario.mode == "closed" and window < self.scenario.window:
            notes.append(f"the broker's Receive Maximum cuts the window to {window}")
        if self.median.get("generator", 0) > BUSY and self.scenario.mode != "open":
            notes.append("generator-bound: read CPU, not rate")
        if self.median.get("waited", 0) > WAITED:
            notes.append(f"other work had a core for {self.median['waited']:.0%} of the time")
        if self.scenario.group == "throughput" and (self.rival_ratio or 1) < 1:
            notes.append(f"{1 / (self.rival_ratio or 1):.1f}x the cost of {RIVAL}")
        if "store" in self.median:
            notes.append(f"stored for {self.median['store']:.2f} us")
        if "p50" in self.median:
            if self.build and self.latency_ratio is not None:
                notes.append(f"p50 {self.latency_ratio:.2f}x mosquitto's")
            notes.append("p50 {p50:.0f} p99 {p99:.0f} p99.9 {p99_9:.0f} us".format(**self.median))
        return "; ".join(notes)


def summarise(
    runs: Iterable[Run],
    builds: Mapping[str, str] | None = None,
    earlier: Mapping[str, str] | None = None,
) -> list[Row]:
    """Return one row per scenario and broker, in the order of their first runs.

    `builds` maps each HookMQ peer to "compiled" or "pure". `earlier` maps peers to the same build in another checkout.
    """
    rows: dict[tuple[str, str], Row] = {}
    for run in runs:
        key = run.scenario.name, run.broker
        build = (builds or {}).get(run.broker, "")
        rows.setdefault(key, Row(run.scenario, run.broker, [], build)).runs.append(run)
    for row in rows.values():
        row.left_out = next((run.left_out for run in row.runs if run.left_out), "")
        if row.left_out:
            continue
        row.void = [defects for run in row.runs if (defects := run.defects())]
        good = [run.figures() for run in row.runs if not run.defects()]
        for name in good[0] if good else ():
            values = [figures[name] for figures in good]
            row.median[name] = statistics.median(values)
            row.least[name], row.most[name] = min(values), max(values)
    for row in rows.values():
        row.cost_ratio = _ratio(rows.get((row.scenario.name, BASELINE)), row)
        rate_too = row.cost_ratio and "rate" in row.median and row.scenario.mode != "open"
        if rate_too:
            row.rate_ratio = row.median["rate"] / rows[row.scenario.name, BASELINE].median["rate"]
        if row.cost_ratio and "p50" in row.median:
            base = rows[row.scenario.name, BASELINE].median
            row.latency_ratio = row.median["p50"] / base["p50"]
        if row.build:
            row.rival_ratio = _ratio(rows.get((row.scenario.name, RIVAL)), row)
        other = rows.get((row.scenario.name, (earlier or {}).get(row.broker, "")))
        ratio = _ratio(other, row)
        if other and ratio is not None:
            row.against = ratio, other.least["cost"] / row.least["cost"]
        if row.scenario.goal and row.scenario.goal.relative_to:
            row.own_ratio = _ratio(row, rows.get((row.scenario.goal.relative_to, row.broker)))
    ordered: dict[str, list[Row]] = {}
    for row in rows.values():
        ordered.setdefault(row.scenario.name, []).append(row)
    return [row for group in ordered.values() for row in group]


def _ratio(over: Row | None, under: Row | None) -> float | None:
    """Divide the cost in row `over` by the cost in row `under`. Return None unless both have a cost."""
    if over is None or under is None or not over.median or not under.median.get("cost"):
        return None
    return over.median["cost"] / under.median["cost"]


def number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    if value >= 1e4:
        return f"{value / 1e3:.0f}k"
    return f"{value:.0f}"


def _cells(row: Row) -> tuple[str, ...]:
    name = row.scenario.title
    if row.left_out:
        return (name, row.broker, "-", "", "-", "", "", "", "", "", "", "", row.notes())
    if not row.median:
        cells = (name, row.broker, "void", "", "void", "", "", "", "", "", "")
        return (*cells, row.goal(), row.notes())
    median, least, most = row.median, row.least, row.most
    several = len(row.runs) - len(row.void) > 1
    unit = "KiB/conn" if row.scenario.mode == "idle" else f"us/{row.scenario.unit[:7]}"
    rate = spread = generator = ""
    if "rate" in median:
        rate = number(median["rate"])
        spread = f"{number(least['rate'])}..{number(most['rate'])}" if several else ""
        generator = f"{median['generator']:.2f}{'!' if median['generator'] > BUSY else ''}"
    return (
        name,
        row.broker,
        rate,
        spread,
        f"{median['cost']:.2f} {unit}",
        f"{least['cost']:.2f}..{most['cost']:.2f}" if several else "",
        f"{row.cost_ratio:.2f}x" if row.cost_ratio is not None else "",
        f"{row.rate_ratio:.2f}x" if row.rate_ratio is not None else "",
        f"{row.against[0]:.3f}x, {row.against[1]:.3f}x" if row.against else "",
        f"{median['core']:.2f}",
        generator,
        row.goal(),
        row.notes(),
    )


HEADINGS = (
    "scenario",
    "broker",
    "per s",
    "spread",
    "broker's cost",
    "spread",
    "cost ratio",
    "rate ratio",
    "against",
    "core",
    "gen.",
    "goal",
    "notes",
)


def table(rows: Sequence[Row]) -> str:
    """Format the table with aligned columns. Empty columns are omitted."""
    lines = [HEADINGS, *(_cells(row) for row in rows)]
    used = [i for i in range(len(HEADINGS)) if any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in used}
    left = {0, 1, 11, 12}
    text = []
    for line in lines:
        cells = [line[i].ljust(widths[i]) if i in left else line[i].rjust(widths[i]) for i in used]
        text.append("  ".join(cells).rstrip())
    text.insert(1, "  ".join("-" * widths[i] for i in used))
    return "\n".join(text)


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows, with each run's counts, for the results file."""
    return [
        {
            "scenario": row.scenario.name,
            "load": dataclasses.asdict(row.scenario),
            "broker": row.broker,
            "median": row.median,
            "least": row.least,
            "most": row.most,
            "cost_ratio": row.cost_ratio,
            "rate_ratio": row.rate_ratio,
            "rival_ratio": row.rival_ratio,
            "own_ratio": row.own_ratio,
            "latency_ratio": row.latency_ratio,
            "against": row.against,
            "build": row.build,
            "goal": row.goal(),
            "left_out": row.left_out,
            "void": row.void,
            "runs": [run.to_json() for run in row.runs],
        }
        for row in rows
    ]
