"""The runs that bench.durable measures, and the table of their results."""

from __future__ import annotations

import dataclasses
import os
import statistics

from .durable_load import PAYLOAD


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run.

    CPU times are per message, in microseconds, for all of the broker's processes and for the main one. Latencies are
    sorted and in seconds. The loads of the broker and the generator are fractions of a core.
    """

    rate: float
    cpu: float
    main: float
    latencies: list[float]
    busy: float
    generator: float

    def latency(self, part: float) -> float:
        """Return a quantile of the latencies in milliseconds. `part` is at least 0 and below 1."""
        return self.latencies[int(len(self.latencies) * part)] * 1e3


def spread(values: list[float], form: str) -> str:
    """Format the median with the lowest and the highest value."""
    middle = statistics.median(values)
    if len(values) < 2:
        return f"{middle:{form}}"
    return f"{middle:{form}} ({min(values):{form}}-{max(values):{form}})"


def row(case: str, name: str, runs: list[Run], rival: list[Run]) -> str:
    """Format a row of the table. The ratio compares the medians."""
    rates = [run.rate for run in runs]
    ratio = ""
    if rival:
        theirs = statistics.median(run.rate for run in rival)
        ratio = f"{statistics.median(rates) / theirs:.2f}x"
    cells = [
        case,
        name,
        spread(rates, ",.0f"),
        ratio,
        f"{1e6 / statistics.median(rates):,.1f}",
        spread([run.cpu for run in runs], ".1f"),
        f"{statistics.median(run.cpu - run.main for run in runs):.1f}",
        f"{statistics.median(run.latency(0.5) for run in runs):.2f}",
        f"{statistics.median(run.latency(0.99) for run in runs):.2f}",
        f"{statistics.median(run.busy for run in runs):.2f}",
        f"{statistics.median(run.generator for run in runs):.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEADING = (
    "| in flight | | PUBACK/s | to mosquitto | wall us | CPU us | of it writer | p50 ms | p99 ms | core | gen. |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def heading(runs: int, seconds: float, load: float) -> str:
    """Return the lines above the table's rows. `load` is the load average before the runs."""
    return (
        f"{PAYLOAD} B of payload, MQTT 3.1.1; medians (lowest-highest) of {runs} x {seconds:g} s; load average before"
        f" {load:.2f}, after {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores\n\n{HEADING}"
    )


def figures(run: Run) -> dict[str, float]:
    """Return a run's figures for the results file."""
    return {
        "rate": round(run.rate),
        "cpu_us": round(run.cpu, 2),
        "writer_us": round(run.cpu - run.main, 2),
        "p50_ms": round(run.latency(0.5), 3),
        "p99_ms": round(run.latency(0.99), 3),
    }
