"""A measurement of how much several brokers lose when they are killed, stored as JSON and shown in the manual."""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from workspace import ROOT

from killing.brokers import Broker, HookMQ, Mosquitto
from killing.ledger import Counts
from killing.rounds import Run, Say

RESULTS = ROOT / "tests" / "crash" / "results.json"
PAGE = ROOT / "docs" / "explanation" / "durability.md"
BEGIN = "<!-- written by tests/crash/report.py -->\n"
END = "<!-- end -->\n"
LAST = 10.0
"""At the end of a run, missing messages count as lost after this many seconds without a message."""


@dataclass(frozen=True)
class Subject:
    """A row: a broker and its configuration."""

    broker: str
    setting: str
    make: Callable[[Path], Broker]
    part: float = 1.0
    """The fraction of the kills to perform. It is lower for slow brokers."""
    patience: float = 2.0
    """Like `LAST`, but between two kills. It is higher for brokers that pause for seconds while saving."""


SUBJECTS = [
    *(
        Subject("HookMQ", f"`durability: {name}`", partial(HookMQ, durability=name))
        for name in ("group", "os", "memory")
    ),
    Subject("mosquitto", "`persistence true`", partial(Mosquitto, autosave="default")),
    Subject(
        "mosquitto",
        "the same, `autosave_interval 1`",
        partial(Mosquitto, autosave="every second"),
    ),
    Subject(
        "mosquitto",
        "the same, `autosave_on_changes true`",
        partial(Mosquitto, autosave="on changes"),
        part=0.25,
        patience=LAST,
    ),
]
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "kills": lambda c: f"{c['kills'] + c['early']}",
    "acknowledged": lambda c: f"{c['acknowledged']:,}",
    "of these lost": lambda c: _share(c["lost"], c["due"]),
    "QoS 2 twice": lambda c: f"{c['duplicated']:,}",
    "out of order": lambda c: f"{c['reordered']:,}",
    "sessions lost": lambda c: _share(c["sessions_lost"], c["returns"]),
    "retained wrong": lambda c: _share(c["retained_wrong"], c["retained_checks"]),
    "wills lost": lambda c: _share(c["wills_lost"], c["wills"]),
}


def _share(part: int, whole: int) -> str:
    if not part:
        return "0"
    share = part / whole
    return f"{part:,} ({share:.0%})" if share >= 0.01 else f"{part:,} (under 1 %)"


def measure(
    kills: int, seed: int, say: Say, subjects: Sequence[Subject] = SUBJECTS
) -> list[dict[str, Any]]:
    """Return a row for each subject, measured one after another."""
    rows = []
    for subject in subjects:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="hookmq-crash-") as folder:
            run = Run(subject.make(Path(folder)), seed, subject.patience, False, last=LAST)
            counts = asyncio.run(run.run(round(kills * subject.part)))
        seconds = round(time.monotonic() - began, 1)
        row = {
            "broker": subject.broker,
            "setting": subject.setting,
            "seconds": seconds,
            "counts": run.ledger.to_json(),
            "refusals": run.ledger.refusals,
        }
        rows.append(row)
        say(f"{counts.broken() or 'nothing lost'}: {json.dumps(row)}")
    return rows


def write(document: dict[str, Any]) -> None:
    """Save the results and update their table in the page."""
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), document), encoding="utf-8")


def read() -> dict[str, Any]:
    """Read the results."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def page(text: str, document: dict[str, Any]) -> str:
    """Return the page with the table of these results."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(document) + END + after


def table(document: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    versions = document["versions"]
    lines = [
        f"Seed {document['seed']}, {document['date']}; HookMQ {versions['hookmq']}, mosquitto"
        f" {versions['mosquitto']}, Python {versions['python']}, SQLite {versions['sqlite']}.\n",
        "| broker | | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    for row in document["rows"]:
        cells = [make(row["counts"]) for make in COLUMNS.values()]
        lines.append(f"| {row['broker']} | {row['setting']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def broken(row: dict[str, Any]) -> dict[str, int]:
    """Return the guarantees that HookMQ violated in a row. Only rows with a store guarantee anything after SIGKILL."""
    if row["broker"] != "HookMQ" or "memory" in row["setting"]:
        return {}
    return Counts(**row["counts"]).broken()
