"""Read growing Delta tables. Each read covers only the files that were added since the previous one."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

SAMPLES: Final = 4
"""Number of dead letters to show."""
LONGEST: Final = 60
"""Maximum number of characters of a payload to show."""
WINDOWS: Final = 60
"""Number of windows to remember."""


class Growing:
    """A table that grows as files are added to it. It need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0
        self._table: DeltaTable | None = None
        self._seen: set[str] = set()

    def new(self, *columns: str) -> Iterator[tuple[float, pa.Table]]:
        """For each new file, yield its time in epoch seconds and its rows, limited to `columns`."""
        try:
            if self._table is None:
                self._table = DeltaTable(str(self.folder))
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            return
        added = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        for file in added:
            if file["path"] not in self._seen:
                self._seen.add(file["path"])
                self.rows += file["num_records"]
                written = file["modification_time"]
                at = written.timestamp() if isinstance(written, datetime) else float(written) / 1000
                path = self.folder / unquote(file["path"])
                yield at, pq.read_table(path, columns=list(columns), partitioning=None)


@dataclass(slots=True)
class Window:
    """The values for one window and metric."""

    devices: int = 0
    readings: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, row: dict[str, Any]) -> None:
        """Add a row from gold."""
        self.devices += 1
        self.readings += row["count"]
        self.total += row["avg"] * row["count"]
        self.low, self.high = min(self.low, row["min"]), max(self.high, row["max"])

    def shown(self) -> dict[str, Any]:
        """Return the window's values, as shown on the page."""
        average = self.total / self.readings
        return {
            "devices": self.devices,
            "readings": self.readings,
            "low": self.low,
            "average": average,
            "high": self.high,
        }


@dataclass(slots=True)
class Tables:
    """The pipeline's tables in a folder."""

    folder: Path
    reasons: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, str]] = field(default_factory=list)
    windows: dict[tuple[float, str], Window] = field(default_factory=dict)
    ages: dict[str, list[float]] = field(default_factory=dict)
    """For bronze and silver: how many seconds the newest rows took from the broker to the table."""
    _tables: dict[str, Growing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("bronze", "silver", "dead_letter", "gold"):
            self._tables[name] = Growing(self.folder / name)

    def rows(self, name: str) -> int:
        """Return the number of rows in a table."""
        return self._tables[name].rows

    def read(self) -> None:
        """Read the rows that were added since the last call."""
        for name in ("bronze", "silver"):
            for written, table in self._tables[name].new("timestamp"):
                micros = pc.cast(pc.cast(table["timestamp"], pa.timestamp("us", "UTC")), pa.int64())
                self.ages[name] = [written - one / 1e6 for one in micros.to_pylist()]
        for _, table in self._tables["dead_letter"].new("reason", "topic", "payload"):
            rows = table.to_pylist()
            self.reasons.update(row["reason"] for row in rows)
            self.samples = [*self.samples, *map(_sample, rows)][-SAMPLES:]
        for _, table in self._tables["gold"].new(
            "metric", "window_start", "count", "min", "avg", "max"
        ):
            self._add(table.to_pylist())

    def _add(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            key = (row["window_start"].timestamp(), row["metric"])
            self.windows.setdefault(key, Window()).add(row)
        for old in sorted(self.windows)[:-WINDOWS]:
            del self.windows[old]


def _sample(row: dict[str, Any]) -> dict[str, str]:
    payload = row["payload"] or b""
    text = payload.decode("utf-8", "backslashreplace")
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    return {"topic": row["topic"], "payload": text, "reason": row["reason"]}


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return a percentile of the values, or None if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
