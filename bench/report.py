"""From raw runs to medians, ratios, a table and a JSON file."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .scenarios import Scenario

BASELINE = "mosquitto"
BUSY = 0.8
WAITED = 0.1

# What makes a run void, in load.c's words, and how the table says it.
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
    """One run of one scenario against one broker: load.c's object, or why there is none."""

    scenario: Scenario
    broker: str
    raw: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""

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

        `core` and `generator` are shares of one core. Only for a run without defects.
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
        for name in ("p50", "p99", "p99_9"):
            if "latency_us" in raw:
                figures[name] = raw["latency_us"][name]
        return figures


@dataclasses.dataclass(slots=True)
class Row:
    """All runs of one scenario against one broker: medians, extremes, and ratios to mosquitto.

    A ratio above 1 means better than mosquitto: `cost_ratio` is its cost divided by this one's,
    `rate_ratio` this rate divided by its. None without mosquitto in the same run.
    """

    scenario: Scenario
    broker: str
    runs: list[Run]
    median: dict[str, float] = dataclasses.field(default_factory=dict)
    least: dict[str, float] = dataclasses.field(default_factory=dict)
    most: dict[str, float] = dataclasses.field(default_factory=dict)
    void: list[str] = dataclasses.field(default_factory=list)
    cost_ratio: float | None = None
    rate_ratio: float | None = None

    def goal(self) -> str:
        """The bar and whether HookMQ meets it, as text; empty for other brokers and without a bar."""
        if self.broker != "hookmq":
            return ""
        if self.scenario.most_kib is not None:
            met = bool(self.median) and self.median["cost"] <= self.scenario.most_kib
            return f"<= {self.scenario.most_kib:g} KiB {'met' if met else 'MISSED'}"
        if self.scenario.least_ratio is None or (self.median and self.cost_ratio is None):
            return ""
        met = self.cost_ratio is not None and self.cost_ratio >= self.scenario.least_ratio
        return f">= {self.scenario.least_ratio:g}x {'met' if met else 'MISSED'}"

    def notes(self) -> str:
        """What the reader must know of this row: void runs, a busy generator, latencies."""
        notes = []
        if self.void:
            notes.append(f"VOID {len(self.void)} of {len(self.runs)} runs: {'; '.join(self.void)}")
        window = min((run.raw.get("window", self.scenario.window) for run in self.runs), default=0)
        if self.scenario.mode == "closed" and window < self.scenario.window:
            notes.append(f"the broker's Receive Maximum cuts the window to {window}")
        if self.median.get("generator", 0) > BUSY and self.scenario.mode != "open":
            notes.append("generator-bound: read CPU, not rate")
        if self.median.get("waited", 0) > WAITED:
            notes.append(f"other work had a core for {self.median['waited']:.0%} of the time")
        if "p50" in self.median:
            notes.append("p50 {p50:.0f} p99 {p99:.0f} p99.9 {p99_9:.0f} us".format(**self.median))
        return "; ".join(notes)


def summarise(runs: Iterable[Run]) -> list[Row]:
    """One row for each scenario and broker, in the order of their first runs."""
    rows: dict[tuple[str, str], Row] = {}
    for run in runs:
        key = run.scenario.name, run.broker
        rows.setdefault(key, Row(run.scenario, run.broker, [])).runs.append(run)
    for row in rows.values():
        row.void = [defects for run in row.runs if (defects := run.defects())]
        good = [run.figures() for run in row.runs if not run.defects()]
        for name in good[0] if good else ():
            values = [figures[name] for figures in good]
            row.median[name] = statistics.median(values)
            row.least[name], row.most[name] = min(values), max(values)
    for row in rows.values():
        base = rows.get((row.scenario.name, BASELINE))
        if base is None or not base.median or not row.median:
            continue
        if row.median["cost"] > 0:
            row.cost_ratio = base.median["cost"] / row.median["cost"]
        if "rate" in row.median and row.scenario.mode != "open":
            row.rate_ratio = row.median["rate"] / base.median["rate"]
    ordered: dict[str, list[Row]] = {}
    for row in rows.values():
        ordered.setdefault(row.scenario.name, []).append(row)
    return [row for group in ordered.values() for row in group]


def _number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    if value >= 1e4:
        return f"{value / 1e3:.0f}k"
    return f"{value:.0f}"


def _cells(row: Row) -> tuple[str, ...]:
    name = row.scenario.title
    if not row.median:
        return (name, row.broker, "void", "", "void", "", "", "", "", "", row.goal(), row.notes())
    median, least, most = row.median, row.least, row.most
    several = len(row.runs) - len(row.void) > 1
    unit = "KiB/conn" if row.scenario.mode == "idle" else f"us/{row.scenario.unit[:7]}"
    rate = spread = generator = ""
    if "rate" in median:
        rate = _number(median["rate"])
        spread = f"{_number(least['rate'])}..{_number(most['rate'])}" if several else ""
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
    "bar",
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
    """The rows with every run as load.c reported it, for a file."""
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
            "bar": row.goal(),
            "void": row.void,
            "runs": [run.raw or {"error": run.error} for run in row.runs],
        }
        for row in rows
    ]
