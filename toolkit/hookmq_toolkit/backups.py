"""A service for backing up the broker's store: one plugin provides it, and another can offer it to operators.

A plugin offers a `BackupMaker` in `Plugin.offered_services` under the name `SERVICE`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, runtime_checkable

SERVICE: Final = "backup"
"""The name of the service in `Plugin.offered_services`."""


class BackupError(Exception):
    """A backup cannot start, because another is running or the broker is stopping."""


@dataclass(frozen=True, slots=True)
class BackupStatus:
    """The latest backup since the broker started, finished or in progress.

    - `state`: ``none`` if there was no backup.
    - `target`: the new folder, or None.
    - `started_at`, `ended_at`: epoch seconds, or None.
    - `progress`: the fraction copied, from 0 to 1.
    - `bytes`: the size of a finished backup, otherwise 0.
    - `error`: why the backup failed; empty otherwise.
    """

    state: Literal["none", "running", "done", "failed"] = "none"
    target: Path | None = None
    started_at: float | None = None
    ended_at: float | None = None
    progress: float = 0.0
    bytes: int = 0
    error: str = ""


@runtime_checkable
class BackupMaker(Protocol):
    """Copies the broker's store while the broker is running. Call the methods only on the event loop."""

    def start(self, target: Path) -> None:
        """Start a backup to `target`, a new folder. Its parent folders are created. Returns at once.

        Raises BackupError. If the backup fails later, the folder is removed, and `status` names the reason.
        """

    def status(self) -> BackupStatus:
        """Return the progress or the result of the latest backup."""
