"""Implement `hookmq sink-test`, which checks targets and origins before the broker starts."""

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hookmq.cli_api import add_source, chosen
from hookmq.plugin import ConfigError

if TYPE_CHECKING:
    from hookmq_sinks.config import SinkConfig, SinksConfig
    from hookmq_sinks.driver import Problem
    from hookmq_sinks.source_config import SourceConfig

EXAMPLES: Final = """\
examples:
  hookmq sink-test -c hookmq.yaml
  hookmq sink-test -c hookmq.yaml plant

`hookmq sinks test` does the same for a running broker.
exit codes: 0 all are ready, 1 one of them has a problem, 2 wrong usage, 3 the configuration is wrong"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = (
        "Open the targets of the sinks and the origins of the sources in a configuration, and check them. Nothing is "
        "written or read, but a source may create its group of consumers."
    )
    parser.epilog = EXAMPLES
    add_source(parser)
    parser.add_argument(
        "sinks", nargs="*", metavar="SINK", help="names of sinks and sources (default: all)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run `hookmq sink-test`."""
    from hookmq_sinks.plugin import SinksPlugin

    configs: list[SinksConfig] = [
        one.plugin.config for one in chosen(arguments, SinksPlugin).plugins
    ]
    found: list[SinkConfig | SourceConfig] = []
    for config in configs:
        found += config.sinks
        found += config.sources
    names = [one.name for one in found]
    for name in arguments.sinks:
        if name not in names:
            known = ", ".join(names) or "none"
            raise ConfigError(f"there is no sink or source {name!r}", hint=f"configured: {known}")
    if not found:
        raise ConfigError("the configuration has no plugin sinks", hint="use -c FILE")
    wanted = [one for one in found if not arguments.sinks or one.name in arguments.sinks]
    results = asyncio.run(_try_all(wanted))
    for one, problems in zip(wanted, results, strict=True):
        _report(one.name, "target" if hasattr(one, "target") else "origin", problems)
    return int(any(results))


async def _try_all(wanted: Sequence["SinkConfig | SourceConfig"]) -> list[list["Problem"]]:
    from hookmq_sinks.source_config import SourceConfig
    from hookmq_sinks.trial import try_origin, try_target

    def log(level: str, event: str, **fields: object) -> None:
        """Ignore log events from drivers. The reported problems give the same reasons."""

    return await asyncio.gather(
        *(
            try_origin(one) if isinstance(one, SourceConfig) else try_target(one, "0" * 32, log)
            for one in wanted
        )
    )


def _report(name: str, word: str, problems: Sequence["Problem"]) -> None:
    if not problems:
        print(f"{name}: the {word} is ready")
    for one in problems:
        where = f"{word}.{one.key}: " if one.key else ""
        hint = f" ({one.hint})" if one.hint else ""
        print(f"{name}: {where}{one.message}{hint}")
