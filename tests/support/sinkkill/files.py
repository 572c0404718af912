"""The targets of the `file` driver, for tests that kill brokers and sinks."""

import json
from pathlib import Path

from sinkkill.ledger import Stored


def read_lines(folder: Path) -> list[Stored]:
    """Return the complete lines that the `file` driver has written to a folder, in order."""
    found = []
    for path in sorted(folder.glob("*.jsonl*")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return read_lines(folder)  # it got its final name just now
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            one = json.loads(line)
            found.append(Stored(one["id"], one["payload"]["key"], one["payload"]["number"]))
    return found
