"""The `storage` plugin: its settings and hooks."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import get_args

from hookmq.plugin import (
    BrokerHandle,
    ConfigError,
    Context,
    MetricRegistry,
    Plugin,
    Runtime,
    Size,
    Store,
    hookimpl,
    setting,
)
from hookmq.storage_api import MemoryStore
from hookmq_toolkit import backups, stores
from hookmq_toolkit.state_folder import default_folder

from hookmq_storage.backup import BackupJob
from hookmq_storage.database import Durability, Limits
from hookmq_storage.folder import CURE, DATABASE
from hookmq_storage.store import SQLiteStore


@dataclass(frozen=True)
class StorageConfig:
    """Where to store the broker's state, and how durable acknowledged messages are."""

    path: Path = field(
        default_factory=partial(default_folder, "storage", cure=CURE),
        metadata={"help": "folder of the database; created if missing"},
    )
    durability: Durability = setting(
        "group",
        "what an acknowledged message survives: memory (nothing), os (the end of the process), group (a power cut)",
    )
    page_cache: Size = setting(32 << 20, "memory for cached database pages", minimum=1 << 20)
    wal_size: Size = setting(
        16 << 20, "size of the log from which it is moved into the database", minimum=1 << 16
    )
    max_size: Size = setting(
        0, "largest database; beyond it commits fail and the broker stops; 0 means no limit"
    )
    verify: bool = setting(True, "check every row at start, while loading")

    def __post_init__(self) -> None:
        """Check values set by a program. The configuration loader has already checked values from a file."""
        object.__setattr__(self, "path", Path(self.path))
        if self.durability not in get_args(Durability):
            raise ConfigError(f"durability: {self.durability!r} is not one of memory, os, group")


def open_store(config: StorageConfig, runtime: Runtime) -> SQLiteStore:
    """Open the store in the configured folder. Raises StoreError."""
    limits = Limits(config.page_cache, config.wal_size, config.max_size)
    return SQLiteStore(config.path, runtime, config.durability, limits, config.verify)


class FolderOpener:
    """Implements `hookmq_toolkit.stores.StoreOpener`."""

    def __init__(self, config: StorageConfig) -> None:
        self._config = config

    @property
    def place(self) -> str:
        return f"the folder {self._config.path}"

    @property
    def exists(self) -> bool:
        return (self._config.path / DATABASE).exists()

    def open_store(self, runtime: Runtime) -> Store:
        return open_store(self._config, runtime)


class StoragePlugin(Plugin):
    """A plugin that stores sessions, queues and retained messages in SQLite."""

    Config = StorageConfig
    config: StorageConfig

    _store: SQLiteStore | None = None

    def __init__(self, config: StorageConfig, context: Context) -> None:
        super().__init__(config, context)
        self._backups = BackupJob(config.path, self.log)
        if config.durability != "memory":
            self.offered_services = {
                backups.SERVICE: self._backups,
                stores.SERVICE: FolderOpener(config),
            }

    @property
    def durability(self) -> Durability:
        """Return the configured durability of acknowledged messages."""
        return self.config.durability

    @property
    def folder(self) -> Path | None:
        """Return the store's folder, or None if nothing is stored on disk."""
        return None if self.durability == "memory" else self.config.path

    @hookimpl
    def provide_store(self, broker: BrokerHandle) -> Store:
        """Open the store. With ``durability: memory``, the folder is not used."""
        config = self.config
        if config.durability == "memory":
            if (config.path / DATABASE).exists():
                broker.log("warning", "storage.ignored", folder=str(config.path))
            return MemoryStore(broker.runtime.token(16))
        self._store = open_store(config, broker.runtime)
        self._backups.open(broker.runtime)
        return self._store

    @hookimpl
    async def on_shutdown(self) -> None:
        """End any running backup."""
        self._backups.close()

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of `hookmq_storage.metrics`."""
        from hookmq_storage.metrics import register

        register(registry, self.durability, lambda: self._store)
