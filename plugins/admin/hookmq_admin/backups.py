"""Routes for backups of the broker's store. A plugin such as `storage` makes them; see `hookmq_toolkit.backups`."""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import BrokerHandle
from hookmq_toolkit.backups import SERVICE, BackupError, BackupMaker

from hookmq_admin.errors import ApiError
from hookmq_admin.schemas import ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

PREFIX: Final = "hookmq-"
"""The prefix of backup names."""


def maker_of(broker: BrokerHandle) -> BackupMaker:
    """Return the service of the first plugin that makes backups. Raises ApiError 409."""
    for found in broker.services(SERVICE).values():
        if isinstance(found, BackupMaker):
            return found
    raise ApiError(409, "backups need the plugin storage, which keeps nothing on disk here")


async def start(call: Call) -> Any:
    """Start a backup into a new folder below `backup_folder`."""
    config = call.services.config
    if not config.backup_folder:
        raise ApiError(409, "the setting backup_folder of the plugin is empty")
    maker = maker_of(call.broker)
    folder = _absolute(config.backup_folder)
    async with call.services.changing:  # two requests might count the same backups
        try:
            count = await asyncio.to_thread(_count, folder)
        except OSError as error:
            raise ApiError(409, f"backup_folder: {error.strerror or error}") from None
        if count >= config.max_backups:
            raise ApiError(
                409, f"{folder} contains {count} backups, which is the limit: move old ones away"
            )
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(call.broker.time()))
        target = await asyncio.to_thread(_new, folder / f"{PREFIX}{stamp}")
        try:
            maker.start(target)
        except BackupError as error:
            raise ApiError(409, str(error)) from None
    return _shown(maker)


def _absolute(folder: str) -> Path:
    """Return the absolute path. Users on other machines do not know the broker's working folder."""
    return Path(folder).absolute()


def _count(folder: Path) -> int:
    """Return the number of backups in `folder`, which may not exist yet."""
    try:
        return sum(one.name.startswith(PREFIX) for one in folder.iterdir())
    except FileNotFoundError:
        return 0


def _new(target: Path) -> Path:
    """Return `target`, or the first of ``TARGET-2``, ``TARGET-3`` and so on that does not exist."""
    number, found = 1, target
    while found.exists():
        number += 1
        found = target.with_name(f"{target.name}-{number}")
    return found


async def status(call: Call) -> Any:
    """Return the progress of the latest backup, or its result."""
    return _shown(maker_of(call.broker))


def _shown(maker: BackupMaker) -> dict[str, Any]:
    found = maker.status()
    return {
        "state": found.state,
        "target": None if found.target is None else str(found.target),
        "started_at": found.started_at,
        "ended_at": found.ended_at,
        "progress": found.progress,
        "bytes": found.bytes,
        "error": found.error,
    }


# fmt: off
ROUTES: Final = (
    Route("GET", "/backup", "getBackup", Role.ADMIN, "Get the progress or the result of the newest backup", status,
          ref("Backup"), errors=(409,)),
    Route("POST", "/backup", "startBackup", Role.ADMIN, "Begin a backup of the store", start, ref("Backup"),
          change=True, errors=(409,)),
)
# fmt: on
