"""Overload HookMQ and report how it behaves.

    .venv/bin/python tests/overload/run.py --seconds 60

The exit code is 1 if a guarantee was broken. `make overload SECONDS=60` runs it.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from pressure.overload import MEGABYTE, STORM
from pressure.scenarios import SCENARIOS

SPARE = 1000
"""The number of open files to allow in addition to the connections of a storm."""


def main() -> int:
    """Run the scenarios. Return 0 if HookMQ kept every guarantee."""
    parser = argparse.ArgumentParser(prog="tests/overload/run.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of load (%(default)s)")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="run only this scenario")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="1 is a storm of 20,000 clients (%(default)s)",
    )
    options = parser.parse_args()
    # A storm needs one socket per client, both here and in the broker, which inherits the limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < STORM * options.scale + SPARE:
        options.scale = (hard - SPARE) / STORM
        print(f"the limit of open files is {hard}: the storm has {options.scale * STORM:.0f}")
    broken = 0
    for name in options.only or SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="hookmq-overload-") as folder:
            outcome = asyncio.run(SCENARIOS[name](Path(folder), options.seconds, options.scale))
        numbers = ", ".join(f"{key} {value:,.0f}" for key, value in outcome.numbers.items())
        print(f"{name}: {numbers}; memory +{outcome.growth / MEGABYTE:.0f} MiB")
        print(f"  well-behaved client: {outcome.seen}")
        for labels, count in outcome.drops.items():
            print(f"  dropped {labels}: {count:,.0f}")
        for sentence in outcome.broken:
            print(f"  BROKEN: {sentence}")
        sys.stdout.flush()
        broken += len(outcome.broken)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
