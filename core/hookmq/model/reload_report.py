"""The report of a configuration reload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that differs. `old` and `new` are text without secrets; ``-`` means that the setting is absent."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The changes that a reload applies, and those that need a restart."""

    applied: tuple[SettingChange, ...] = ()
    restart: tuple[SettingChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.applied or self.restart)

    def fields(self) -> dict[str, list[str]]:
        """Return the report as fields for a log event."""
        return {
            "applied": [str(change) for change in self.applied],
            "needs_restart": [str(change) for change in self.restart],
        }


@dataclass(frozen=True, slots=True)
class ConfigMistake:
    """A mistake in a configuration. `line` and `column` start at 1; 0 means that the location is unknown."""

    message: str
    line: int = 0
    column: int = 0
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ConfigCheck:
    """The result of a check: all mistakes, or the changes that a reload would make. Secrets are masked."""

    mistakes: tuple[ConfigMistake, ...] = ()
    changes: ReloadReport | None = None


ReloadDone = Callable[[ReloadReport | None, BaseException | None], Any]
"""Called when a reload has ended, with (report, None) or (None, error)."""
Reloader = Callable[[ReloadDone], Any]
"""Starts a reload."""
