"""Kill HookMQ and mosquitto the same way, and write the table of losses in docs/explanation/durability.md.

.venv/bin/python tests/crash/report.py --kills 50
"""

import argparse
import datetime
import importlib.metadata
import platform
import sqlite3
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from killing import table
from killing.brokers import mosquitto


def main() -> int:
    """Run the program. Return 1 if HookMQ lost anything that it guarantees to keep."""
    parser = argparse.ArgumentParser(prog="tests/crash/report.py", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    program = mosquitto()
    if program is None:
        print("mosquitto is not installed (apt install mosquitto)")
        return 2
    told = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout
    rows = table.measure(options.kills, options.seed, lambda line: print(line, flush=True))
    table.write(
        {
            "format": 1,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "seed": options.seed,
            "versions": {
                "hookmq": importlib.metadata.version("hookmq"),
                "mosquitto": told.partition("\n")[0].rpartition(" ")[2],
                "python": platform.python_version(),
                "sqlite": sqlite3.sqlite_version,
            },
            "rows": rows,
        }
    )
    return 1 if any(table.broken(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
