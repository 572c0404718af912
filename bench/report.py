"""From raw runs to medians, ratios, a table and what a JSON file holds."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .scenarios import Scenario

BASELINE = "mosquitto"
BUSY = 0.8
WAITED = 0.1

RIVAL = "nats"
"""Whom HookMQ is to be ahead of in every row of throughput."""

# What makes a run void, in the generator's words, and how the table says it.
DEFECTS = {
    "lost": "lost",
    "duplicates": "duplicated",
    "reordered": "out of order",
    "stray": "not expected",
    "refused": "refused",
    "wrong_qos": "at another QoS",
    "unacknowledged": "never acknowledged",
}


@dataclasses.dataclass(slots=True)
class Run:
    """One run of one scenario against one broker: the generator's object, or why there is none.

    `left_out`: the broker cannot do that at all, which is nobody's defect.
    """

    scenario: Scenario
    broker: str
    raw: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""
    left_out: str = ""

    def defects(self) -> str:
        """Why this run does not count; empty when it does."""
        if self.error:
            return self.error
        found = [f"{self.raw[key]} {text}" for key, text in DEFECTS.items() if self.raw.get(key)]
        if self.raw.get("stalled"):
            found.append("stood still")
        if self.raw.get("not_sustained"):
            found.append("rate not sustained")
        if not found and self.raw.get("delivered") == 0:
            found.append("nothing delivered")
        return ", ".join(found)

    def figures(self) -> dict[str, float]:
        """`rate` per second, `cost` (CPU us per unit; KiB when idle), `core`, `generator`, latencies.

        `core` and `generator` are shares of one core; `store` is CPU us for each message that was stored for later.
        Only for a run without defects.
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
        # How much longer the interval was for other work that had one of the two cores.
        waits = (raw.get("broker_wait_ns", 0), raw.get("generator_wait_ns", 0))
        figures["waited"] = max(waits) / raw["elapsed_ns"]
        if "stored" in raw:
            figures["store"] = raw["store_cpu_ns"] / 1e3 / raw["stored"]
        for name in ("p50", "p99", "p99_9"):
            if "latency_us" in raw:
                figures[name] = raw["latency_us"][name]
        return figures


@dataclasses.dataclass(slots=True)
class Row:
    """All runs of one scenario against one broker: medians, extremes, and ratios to mosquitto.

    A ratio above 1 means better than mosquitto: `cost_ratio` is its cost divided by this one's,
    `rate_ratio` this rate divided by its. None without mosquitto in the same run. `beside` is this cost divided by that
    of the scenario that the goal names, by the same broker.
    `latency_ratio` is this p50 divided by mosquitto's. `build` is that of a HookMQ: compiled or pure.
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
    beside: float | None = None
    latency_ratio: float | None = None

    def goal(self) -> str:
        """The goal and whether HookMQ meets it, as text; empty for other brokers and without a goal."""
        goal = self.scenario.goal
        if goal is None or not self.build or self.left_out:
            return ""
        bar: float = getattr(goal, self.build)
        if goal.kib:
            value, unit, least = self.median.get("cost"), " KiB", False
        elif goal.beside:
            value, unit, least = self.beside, f"x {goal.beside}", False
        else:
            value, unit, least = self.cost_ratio, "x", True
        if value is None and self.median:
            return ""  # what it is compared with is not in this run
        met = value is not None and (value >= bar if least else value <= bar)
        return f"{'>=' if least else '<='} {bar:g}{unit} {'met' if met else 'MISSED'}"

    def notes(self) -> str:
        """What the reader must know of this row: void runs, a busy generator, latencies."""
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


def summarise(runs: Iterable[Run], builds: Mapping[str, str] | None = None) -> list[Row]:
    """One row for each scenario and broker, in the order of their first runs; `builds` says which peers are HookMQ, and
    compiled or pure."""
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
        if row.scenario.goal and row.scenario.goal.beside:
            row.beside = _ratio(row, rows.get((row.scenario.goal.beside, row.broker)))
    ordered: dict[str, list[Row]] = {}
    for row in rows.values():
        ordered.setdefault(row.scenario.name, []).append(row)
    return [row for group in ordered.values() for row in group]


def _ratio(over: Row | None, under: Row | None) -> float | None:
    """The cost of one row divided by that of another, where both have one."""
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
        return (name, row.broker, "-", "", "-", "", "", "", "", "", "", row.notes())
    if not row.median:
        return (name, row.broker, "void", "", "void", "", "", "", "", "", row.goal(), row.notes())
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
    "core",
    "gen.",
    "goal",
    "notes",
)


def table(rows: Sequence[Row]) -> str:
    """The table as text with aligned columns; columns that are empty throughout are left out."""
    lines = [HEADINGS, *(_cells(row) for row in rows)]
    used = [i for i in range(len(HEADINGS)) if any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in used}
    left = {0, 1, 10, 11}
    text = []
    for line in lines:
        cells = [line[i].ljust(widths[i]) if i in left else line[i].rjust(widths[i]) for i in used]
        text.append("  ".join(cells).rstrip())
    text.insert(1, "  ".join("-" * widths[i] for i in used))
    return "\n".join(text)


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with every run as the generator reported it, for a file."""
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
            "beside": row.beside,
            "latency_ratio": row.latency_ratio,
            "build": row.build,
            "goal": row.goal(),
            "left_out": row.left_out,
            "void": row.void,
            "runs": [run.raw or {"error": run.error} for run in row.runs],
        }
        for row in rows
    ]
