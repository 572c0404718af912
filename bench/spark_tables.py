"""``python -m bench.spark_tables``: the part of ``bench.spark_latency`` that reads tables. It needs pyarrow.

A row is in a table of format ``files`` once its batch is committed. Spark then creates a file in ``_spark_metadata``,
and its modification time is taken as the commit time.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
import sys
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """A batch in a table."""

    batch: int
    at: float
    """The time of the commit, in seconds since 1970."""
    files: tuple[str, ...]


def commits(table: pathlib.Path) -> list[Commit]:
    """Return the batches of a table, in order."""
    found: dict[int, pathlib.Path] = {}
    for path in (table / "_spark_metadata").glob("[0-9]*"):
        number = int(path.name.partition(".")[0])
        found[number] = path
    seen: set[str] = set()
    made = []
    for number, path in sorted(found.items()):
        every = [json.loads(line)["path"] for line in path.read_text().splitlines()[1:]]
        files = tuple(
            one for one in every if one not in seen
        )  # A compacted log repeats the others.
        seen.update(every)
        made.append(Commit(number, path.stat().st_mtime, files))
    return made


def arrivals(table: pathlib.Path, key: str) -> dict[object, float]:
    """Return when each row was committed, keyed by its value in the column `key`. Raises ValueError if a value occurs
    twice."""
    parquet: Any = importlib.import_module("pyarrow.parquet")  # Only .venv-spark has it.
    found: dict[object, float] = {}
    for commit in commits(table):
        for file in commit.files:
            with pathlib.Path(file.removeprefix("file://")).open("rb") as opened:
                keys = parquet.ParquetFile(opened).read(columns=[key]).column(key).to_pylist()
            for one in keys:
                if one in found:
                    raise ValueError(f"{table} has {one!r} twice")
                found[one] = commit.at
    return found


def bronze(folder: pathlib.Path) -> dict[int, float]:
    """Return when each message was committed in bronze, keyed by the microsecond at which it was due."""
    rows = arrivals(folder / "bronze", "payload")
    return {json.loads(payload)["due"]: at for payload, at in rows.items()}  # type: ignore[arg-type]


def silver(folder: pathlib.Path) -> dict[int, float]:
    """Return when each message was committed in silver, keyed by the microsecond at which it was due."""
    return arrivals(folder / "silver", "due")  # type: ignore[return-value]


def main(folder: pathlib.Path, since: float, until: float) -> dict[str, object]:
    """Return the rows of each table, and the seconds that each message due between `since` and `until` took."""
    stored, parsed = bronze(folder), silver(folder)
    counted = {due: at for due, at in stored.items() if since <= due / 1e6 < until}
    return {
        "rows": {"bronze": len(stored), "silver": len(parsed)},
        "device to bronze": [at - due / 1e6 for due, at in counted.items()],
        "bronze to silver": [parsed[due] - at for due, at in counted.items() if due in parsed],
        "device to silver": [parsed[due] - due / 1e6 for due in counted if due in parsed],
    }


if __name__ == "__main__":
    print(json.dumps(main(pathlib.Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
