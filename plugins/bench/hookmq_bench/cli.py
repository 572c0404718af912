"""The ``hookmq bench`` command: a load test for any MQTT broker."""

import argparse
import sys
from datetime import UTC, datetime
from importlib.metadata import version

from hookmq.plugin import ConfigError

from hookmq_bench.options import EXAMPLES, add_options, limits_of, plan_of
from hookmq_bench.plan import SCENARIOS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    width = max(map(len, SCENARIOS)) + 2
    scenarios = "\n".join(f"  {name:<{width}}{one.help}" for name, one in SCENARIOS.items())
    parser.description = f"Load-test any MQTT broker: measure rates, latencies and losses.\n\nscenarios:\n{scenarios}"
    parser.epilog = EXAMPLES
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the load test, print the result, and write the requested files. Return the exit code."""
    plan = plan_of(arguments)
    limits = limits_of(arguments)
    for path in (arguments.json, arguments.html):
        if path is None or str(path) == "-":
            continue
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: the folder {path.absolute().parent} does not exist")
        if path.is_dir():
            raise ConfigError(f"{path}: expected a file, found a folder")
    import json

    from hookmq_bench import control, native
    from hookmq_bench.address import address_of
    from hookmq_bench.page import page
    from hookmq_bench.result import conclude, to_json
    from hookmq_bench.text import Progress, headline, table, where

    if plan.native:
        native.words_of(plan)
    address = address_of(plan.target)
    progress = Progress(plan, sys.stderr)
    if not plan.target.quiet:
        print(f"hookmq bench {plan.scenario}: {headline(plan)}; {where(plan)}", file=sys.stderr)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        engine = native.run_plan if plan.native else control.run
        watched = engine(plan, address, (lambda _p, _at: None) if plan.target.quiet else progress)
    finally:
        progress.end()
    result = conclude(plan, watched, started, limits)
    of_us = version("hookmq-bench")
    to_stdout = arguments.json is not None and str(arguments.json) == "-"
    try:
        if arguments.json is not None:
            text = json.dumps(to_json(result, of_us), indent=1) + "\n"
            if to_stdout:
                sys.stdout.write(text)
            else:
                arguments.json.write_text(text)
        if arguments.html is not None:
            arguments.html.write_text(page(result, of_us), encoding="utf-8")
    finally:
        # Print the table even if a file cannot be written. Otherwise the figures would be lost.
        print(table(result), end="", file=sys.stderr if to_stdout else sys.stdout)
    return result.exit_code
