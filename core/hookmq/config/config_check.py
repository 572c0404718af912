"""Check a configuration document against the configuration in force, without applying it."""

from collections.abc import Callable

from hookmq.config.diagnostics import ConfigErrors, ConfigProblems
from hookmq.config.diff import compare
from hookmq.config.model import Config
from hookmq.config.plugins import bound, loaded, not_loaded
from hookmq.hooks.discovery import installed
from hookmq.model.errors import ConfigError, PluginError
from hookmq.model.reload_report import ConfigCheck, ConfigMistake
from hookmq.mqtt.errors import HookMQError


def check_document(text: str, read: Callable[[str], Config], running: Config) -> ConfigCheck:
    """Return the mistakes in `text`, or its differences from `running`. Blocks: `read` binds the document to a
    configuration, and may read the files of ``$file``.

    Checks all settings, also those of plugins, but constructs no plugin and opens no certificate.
    """
    try:
        new = read(text)
        problems = ConfigProblems()
        offered = tuple(installed())
        for index, entry in new.active:
            try:
                _, kind = loaded(entry, offered)
            except PluginError as error:
                if entry.required is True:
                    problems.errors.append(not_loaded(new, index, error))
                continue
            bound(new, index, kind, problems)
        problems.check()
    except HookMQError as error:
        return ConfigCheck(_mistakes(error))
    return ConfigCheck(changes=compare(running, new))


def _mistakes(error: HookMQError) -> tuple[ConfigMistake, ...]:
    errors = error.errors if isinstance(error, ConfigErrors) else (error,)
    return tuple(
        ConfigMistake(one.message, one.line, one.column, one.hint)
        if isinstance(one, ConfigError)
        else ConfigMistake(str(one))
        for one in errors
    )
