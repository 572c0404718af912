"""The whole configuration: its structure, and functions that read it."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any, Final, Literal

from hookmq.config import overrides
from hookmq.config import yaml_document as document
from hookmq.config.binding import FAILED, ConfigBinder
from hookmq.config.diagnostics import NOWHERE, ConfigProblems, KeyPath
from hookmq.config.validation import check
from hookmq.config.yaml_document import YamlNode, settled
from hookmq.hooks.instance import PluginEntry
from hookmq.model.errors import ConfigError
from hookmq.model.settings import (
    AuthSettings,
    AuthzSettings,
    BrokerSettings,
    SessionSettings,
    Settings,
    setting,
)
from hookmq.server.files import open_regular, shown_path
from hookmq.server.settings import ListenerSettings

DEFAULT_SOURCE: Final = "built-in default"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``log:`` what is logged, and in which format."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "lowest severity logged")
    format: Literal["auto", "text", "json"] = setting(
        "auto", "text, json (one object per line), or auto: text on a terminal, else json"
    )


@dataclass(frozen=True, slots=True, eq=False)
class ConfigOrigin:
    """Where a configuration came from: the document with all overrides, the node of each value that was set (by path),
    and the environment and folder with which to resolve indirections.
    """

    source: str
    document: YamlNode
    nodes: Mapping[KeyPath, YamlNode]
    environ: Mapping[str, str]
    folder: FilePath

    def binder(self, problems: ConfigProblems) -> ConfigBinder:
        """Return a binder for one part of the document, such as a plugin's ``config:``."""
        return ConfigBinder(problems, self.environ, self.folder)


@dataclass(frozen=True, slots=True)
class Config:
    """A valid configuration. Each plugin's ``config:`` is bound later, when the plugins are built."""

    version: Literal[1] = field(metadata={"help": "the version of this format: 1"})
    listeners: tuple[ListenerSettings, ...] = field(
        metadata={"help": "the addresses where clients connect"}
    )
    broker: BrokerSettings = BrokerSettings()
    session: SessionSettings = SessionSettings()
    auth: AuthSettings = AuthSettings()
    authz: AuthzSettings = AuthzSettings()
    plugins: tuple[PluginEntry, ...] = field(
        default=(), metadata={"help": "the plugins, called in this order"}
    )
    log: LogSettings = LogSettings()
    loop: Literal["auto", "asyncio", "uvloop"] = setting(
        "auto", "event loop; auto is uvloop if it is installed"
    )
    origin: ConfigOrigin | None = field(
        default=None, compare=False, repr=False, metadata={"bind": False}
    )

    @property
    def settings(self) -> Settings:
        """The settings for the core."""
        return Settings(self.broker, self.session, self.auth, self.authz)

    @property
    def source(self) -> str:
        """The name of the configuration file, for messages."""
        return self.origin.source if self.origin else ""

    @property
    def active(self) -> tuple[tuple[int, PluginEntry], ...]:
        """The enabled plugin entries, each with its position in ``plugins:``."""
        return tuple((i, entry) for i, entry in enumerate(self.plugins) if entry.enabled)

    def error_at(self, path: KeyPath, message: str, hint: str = "") -> ConfigError:
        """Return a `ConfigError` that points to `path`. If `path` was not set, use the nearest enclosing value."""
        problems = ConfigProblems()
        node = self.origin.document.at(path) if self.origin else YamlNode(None, NOWHERE)
        problems.add(node.place, path, message, hint)
        return problems.errors[0]


def load(
    path: str | os.PathLike[str],
    options: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read the configuration file `path`, and apply the overrides in `environ` and `options`. Blocks while it reads
    files.

    `environ` defaults to the process's environment. `options` have the form ``KEY=VALUE``, as for ``-o``. Raises
    one ConfigError with every mistake.
    """
    try:
        with open_regular(FilePath(path)) as file:
            data = file.read(document.MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            (error.strerror or str(error)).lower(),
            source=shown_path(path),
            hint="`hookmq config init` writes one" if isinstance(error, FileNotFoundError) else "",
        ) from None
    text = document.decode(data, os.fspath(path))
    return loads(text, os.fspath(path), options, environ, folder=FilePath(path).parent)


def loads(
    text: str,
    source: str = "<string>",
    options: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] = ".",
) -> Config:
    """Read the configuration from `text`, in the same way as `load`. ``$file`` is relative to `folder`."""
    variables = os.environ if environ is None else environ
    problems = ConfigProblems()
    root = document.parse(text, source, problems)
    if not isinstance(root.value, dict):
        problems.add(root.place, (), "expected a mapping of keys such as `version: 1`")
        problems.check()
    changes = overrides.from_environ(variables) + overrides.from_options(options, problems)
    overrides.apply(root, changes, problems)
    return bound_config(root, source, variables, folder, problems)


def bound_config(
    root: YamlNode,
    source: str,
    environ: Mapping[str, str],
    folder: str | os.PathLike[str],
    problems: ConfigProblems,
) -> Config:
    """Bind and check the document `root`. Raises one ConfigError with every mistake, including those in `problems`."""
    binder = ConfigBinder(problems, environ, folder)
    config: Any = binder.bind(root, Config)
    check(settled(root, binder.nodes), problems)
    problems.check()
    assert config is not FAILED
    origin = ConfigOrigin(source, root, binder.nodes, environ, FilePath(folder))
    object.__setattr__(config, "origin", origin)
    result: Config = config
    return result


def default_text() -> str:
    """Return the default configuration with its comments, as ``hookmq config init`` writes it."""
    return files("hookmq.config").joinpath("default.yaml").read_text("utf-8")


def default_config(options: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """Return the configuration for running without a file. It listens only on loopback, and allows everything. Raises
    ConfigError for an invalid override."""
    return loads(default_text(), DEFAULT_SOURCE, options, environ)
