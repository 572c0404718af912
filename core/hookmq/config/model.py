"""The whole configuration: its shape, where it is read from, and what must hold between its parts."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any, Final, Literal

from hookmq.config import document, overrides
from hookmq.config.binder import FAILED, Binder
from hookmq.config.checks import check
from hookmq.config.document import Node, settled
from hookmq.config.problems import NOWHERE, Path, Problems
from hookmq.errors import ConfigError
from hookmq.files import open_regular, shown_path
from hookmq.hooks.entry import PluginEntry
from hookmq.server.settings import ListenerSettings
from hookmq.settings import (
    AuthSettings,
    AuthzSettings,
    BrokerSettings,
    SessionSettings,
    Settings,
    setting,
)

DEFAULT_SOURCE: Final = "built-in default"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``log:`` what is told, and in which form."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "least severity that is told"
    )
    format: Literal["auto", "text", "json"] = setting(
        "auto", "text, json lines, or auto: text on a terminal, else json"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where a configuration came from: the document with all overrides in it, the place and secrecy of every value that
    was given, by path, and what its indirections need."""

    source: str
    document: Node
    nodes: Mapping[Path, Node]
    environ: Mapping[str, str]
    folder: FilePath

    def binder(self, problems: Problems) -> Binder:
        """A binder for a part of the document, such as a plugin's ``config:``."""
        return Binder(problems, self.environ, self.folder)


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration that was found right, plugins' own parts excepted: those are bound when the plugins are built."""

    version: Literal[1] = field(metadata={"help": "the version of this format, 1"})
    listeners: tuple[ListenerSettings, ...] = field(metadata={"help": "where clients come in"})
    broker: BrokerSettings = BrokerSettings()
    session: SessionSettings = SessionSettings()
    auth: AuthSettings = AuthSettings()
    authz: AuthzSettings = AuthzSettings()
    plugins: tuple[PluginEntry, ...] = field(
        default=(), metadata={"help": "what decides, changes and watches; called in this order"}
    )
    log: LogSettings = LogSettings()
    loop: Literal["auto", "asyncio", "uvloop"] = setting(
        "auto", "event loop; auto is uvloop where it is installed"
    )
    origin: Origin | None = field(default=None, compare=False, repr=False, metadata={"bind": False})

    @property
    def settings(self) -> Settings:
        """The core's part."""
        return Settings(self.broker, self.session, self.auth, self.authz)

    @property
    def source(self) -> str:
        """The file's name, for messages."""
        return self.origin.source if self.origin else ""

    @property
    def active(self) -> tuple[tuple[int, PluginEntry], ...]:
        """The plugin entries that are not switched off, each with its position in the list."""
        return tuple((i, entry) for i, entry in enumerate(self.plugins) if entry.enabled)

    def error_at(self, path: Path, message: str, hint: str = "") -> ConfigError:
        """A `ConfigError` at the place of the value that `path` leads to, or of the nearest around it."""
        problems = Problems()
        node = self.origin.document.at(path) if self.origin else Node(None, NOWHERE)
        problems.add(node.place, path, message, hint)
        return problems.errors[0]


def load(
    path: str | os.PathLike[str],
    options: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration in the file `path` with the overrides of `environ` (the process's own by default) and of
    `options` (``KEY=VALUE``, as ``-o``). Blocks on files. Raises ConfigError that tells every mistake."""
    try:
        with open_regular(FilePath(path)) as file:
            data = file.read(document.MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            (error.strerror or str(error)).lower(),
            source=shown_path(path),
            hint="`hookmq config init` writes one" if isinstance(error, FileNotFoundError) else "",
        ) from None
    source = os.fspath(path)
    text = document.decode(data, source)
    return loads(text, source, options, environ, folder=FilePath(path).parent)


def loads(
    text: str,
    source: str = "<string>",
    options: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] = ".",
) -> Config:
    """As `load`, of a text. ``$file`` is sought in `folder`."""
    variables = os.environ if environ is None else environ
    problems = Problems()
    root = document.parse(text, source, problems)
    if not isinstance(root.value, dict):
        problems.add(root.place, (), "expected a mapping of keys such as `version: 1`")
        problems.check()
    changes = overrides.from_environ(variables) + overrides.from_options(options, problems)
    overrides.apply(root, changes, problems)
    binder = Binder(problems, variables, folder)
    config: Any = binder.bind(root, Config)
    check(settled(root, binder.nodes), problems)
    problems.check()
    assert config is not FAILED
    origin = Origin(source, root, binder.nodes, variables, FilePath(folder))
    object.__setattr__(config, "origin", origin)
    result: Config = config
    return result


def default_text() -> str:
    """The default configuration with its comments, as ``hookmq config init`` writes it."""
    return files("hookmq.config").joinpath("default.yaml").read_text("utf-8")


def default_config(options: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """What holds without a file: loopback only, everybody may do everything, no plugins. Raises ConfigError for a wrong
    override."""
    return loads(default_text(), DEFAULT_SOURCE, options, environ)
