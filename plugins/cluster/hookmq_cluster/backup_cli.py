"""``hookmq cluster backup|restore``."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hookmq.plugin import StoreError
from hookmq_toolkit.durable_files import replacing

from hookmq_cluster.command_parts import (
    STOP,
    ProgressLine,
    add_command,
    add_replace,
    print_counts,
)


def add_commands(commands: Any) -> None:
    """Add the subcommands for backups to `hookmq cluster`."""
    one = add_command(
        commands, "backup", backup, "Copy a cluster into one file",
        "Its nodes may be running. The copy shows the cluster at one moment.",
    )  # fmt: skip
    one.add_argument("target", type=Path, metavar="FILE", help="new file, with mode 0600")
    one = add_command(
        commands, "restore", restore, "Fill a cluster with the contents of a backup",
        f"{STOP} If the command was interrupted, repeat it.",
    )  # fmt: skip
    one.add_argument("source", type=Path, metavar="FILE", help="the backup")
    one.add_argument(
        "--dry-run",
        action="store_true",
        help="check the backup and the cluster, but change nothing",
    )
    add_replace(one)


@contextmanager
def _new_file(target: Path) -> Iterator[IO[bytes]]:
    """Yield a file that becomes `target` at the end."""
    with replacing(target.absolute()) as number, open(number, "wb", closefd=False) as file:
        yield file


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise StoreError(f"{target} exists already")


async def backup(arguments: argparse.Namespace) -> int:
    """Copy a cluster into one file."""
    from hookmq_cluster.backup import write_backup
    from hookmq_cluster.filling import refuse_unfinished
    from hookmq_cluster.opened_log import opened_log

    target: Path = arguments.target
    _refuse_existing(target)
    progress = ProgressLine("copying")
    async with opened_log(arguments, create=False) as log:
        log.require()
        await refuse_unfinished(log.engine, log.runtime, log.names)
        try:
            with _new_file(target) as file:
                counts = await write_backup(log.engine, log.names, log.runtime, file, progress)
        finally:
            progress.end()
    print_counts(arguments, f"copied to {target}", counts._asdict())
    return 0


async def restore(arguments: argparse.Namespace) -> int:
    """Fill a cluster with the contents of a backup."""
    from hookmq_cluster.backup import Backup
    from hookmq_cluster.backup_file import BackupReader
    from hookmq_cluster.log_writer import LogWriter
    from hookmq_cluster.migration import check_target
    from hookmq_cluster.opened_log import opened_log

    progress = ProgressLine("restoring")
    found = Backup(BackupReader(arguments.source))
    async with opened_log(arguments, create=not arguments.dry_run) as log:
        engine, names, runtime = log.engine, log.names, log.runtime
        if arguments.dry_run:
            await check_target(log.existing, names, runtime, arguments.replace)
        else:
            writer = LogWriter(engine, names, runtime, f"hookmq cluster restore {arguments.source}")
            try:
                await found.restore(writer, engine, names, runtime, arguments.replace, progress)
            finally:
                progress.end()
    print_counts(
        arguments,
        f"restored from {arguments.source} into cluster {names.cluster!r}",
        found.counts._asdict(),
    )
    return 0
