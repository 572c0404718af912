"""The plugin: its configuration, and what it adds to the broker."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from hookmq.plugin import BrokerHandle, ConfigError, Plugin, Size, hookimpl, setting
from hookmq.store import MemoryStore, Store

from hookmq_storage.database import Durability, Limits
from hookmq_storage.folder import DATABASE, default_folder
from hookmq_storage.store import SQLiteStore


@dataclass(frozen=True)
class StorageConfig:
    """Where the broker's state lies, and what an acknowledgement promises."""

    path: Path = field(
        default_factory=default_folder,
        metadata={"help": "folder of the database; made if it is not there"},
    )
    durability: Durability = setting(
        "group",
        "what PUBACK promises: memory (nothing), os (survives the end of the process), group (survives a power cut)",
    )
    page_cache: Size = setting(32 << 20, "memory for pages of the database", minimum=1 << 20)
    wal_size: Size = setting(
        16 << 20, "size of the log above which it is moved into the database", minimum=1 << 16
    )
    max_size: Size = setting(
        0, "largest database; beyond it commits fail and the broker stops; 0 for no limit"
    )
    verify: bool = setting(True, "look at every row at start, beside loading it")

    def __post_init__(self) -> None:
        """For whoever embeds it; a configuration's file is checked before."""
        object.__setattr__(self, "path", Path(self.path))
        if self.durability not in get_args(Durability):
            raise ConfigError(f"durability: {self.durability!r} is not memory, os or group")


class StoragePlugin(Plugin):
    """Sessions, queues and retained messages in SQLite."""

    Config = StorageConfig
    config: StorageConfig

    _store: SQLiteStore | None = None

    @property
    def durability(self) -> Durability:
        """What an acknowledgement promises."""
        return self.config.durability

    @property
    def folder(self) -> Path | None:
        """Where it keeps things; None where it keeps nothing."""
        return None if self.durability == "memory" else self.config.path

    @hookimpl
    def provide_store(self, broker: BrokerHandle) -> Store:
        """Opens the folder; with ``durability: memory`` it is left alone."""
        config = self.config
        if config.durability == "memory":
            if (config.path / DATABASE).exists():
                broker.log("warning", "storage.ignored", folder=str(config.path))
            return MemoryStore(broker.runtime.token(16))
        limits = Limits(config.page_cache, config.wal_size, config.max_size)
        self._store = SQLiteStore(
            config.path, broker.runtime, config.durability, limits, config.verify
        )
        return self._store

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        """Adds what `hookmq_storage.metrics` lists."""
        from hookmq_storage.metrics import register

        register(registry, self.durability, lambda: self._store)

    @staticmethod
    @hookimpl
    def register_cli(group: Any) -> None:
        """Adds ``hookmq storage``."""
        from hookmq_storage.cli import register

        register(group)
