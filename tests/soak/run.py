"""Let clients connect and disconnect for a long time, and check that they leave nothing behind.

    .venv/bin/python tests/soak/run.py --minutes 60

The exit code is 1 if something grew. `make soak MINUTES=60` runs it.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from pressure.soak import CLIENTS, soak


def main() -> int:
    """Run the program. Return 0 if nothing grew."""
    parser = argparse.ArgumentParser(prog="tests/soak/run.py", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=CLIENTS, help="of a round (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hookmq-soak-") as folder:
        run = asyncio.run(
            soak(
                Path(folder),
                options.minutes * 60,
                lambda line: print(line, flush=True),
                options.clients,
            )
        )
    for sentence in run.broken:
        print(f"BROKEN: {sentence}")
    if not run.broken:
        print(f"nothing grew in {len(run.rounds)} rounds of {options.clients} clients")
    return 1 if run.broken else 0


if __name__ == "__main__":
    sys.exit(main())
