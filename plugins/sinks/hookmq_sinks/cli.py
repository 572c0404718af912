"""Implement `hookmq sink-test`, which checks targets before the broker starts."""

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hookmq.cli_api import add_source, chosen
from hookmq.plugin import ConfigError

if TYPE_CHECKING:
    from hookmq_sinks.config import SinkConfig
    from hookmq_sinks.driver import Problem

EXAMPLES: Final = """\
examples:
  hookmq sink-test -c hookmq.yaml
  hookmq sink-test -c hookmq.yaml plant

`hookmq sinks test` does the same for a running broker.
exit codes: 0 all targets are ready, 1 a target has a problem, 2 wrong usage, 3 the configuration is wrong"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.description = (
        "Open the targets of the sinks in a configuration and check them, without writing anything."
    )
    parser.epilog = EXAMPLES
    add_source(parser)
    parser.add_argument("sinks", nargs="*", metavar="SINK", help="names of sinks (default: all)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run `hookmq sink-test`."""
    from hookmq_sinks.plugin import SinksPlugin

    found = [
        one
        for plugin in chosen(arguments, SinksPlugin).plugins
        for one in plugin.plugin.config.sinks
    ]
    names = [one.name for one in found]
    for name in arguments.sinks:
        if name not in names:
            known = ", ".join(names) or "none"
            raise ConfigError(f"there is no sink {name!r}", hint=f"configured: {known}")
    if not found:
        raise ConfigError("the configuration has no plugin sinks", hint="use -c FILE")
    wanted = [one for one in found if not arguments.sinks or one.name in arguments.sinks]
    results = asyncio.run(_try_all(wanted))
    for config, problems in zip(wanted, results, strict=True):
        _report(config.name, problems)
    return int(any(results))


async def _try_all(sinks: Sequence["SinkConfig"]) -> list[list["Problem"]]:
    from hookmq_sinks.trial import try_target

    def log(level: str, event: str, **fields: object) -> None:
        """Ignore what drivers log: the problems say it."""

    return await asyncio.gather(*(try_target(one, "0" * 32, log) for one in sinks))


def _report(name: str, problems: Sequence["Problem"]) -> None:
    if not problems:
        print(f"{name}: the target is ready")
    for one in problems:
        where = f"target.{one.key}: " if one.key else ""
        hint = f" ({one.hint})" if one.hint else ""
        print(f"{name}: {where}{one.message}{hint}")
