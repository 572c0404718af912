"""``hookmq cluster import|export``: commands that move everything from a store to a cluster, and back."""

import argparse
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookmq.cli_api import chosen
from hookmq.plugin import ConfigError, Plugin, Runtime, Store, StoreError
from hookmq_toolkit import stores

from hookmq_cluster.command_parts import (
    STOP,
    ProgressLine,
    add_command,
    add_replace,
    print_counts,
)

if TYPE_CHECKING:
    from hookmq_toolkit.stores import StoreOpener


def add_commands(commands: Any) -> None:
    """Add the subcommands for the cluster's log to `hookmq cluster`."""
    one = add_command(
        commands, "import", import_, "Fill a cluster with the contents of a store",
        f"{STOP} If the command was interrupted, repeat it.",
    )  # fmt: skip
    one.add_argument(
        "--from", dest="source", required=True, metavar="PATH",
        help="configuration file of the broker with the store, or folder of the plugin storage",
    )  # fmt: skip
    one.add_argument(
        "--nodes", metavar="A,B,C",
        help="nodes over which to spread the sessions (default: those of the configuration)",
    )  # fmt: skip
    add_replace(one)
    _add_dry_run(one)
    one = add_command(
        commands, "export", export, "Write the contents of a cluster into a new store",
        f"{STOP} If the folder exists, it is complete.",
    )  # fmt: skip
    one.add_argument(
        "--to", dest="target", type=Path, required=True, metavar="FOLDER",
        help="new folder for the plugin storage",
    )  # fmt: skip
    one.add_argument(
        "--state-lane", default="", metavar="LANE",
        help="take the state of plugins from this lane only",
    )  # fmt: skip
    _add_dry_run(one)


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="read everything, but change nothing"
    )


def opener_of(source: Path) -> "StoreOpener":
    """Return the store of a configuration file, or in a folder of the plugin storage. Raises ConfigError."""
    if not source.exists():
        raise ConfigError(f"{source}: no such file or folder")
    is_folder = source.is_dir()
    options = argparse.Namespace(
        config=None if is_folder else str(source),
        option=[],
        data_dir=str(source) if is_folder else None,
    )
    for one in chosen(options, Plugin).plugins:
        found = one.plugin.offered_services.get(stores.SERVICE)
        if isinstance(found, stores.StoreOpener):
            return found
    raise ConfigError(f"{source}: no plugin stores the broker's state")


@asynccontextmanager
async def _opened(opener: "StoreOpener", runtime: Runtime) -> AsyncIterator[Store]:
    from hookmq_cluster.waiting import ended

    store = opener.open_store(runtime)
    try:
        yield store
    finally:
        await ended(runtime, store.close)


async def import_(arguments: argparse.Namespace) -> int:
    """Fill a cluster with the contents of a store."""
    from hookmq_cluster.config import check_name
    from hookmq_cluster.migration import import_store, try_import
    from hookmq_cluster.opened_log import opened_log

    opener = opener_of(Path(arguments.source))
    if not opener.exists:
        raise StoreError(f"{opener.place} contains no store")
    nodes = tuple(arguments.nodes.split(",")) if arguments.nodes is not None else ()
    for node in nodes:
        check_name("--nodes", node)
    opening = opened_log(arguments, create=not arguments.dry_run)
    async with opening as log, _opened(opener, log.runtime) as store:
        progress = ProgressLine("importing")
        try:
            if arguments.dry_run:
                counts = await try_import(
                    log.existing, log.names, log.runtime, store, arguments.replace, progress
                )  # fmt: skip
            else:
                counts = await import_store(
                    log.engine, log.names, log.runtime, store, nodes or log.nodes,
                    f"hookmq cluster import --from {arguments.source}", arguments.replace, progress,
                )  # fmt: skip
        finally:
            progress.end()
    print_counts(
        arguments,
        f"imported from {opener.place} into cluster {log.names.cluster!r}",
        counts.fields(),
    )
    return 0


def _part_of(target: Path) -> Path:
    """Return the folder that becomes `target` at the end. Raises StoreError if `target` exists."""
    if target.exists():
        raise StoreError(f"{target} exists already; export into a new folder")
    return target.with_name(f"{target.name}.part")


def _make_folder(part: Path) -> None:
    """Make an empty folder. Delete what an earlier attempt has left."""
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)


async def export(arguments: argparse.Namespace) -> int:
    """Write the contents of a cluster into a new store."""
    from hookmq_cluster.filling import refuse_unfinished
    from hookmq_cluster.log_contents import read_contents
    from hookmq_cluster.log_writer import refuse_live_nodes
    from hookmq_cluster.migration import export_contents
    from hookmq_cluster.opened_log import opened_log

    target: Path = arguments.target
    part = _part_of(target)
    progress = ProgressLine("exporting")
    async with opened_log(arguments, create=False) as log:
        log.require()
        engine, names, runtime = log.engine, log.names, log.runtime
        await refuse_unfinished(engine, runtime, names)
        await refuse_live_nodes(engine, runtime, names)
        contents = await read_contents(engine, names, runtime)
        try:
            if arguments.dry_run:
                counts = await export_contents(
                    contents, runtime, None, arguments.state_lane, progress
                )
            else:
                _make_folder(part)
                async with _opened(opener_of(part), runtime) as store:
                    counts = await export_contents(
                        contents, runtime, store, arguments.state_lane, progress
                    )
                part.rename(target)
        finally:
            progress.end()
    print_counts(arguments, f"exported to {target}", counts.fields())
    return 0
