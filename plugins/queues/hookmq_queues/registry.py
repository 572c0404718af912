"""Store queues that are not in the configuration. Each has a file, so the broker knows its journal before the store is
loaded.

The file is written before the queue accepts its first message, and marked before the queue is deleted. After a crash,
the broker therefore knows all queues and finishes each deletion.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError, StoreError
from hookmq_toolkit.durable_files import sync_folder, write_atomically

from hookmq_queues.config import NAME, QueueConfig

FOLDER: Final = ".declared"
"""The folder of the files. No queue can have this name."""
_SUFFIX: Final = ".json"
_VERSION: Final = 1
Maker = Literal["operator", "first_use"]


@dataclass(frozen=True)
class StoredQueue:
    """A queue that has a file. `settings` holds its configuration settings as JSON values, without the name."""

    config: QueueConfig
    settings: Mapping[str, Any]
    made_by: Maker


class Registry:
    """The queues' files in a folder. All methods block unless they say otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path / FOLDER
        self.queues: dict[str, StoredQueue] = {}
        """The queues that exist, by name. Change it only on the event loop."""

    def names(self) -> list[str]:
        """Return the names of all queues that have a file. Raises StoreError."""
        try:
            paths = sorted(self.folder.glob(f"*{_SUFFIX}")) if self.folder.is_dir() else []
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error
        return [one.name.removesuffix(_SUFFIX) for one in paths]

    def load(self, configured: set[str]) -> list[str]:
        """Read the files, and finish deletions that a crash interrupted. Files of queues that are also in the
        configuration are ignored. Return the names of those queues. Raises StoreError for a file that cannot be used.
        """
        self.queues.clear()
        ignored: list[str] = []
        known = {one.lower() for one in configured}
        for name in self.names():
            if name.lower() in known:
                ignored.append(name)
                continue
            known.add(name.lower())
            found = self._read(name)
            if found is None:
                self.erase(name)
            else:
                self.queues[name] = found
        return ignored

    def _read(self, name: str) -> StoredQueue | None:
        """Return a queue, or None if it is being deleted."""
        path = self._path(name)
        try:
            document = json.loads(path.read_text("utf-8"))
            if document["version"] != _VERSION or not NAME.fullmatch(name):
                raise ValueError("unknown version or name")
            if document["deleting"]:
                return None
            made_by, settings = document["made_by"], document["settings"]
            if made_by not in ("operator", "first_use"):
                raise ValueError("made_by")
            config = bind_values(QueueConfig, {**settings, "name": name})
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}") from error
        except ConfigError as error:
            raise StoreError(
                f"{path}: the settings of this queue are no longer valid: {error.message}"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is not the description of a queue: {error}") from error
        return StoredQueue(config, settings, made_by)

    def write(self, queue: StoredQueue, deleting: bool = False) -> None:
        """Write a queue's file so that it survives a power cut. Raises OSError."""
        document = {
            "version": _VERSION,
            "made_by": queue.made_by,
            "deleting": deleting,
            "settings": dict(queue.settings),
        }
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(self.path)
        write_atomically(self._path(queue.config.name), json.dumps(document, indent=1).encode())

    def erase(self, name: str) -> None:
        """Delete a queue's messages, and then its file. Raises StoreError."""
        try:
            if (self.path / name).is_dir():
                shutil.rmtree(self.path / name)
                sync_folder(self.path)
            self._path(name).unlink(missing_ok=True)
            sync_folder(self.folder)
        except OSError as error:
            raise StoreError(f"{self.path / name}: {error.strerror or error}") from error

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"
