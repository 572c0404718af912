"""The runs of bench.durable and the table that they become."""

from __future__ import annotations

import dataclasses
import os
import statistics

from .durable_load import PAYLOAD


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One run: acknowledged messages a second, microseconds of CPU time for each (all of the broker, and of that its
    first process), sorted latencies in seconds, and shares of a core."""

    rate: float
    cpu: float
    main: float
    latencies: list[float]
    busy: float
    generator: float

    def latency(self, part: float) -> float:
        """A quantile, in milliseconds."""
        return self.latencies[int(len(self.latencies) * part)] * 1e3


def spread(values: list[float], form: str) -> str:
    """The median, and the lowest and the highest."""
    middle = statistics.median(values)
    if len(values) < 2:
        return f"{middle:{form}}"
    return f"{middle:{form}} ({min(values):{form}}-{max(values):{form}})"


def row(case: str, name: str, runs: list[Run], rival: list[Run]) -> str:
    """A row of the table; its ratio is that of the medians."""
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
    """What stands above the rows; `load` is the machine's load average before."""
    return (
        f"{PAYLOAD} B of payload, MQTT 3.1.1; medians (lowest-highest) of {runs} x {seconds:g} s; load average before"
        f" {load:.2f}, after {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores\n\n{HEADING}"
    )


def figures(run: Run) -> dict[str, float]:
    """A run as the file of results holds it."""
    return {
        "rate": round(run.rate),
        "cpu_us": round(run.cpu, 2),
        "writer_us": round(run.cpu - run.main, 2),
        "p50_ms": round(run.latency(0.5), 3),
        "p99_ms": round(run.latency(0.99), 3),
    }
