"""Create and check the folder of an outbox.

A new folder survives a power cut. The folder must not contain other programs' files.
"""

import errno
from pathlib import Path
from typing import Final

from hookmq_toolkit import state_folder
from hookmq_toolkit.durable_files import write_atomically
from hookmq_toolkit.sink_control import CONTROL
from hookmq_toolkit.state_folder import prepare_folder, refuse_foreign

CURSOR: Final = "cursor.json"
DONE: Final = "done-"
"""Beginning of the names of files that a generation number follows."""
GAPS: Final = "gaps.json"
SENDER_LOCK: Final = "sender.lock"
LOG: Final = "log"
DEAD: Final = "dead"
RESERVE: Final = "reserve"
RESERVED: Final = 64 << 10
"""Bytes set aside for use when the disk is full."""
_OURS: Final = frozenset(
    {
        CURSOR, CURSOR + ".new", CONTROL, CONTROL + ".new", GAPS, GAPS + ".new", LOG, DEAD, RESERVE, SENDER_LOCK,
    }
)  # fmt: skip
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def default_folder(plugin_id: str) -> Path:
    """Return the default outbox folder for a plugin id."""
    return state_folder.default_folder("webhook", plugin_id)


def prepare(folder: Path, known: frozenset[str] = _OURS, below: tuple[str, ...] = (LOG,)) -> None:
    """Create `folder` and its subfolders `below` durably, if they are missing. This call blocks.

    Raises StoreError if a folder cannot be created, or if `folder` contains files that are not `known`.
    """
    names = prepare_folder(folder)
    refuse_foreign(folder, names, lambda name: name in known or name.startswith(DONE))
    for name in below:
        prepare_folder(folder / name)


def reserve(folder: Path) -> None:
    """Reserve `RESERVED` bytes on the disk, if there is enough space."""
    path = folder / RESERVE
    try:
        if not path.exists():
            path.write_bytes(bytes(RESERVED))
    except OSError:
        path.unlink(missing_ok=True)


def write_at_any_cost(path: Path, data: bytes) -> None:
    """Write a file atomically, using the reserved space if the disk is full. Raises OSError.

    The cursor must be written even on a full disk, because only then can space be freed.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        reserved = path.with_name(RESERVE)
        if error.errno not in _FULL or not reserved.exists():
            raise
        reserved.unlink()
        write_atomically(path, data)
