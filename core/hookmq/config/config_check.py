"""Check configuration documents against the configuration in force, without applying them."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from hookmq.config.diagnostics import ConfigErrors, ConfigProblems
from hookmq.config.diff import compare
from hookmq.config.hot_reload import FIXED
from hookmq.config.model import Config
from hookmq.config.plugins import bound, loaded, not_loaded
from hookmq.hooks.discovery import installed
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.model.errors import ConfigError, PluginError
from hookmq.model.reload_report import ConfigCheck, ConfigMistake, ReloadReport, SettingChange
from hookmq.mqtt.errors import HookMQError
from hookmq.plugin import Plugin

MOST: Final = 200
"""Maximum number of mistakes to list."""


class ConfigChecker:
    """Checks one document at a time. `read` binds a document to a configuration, and `running` returns the one in force.

    Call this object in a thread, because it may block: `read` opens ``$file`` files, and plugins check their settings.
    """

    def __init__(self, read: Callable[[str], Config], running: Callable[[], Config]) -> None:
        self._read = read
        self._running = running
        self._lock = threading.Lock()

    def __call__(self, text: str) -> ConfigCheck:
        """Return the result for the document `text`. Raises ConfigError if another check is still running."""
        if not self._lock.acquire(blocking=False):
            # Checks that hang would otherwise occupy all threads of the broker.
            raise ConfigError("another check is running")
        try:
            return check_document(text, self._read, self._running())
        finally:
            self._lock.release()


def check_document(text: str, read: Callable[[str], Config], running: Config) -> ConfigCheck:
    """Return the mistakes in `text`, or its differences from `running`. Blocks.

    Checks all settings, including plugins' settings, but constructs no plugins and opens no certificates.
    """
    try:
        new = read(text)
        problems = ConfigProblems()
        offered = tuple(installed())
        kinds: dict[str, type[Plugin]] = {}
        for index, entry in new.active:
            try:
                _, kind = loaded(entry, offered)
            except PluginError as error:
                if entry.required is True:
                    problems.errors.append(not_loaded(new, index, error))
                continue
            kinds[entry.id] = kind
            try:
                bound(new, index, kind, problems)
            except Exception as error:  # its text may contain the value of a secret
                message = f"the plugin fails to check its settings: {type(error).__name__}"
                problems.errors.append(new.error_at(("plugins", index), message))
        problems.check()
    except HookMQError as error:
        return ConfigCheck(_mistakes(error))
    fixed = _fixed(_kinds(running, offered)) | _fixed(kinds)
    return ConfigCheck(changes=_after_restart(compare(running, new), fixed))


def _kinds(config: Config, offered: tuple[InstalledEntry, ...]) -> dict[str, type[Plugin]]:
    """Return the plugins' classes by id, leaving out those that cannot be imported."""
    found: dict[str, type[Plugin]] = {}
    for _, entry in config.active:
        try:
            found[entry.id] = loaded(entry, offered)[1]
        except PluginError:
            continue
    return found


def _fixed(kinds: Mapping[str, type[Plugin]]) -> set[str]:
    """Return the ids of the plugins that cannot be added, removed or changed at run time."""
    return {
        name
        for name, kind in kinds.items()
        if kind.reconfigure is Plugin.reconfigure and any(hasattr(kind, hook) for hook in FIXED)
    }


def _after_restart(report: ReloadReport, fixed: Iterable[str]) -> ReloadReport:
    """Return a copy of `report` in which the changes to plugins in `fixed` need a restart."""
    places = tuple(f"plugins.{name}" for name in fixed)
    later = tuple(one for one in report.applied if _replaces(one, places))
    applied = tuple(one for one in report.applied if one not in later)
    return ReloadReport(applied, (*report.restart, *later))


def _replaces(change: SettingChange, places: tuple[str, ...]) -> bool:
    """Return whether `change` requires a new object for a plugin whose path is in `places`."""
    return any(
        change.path in (place, f"{place}.use", f"{place}.enabled", f"{place}.config")
        or change.path.startswith((f"{place}.config.", f"{place}.config["))
        for place in places
    )


def _mistakes(error: HookMQError) -> tuple[ConfigMistake, ...]:
    errors = error.errors if isinstance(error, ConfigErrors) else (error,)
    found = tuple(
        ConfigMistake(one.message, one.line, one.column, one.hint)
        if isinstance(one, ConfigError)
        else ConfigMistake(str(one))
        for one in errors[:MOST]
    )
    left = len(errors) - len(found)
    return (*found, ConfigMistake(f"{left} further mistakes")) if left else found
