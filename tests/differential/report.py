"""Play all scripts, update the table and write docs/reference/mosquitto.md.

    .venv/bin/python tests/differential/report.py

New rows of the table have no verdict yet. Fill in `right`, `statement` and `reason`, then run this again.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from differential import table
from differential.brokers import brokers, mosquitto
from differential.scripts import scripts


def main() -> int:
    """Run the program. Return 0 if every difference has a verdict."""
    program = mosquitto()
    if program is None:
        print("mosquitto is not installed (apt install mosquitto)")
        return 2
    known = {one.found: one for one in table.read()} if table.TABLE.exists() else {}
    found = []
    with tempfile.TemporaryDirectory() as folder, brokers(program, Path(folder)) as both:
        for name, script in scripts().items():
            try:
                found += table.compare(name, *both.both(script))
            except AssertionError as error:
                print(f"{name}: {error}")
    rows = [known.get(one.found, one) for one in found]
    table.write(rows)
    table.PAGE.write_text(table.page(rows, len(scripts())), encoding="utf-8")
    new = [one for one in rows if not one.right]
    for one in new:
        print(*one.found, sep="\n    ")
    print(f"{len(rows)} differences, {len(new)} without a verdict")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
