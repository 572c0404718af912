"""Collect the figures for the page and the terminal: start-up steps, counts, lag, latency, windows and alerts."""

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from alerts import Alerts
from table_reader import Tables, percentile

POINTS: Final = 300
"""Number of samples in the charts, one per second."""
SHOWN: Final = 12
"""Number of windows to show."""
OVER: Final = 5
"""Seconds over which the rates are averaged."""


@dataclass(slots=True)
class Step:
    """A start-up step that takes a while."""

    name: str
    text: str
    usual: int
    """Number of seconds that the step usually takes."""
    state: str = "waiting"
    seconds: float = 0.0


def steps(devices: int) -> list[Step]:
    """Return the start-up steps, up to the first window."""
    return [
        Step("broker", "The broker starts", 2),
        Step("fleet", f"{devices:,} trucks connect and publish", max(1, devices // 200)),
        Step("spark", "Spark starts and opens the stream", 25),
        Step("tables", "The first rows are in the tables", 10),
        Step("windows", "The first window of ten seconds is over", 10),
        Step("alert", "The first cooling failure is noticed", 15),
    ]


class Batches:
    """Reads the reports about the queries. The pipeline appends them to a JSON Lines file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lag: dict[str, int] = {}
        self.duplicates = self.late = self.count = 0
        self._position = 0

    def read(self) -> None:
        """Read the lines that were added since the last call."""
        try:
            with self.file.open("rb") as file:
                file.seek(self._position)
                lines = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return
        self._position += len(lines) + bool(lines)
        for line in lines.splitlines():
            batch = json.loads(line)
            self.count += 1
            self.lag[batch["query"]] = sum(batch["lag"].values())
            if batch["query"] == "silver":
                self.duplicates += batch["duplicates"]
                self.late += batch["late"]


@dataclass(slots=True)
class Sample:
    """The figures for one second."""

    time: float
    acknowledged: int
    bronze: int
    silver: int
    waiting: int
    p50: float | None
    p99: float | None


@dataclass
class Figures:
    """The state of the demo. One thread updates it, and the page's threads read `state`."""

    folder: Path
    steps: list[Step]
    phase: str = "starting"
    ledger: dict[str, Any] = field(default_factory=dict)
    alerts: Alerts | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    summary: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = Tables(self.folder)
        self.batches = Batches(self.folder / "progress.jsonl")
        self.started = time.time()
        self._samples: list[Sample] = []
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {}
        self.publish()

    def told(self, lines: Iterable[str]) -> None:
        """Store the newest of the ledgers that the fleet has printed."""
        for line in lines:
            if line.startswith("{"):
                self.ledger = json.loads(line)

    def read(self) -> None:
        """Read the tables and the reports, then add a sample to the charts."""
        self.tables.read()
        self.batches.read()
        ages = self.tables.ages.get("silver", [])
        self._samples.append(
            Sample(
                time.time(),
                self.acknowledged,
                self.tables.rows("bronze"),
                self.tables.rows("silver"),
                self.waiting,
                percentile(ages, 0.5),
                percentile(ages, 0.99),
            )
        )
        del self._samples[:-POINTS]
        self.publish()

    @property
    def acknowledged(self) -> int:
        """Number of messages that the broker has acknowledged."""
        return int(self.ledger.get("acknowledged", 0))

    @property
    def waiting(self) -> int:
        """Number of acknowledged messages that are not in bronze yet."""
        return max(0, self.acknowledged - self.tables.rows("bronze"))

    @property
    def accounted(self) -> int:
        """Number of messages that are in silver or the dead letters, or were dropped as duplicates."""
        rows = self.tables.rows
        return rows("silver") + rows("dead_letter") + self.batches.duplicates + self.batches.late

    @property
    def complete(self) -> bool:
        """Whether all acknowledged messages are in bronze and accounted for."""
        return self.acknowledged == self.tables.rows("bronze") == self.accounted

    def rate(self, name: str) -> float:
        """Return the recent rate, in messages or rows per second."""
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[-min(len(self._samples), OVER + 1)], self._samples[-1]
        change = getattr(last, name) - getattr(first, name)
        return float(max(0.0, change / (last.time - first.time)))

    def publish(self) -> None:
        """Make the current figures visible to the page."""
        state = self._made()
        with self._lock:
            self._state = state

    def state(self) -> dict[str, Any]:
        """Return the figures for the page. Can be called from any thread."""
        with self._lock:
            return self._state

    def _made(self) -> dict[str, Any]:
        last = self._samples[-1] if self._samples else None
        return {
            "phase": self.phase,
            "started": self.started,
            "now": time.time(),
            "folder": str(self.folder),
            "addresses": self.addresses,
            "summary": self.summary,
            "steps": [asdict(step) for step in self.steps],
            "totals": {
                "online": self.ledger.get("online", 0),
                "sent": self.ledger.get("sent", 0),
                "acknowledged": self.acknowledged,
                "bronze": self.tables.rows("bronze"),
                "silver": self.tables.rows("silver"),
                "dead_letter": self.tables.rows("dead_letter"),
                "duplicates": self.batches.duplicates,
                "gold": self.tables.rows("gold"),
                "alerts": self.alerts.received if self.alerts else 0,
                "failures": len(self.ledger.get("failures", ())),
                "waiting": self.waiting,
                "accounted": self.accounted,
            },
            "rates": {"messages": self.rate("acknowledged"), "silver": self.rate("silver")},
            "latency": {"p50": last and last.p50, "p99": last and last.p99},
            "lag": self.batches.lag,
            "series": self._series(),
            "windows": self.windows(),
            "reasons": dict(self.tables.reasons.most_common()),
            "samples": self.tables.samples[::-1],
            "alerts": self.alerts.newest() if self.alerts else [],
        }

    def _series(self) -> dict[str, list[float | None]]:
        kept = self._samples
        rates: dict[str, list[float | None]] = {"messages": [], "silver": []}
        for index, sample in enumerate(kept):
            before = kept[max(0, index - OVER)]
            span = sample.time - before.time
            for name, field_name in (("messages", "acknowledged"), ("silver", "silver")):
                change = getattr(sample, field_name) - getattr(before, field_name)
                rates[name].append(round(change / span, 1) if span else None)
        return {
            "times": [round(one.time, 1) for one in kept],
            **rates,
            "waiting": [one.waiting for one in kept],
            "p50": [_rounded(one.p50) for one in kept],
            "p99": [_rounded(one.p99) for one in kept],
        }

    def windows(self) -> list[dict[str, Any]]:
        """Return the latest temperature and speed windows, newest first."""
        found: dict[float, dict[str, Any]] = {}
        for (start, metric), window in self.tables.windows.items():
            found.setdefault(start, {"start": start})[metric] = window.shown()
        return [found[start] for start in sorted(found, reverse=True)][: SHOWN * 2]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
