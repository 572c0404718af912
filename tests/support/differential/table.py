"""The table of known differences, and the manual page generated from it."""

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from itertools import groupby

from differential.playing import Step
from workspace import ROOT

TABLE = ROOT / "tests" / "differential" / "differences.tsv"
PAGE = ROOT / "docs" / "reference" / "mosquitto.md"
RIGHT = {
    "HookMQ": "HookMQ",
    "mosquitto": "mosquitto",
    "open": "the standard leaves it open",
}
"""The verdicts that the table may contain, with the headings of the page."""


@dataclass(frozen=True)
class Difference:
    """A step in a script where one client received different packets from the two brokers.

    Steps are counted from 1. `right` is a key of RIGHT. `statement` is an id or section of the standard, or empty.
    `reason` explains why the difference exists and remains.
    """

    script: str
    step: int
    client: str
    mosquitto: str
    hookmq: str
    right: str = ""
    statement: str = ""
    reason: str = ""

    @property
    def found(self) -> tuple[str, int, str, str, str]:
        """Return the difference between the brokers, without our assessment of it."""
        return (self.script, self.step, self.client, self.mosquitto, self.hookmq)


NAMES = [field.name for field in fields(Difference)]


def read() -> list[Difference]:
    """Read the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, "excel-tab", quoting=csv.QUOTE_NONE))
    assert rows[0] == NAMES, rows[0]
    return [Difference(row[0], int(row[1]), *row[2:]) for row in rows[1:]]


def write(differences: Iterable[Difference]) -> None:
    """Write the table."""
    lines = ["\t".join(NAMES)]
    lines += ["\t".join(map(str, astuple(one))) for one in differences]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def compare(script: str, theirs: list[Step], ours: list[Step]) -> list[Difference]:
    """Return the differences between what the clients of two brokers received. Steps are counted from 1."""
    assert len(theirs) == len(ours)
    found = []
    for number, (left, right) in enumerate(zip(theirs, ours, strict=True), 1):
        for client in left:
            if left[client] != right[client]:
                told = map(_told, (left[client], right[client]))
                found.append(Difference(script, number, client, *told))
    return found


def _told(lines: list[str]) -> str:
    counted = [(line, len(list(same))) for line, same in groupby(lines)]
    words = [line if count == 1 else f"{count} times {line}" for line, count in counted]
    return " ; ".join(words) or "nothing"


INTRO = """\
# Differences from mosquitto

`tests/differential` plays {scripts} scripts of raw packets, and many random ones, to HookMQ and to mosquitto 2.0.11.
It compares what clients receive, except packet ids, assigned client ids, the text of reason strings, and the order of
messages on different topics.

This page lists all differences. The test fails if it finds another difference, or if a listed one no longer occurs.

Both brokers have the same limits. The tables show each packet with its name, reason code and properties. `q1` means
QoS 1, and `#1` is the first packet id that the broker uses. Each script's name starts with its subject.
"""


def page(differences: list[Difference], scripts: int) -> str:
    """Return the page in Markdown."""
    parts = [INTRO.format(scripts=scripts)]
    for right, title in RIGHT.items():
        chosen = [one for one in differences if one.right == right]
        if not chosen:
            continue
        words = f"{title} is right" if right != "open" else "The standard leaves it open"
        parts.append(
            f"\n## {words}\n\n| Script | mosquitto | HookMQ | Statement | Why |\n|---|---|---|---|---|\n"
        )
        for _, group in groupby(chosen, lambda one: (one.script, one.statement, one.reason)):
            same = list(group)
            cells = [
                f"`{same[0].script}`",
                "<br>".join(_cell(one, one.mosquitto) for one in same),
                "<br>".join(_cell(one, one.hookmq) for one in same),
                same[0].statement,
                same[0].reason,
            ]
            parts.append("| " + " | ".join(cells) + " |\n")
    return "".join(parts)


def _cell(one: Difference, text: str) -> str:
    return f"step {one.step}, {one.client}: `{text}`".replace("|", "\\|")
