"""Make plugin objects from the entries of ``plugins:``: find and import each plugin's class, bind its configuration, and
construct the object.

Nothing is opened or started here. ``hookmq check`` performs exactly these steps.
"""

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from hookmq.config.binding import FAILED, ConfigBinder
from hookmq.config.diagnostics import NOWHERE, ConfigProblems, KeyPath
from hookmq.config.model import Config
from hookmq.config.validation import unknown_type
from hookmq.config.yaml_document import YamlNode
from hookmq.hooks.discovery import find, installed, load
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.hooks.instance import PluginEntry, PluginInstance
from hookmq.hooks.place import at
from hookmq.hooks.specs import HOOK_API, SPECS, HookKind
from hookmq.model.errors import ConfigError, PluginError, PluginNotFound
from hookmq.plugin import Context, Log, Plugin, no_log
from hookmq.server.plugin_listeners import ListenerTypes
from hookmq.server.settings import TYPES

Loaded = tuple[InstalledEntry, type[Plugin]]

FIRST_PARTY: Final = {
    "accounts": "accounts", "acl_file": "acl_file", "admin": "admin", "auth_http": "auth_http", "auth_jwt": "auth_jwt",
    "auth_password": "auth_password", "otel": "otel", "queues": "queues", "ratelimit": "ratelimit",
    "security_log": "security_log", "sinks": "sinks", "spark_sink": "spark_sink", "storage": "storage",
    "webhook": "webhook", "webhook_filter": "webhook",
}  # fmt: skip
"""This project's plugins and their folders below ``plugins/``. Messages suggest installing only these. Anyone could
register a package under a mistyped name, and its code would run in the broker."""

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CLAUSE: Final = re.compile(r"\s*(>=|<=|==|!=|>|<|~=)\s*(\d+(?:\.\d+)*)\s*")


def how_to_install(folder: str) -> str:
    """Return the command that installs one of this project's plugins, which are not on a package index yet."""
    return f"in a checkout: uv pip install ./plugins/{folder}"


def build(
    config: Config,
    among: Iterable[InstalledEntry] | None = None,
    log: Log = no_log,
    known: Sequence[PluginInstance] = (),
) -> tuple[PluginInstance, ...]:
    """Return a plugin object for each enabled entry, in order. `among` lists the plugins to choose from, by default
    all installed ones.

    An object in `known` is reused if it has the same id and ``use`` and accepts its new configuration. The caller must
    then call its `PluginInstance.apply`.

    Raises PluginError if a plugin is missing, cannot be imported, requires another `HOOK_API`, or cannot be
    constructed. Raises one ConfigError with all mistakes in the plugins' configurations. A missing or failing plugin
    with ``required: false`` is logged and left out, and so is a missing plugin with ``required: if_installed``. A
    configuration mistake always raises an error. So does the failure of a plugin that guards the running broker (see
    `guards`).
    """
    offered = tuple(installed() if among is None else among)
    problems = ConfigProblems()
    prepared: list[tuple[int, PluginEntry, InstalledEntry, type[Plugin], Any]] = []
    for index, entry in config.active:
        try:
            found, kind = loaded(entry, offered)
        except PluginError as error:
            missing = isinstance(error, PluginNotFound)
            if entry.required is True or (entry.required and not missing) or guards(entry, known):
                raise
            log("warning", "plugin.skipped", plugin=entry.id, error=str(error))
            continue
        prepared.append((index, entry, found, kind, bound(config, index, kind, problems)))
    problems.check()
    instances = []
    for index, entry, found, kind, value in prepared:
        located = partial(_located, config, index)
        kept = _taken_over(known, entry, kind, value, located)
        if kept is not None:
            instances.append(kept)
            continue
        try:
            instances.append(_construct(entry, found, kind, value, log, located))
        except PluginError as error:
            if entry.required or guards(entry, known):
                raise
            log("warning", "plugin.skipped", plugin=entry.id, error=str(error))
    return tuple(instances)


GUARDS: Final = (
    *(name for name, spec in SPECS.items() if spec.kind in (HookKind.DECIDE, HookKind.TRANSFORM)),
    "provide_rate_limiter",
)
"""Hooks that can refuse, change or limit something."""


def guards(entry: PluginEntry, known: Iterable[PluginInstance]) -> bool:
    """Return whether a running plugin with the same id as `entry` can deny, change or limit anything. If so, a reload
    must not continue without that plugin.
    """
    return any(
        one.id == entry.id
        and not one.disabled
        and any(hasattr(one.plugin, name) for name in GUARDS)
        for one in known
    )


def not_loaded(config: Config, index: int, error: PluginError) -> ConfigError:
    """Turn an error that `loaded` raised for the plugin entry at `index` into a ConfigError with the entry's location. If
    the plugin's name is a secret, leave it out.
    """
    path: KeyPath = ("plugins", index)
    node = config.origin.nodes.get((*path, "use")) if config.origin else None
    secret = node is not None and node.secret
    return config.error_at(path, "the plugin cannot be used" if secret else error.message)


def loaded(entry: PluginEntry, offered: Sequence[InstalledEntry]) -> Loaded:
    """Return a plugin's class. Raises PluginError, or PluginNotFound with the name of a similar plugin."""
    try:
        found = find(entry.use, entry.id, offered)
    except PluginNotFound:
        names = {one.name for one in offered}
        message = f"no plugin named {entry.use!r} is installed"
        close = get_close_matches(entry.use, names | FIRST_PARTY.keys(), 1, 0.6)
        if close:
            name = close[0]
            lacking = f" ({how_to_install(FIRST_PARTY[name])})" if name not in names else ""
            message += lacking if name == entry.use else f"; did you mean {name!r}?{lacking}"
        else:
            message += "; `hookmq plugins --installed` lists those that are"
        raise PluginNotFound(entry.id, message) from None
    kind = load(found, entry.id)
    if not accepts(kind.requires_api, HOOK_API):
        raise PluginError(
            entry.id,
            f"{found.distribution} {found.version} requires plugin API {kind.requires_api}; "
            f"this HookMQ has {HOOK_API}",
        )
    return found, kind


def accepts(clauses: str, version: str) -> bool:
    """Return whether `version` satisfies all `clauses`, such as ``>=1.0,<2``. Return False if one
    cannot be parsed.
    """
    have = _numbers(version)
    for clause in filter(None, map(str.strip, clauses.split(","))):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            return False
        want = _numbers(match[2])
        if match[1] == "~=":
            # compatible release: all given numbers except the last must match
            fixed = match[2].count(".")
            good = have >= want and have[:fixed] == want[:fixed]
        else:
            good = _COMPARE[match[1]](have, want)
        if not good:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, padded so that 1 equals 1.0."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    return tuple((numbers + [0] * 4)[:4])


def effective(config: Config, among: Iterable[InstalledEntry] | None = None) -> Config:
    """Return `config` for display, with each plugin's configuration bound to its `Config`, including defaults.

    The configuration of a plugin remains as written if the plugin is not installed, or if its `Config` validates itself.
    Raises ConfigError.
    """
    offered = tuple(installed() if among is None else among)
    problems = ConfigProblems()
    entries = list(config.plugins)
    nodes: dict[KeyPath, YamlNode] = dict(config.origin.nodes) if config.origin else {}
    for index, entry in config.active:
        try:
            _, kind = loaded(entry, offered)
        except PluginError:
            continue
        if dataclasses.is_dataclass(kind.Config):
            value = bound(config, index, kind, problems, nodes)
            entries[index] = dataclasses.replace(entry, config=value)
    problems.check()
    origin = dataclasses.replace(config.origin, nodes=nodes) if config.origin else None
    return dataclasses.replace(config, plugins=tuple(entries), origin=origin)


def bound(
    config: Config,
    index: int,
    kind: type[Plugin],
    problems: ConfigProblems,
    nodes: dict[KeyPath, YamlNode] | None = None,
) -> Any:
    """Return a plugin's configuration as its `Config`, or None if the plugin has none. Return
    FAILED after a problem.

    Records mistakes in `problems`, and the bound values by path in `nodes`. Raises PluginError if
    `Config` has a type that cannot be bound.
    """
    entry = config.plugins[index]
    path: KeyPath = ("plugins", index, "config")
    node = _config_node(config, index)
    if kind.Config is None:
        if isinstance(node.value, dict) and node.value:
            key = next(iter(node.value))
            place = node.keys.get(key, node.place)
            problems.add(place, (*path, key), f"the plugin {entry.use!r} has no settings")
            return FAILED
        return None
    binder = config.origin.binder(problems) if config.origin else ConfigBinder(problems)
    try:
        value = binder.bind(node, kind.Config, path)
    except (TypeError, NameError) as error:
        raise PluginError(entry.id, f"its Config cannot be bound: {error}") from error
    if nodes is not None:
        nodes.update(binder.nodes)
    return value


def _config_node(config: Config, index: int) -> YamlNode:
    """Return the node of an entry's ``config:``. If a program passed the values in, make a node from them."""
    if config.origin is None:
        return as_node(config.plugins[index].config)
    entry = config.origin.document.at(("plugins", index))
    found = entry.value.get("config") if isinstance(entry.value, dict) else None
    return found or YamlNode({}, entry.place)


def as_node(value: Any) -> YamlNode:
    """Return a node without a location, for a value that does not come from a file."""
    if isinstance(value, dict | MappingProxyType):
        return YamlNode({str(key): as_node(child) for key, child in value.items()}, NOWHERE)
    if isinstance(value, list | tuple):
        return YamlNode([as_node(child) for child in value], NOWHERE)
    return YamlNode(value, NOWHERE)


def _located(config: Config, index: int, error: ConfigError) -> PluginError:
    """Add the location of the key to an error that a plugin raised about its configuration."""
    if error.path:
        path = ("plugins", index, "config", *error.path)
        error = config.error_at(path, error.message, error.hint)
    return PluginError(config.plugins[index].id, str(error))


def _taken_over(
    known: Sequence[PluginInstance],
    entry: PluginEntry,
    kind: type[Plugin],
    value: Any,
    located: Callable[[ConfigError], PluginError],
) -> PluginInstance | None:
    for old in known:
        if old.id != entry.id or old.entry.use != entry.use or type(old.plugin) is not kind:
            continue
        apply = None
        if old.plugin.config != value:
            try:
                apply = old.plugin.reconfigure(value)
            except ConfigError as error:
                raise located(error) from error
            except (Exception, SystemExit) as error:
                raise PluginError(entry.id, f"reconfigure failed: {error!r}{at(error)}") from error
            if apply is None:
                return None
        kept = old.with_entry(entry)
        kept.apply = apply
        return kept
    return None


def _construct(
    entry: PluginEntry,
    found: InstalledEntry,
    kind: type[Plugin],
    value: Any,
    log: Log,
    located: Callable[[ConfigError], PluginError],
) -> PluginInstance:
    context = Context(entry.id, entry.use, found.version, log)
    try:
        plugin = kind(value, context)
    except PluginError:
        raise
    except ConfigError as error:
        raise located(error) from error
    except (Exception, SystemExit) as error:  # a plugin that exits must not end the broker
        raise PluginError(
            entry.id, f"constructing it failed: {type(error).__name__}: {error}{at(error)}"
        ) from error
    return PluginInstance(entry, plugin, found.distribution, found.version)


def check_types(config: Config, types: ListenerTypes) -> None:
    """Raise ConfigError for a listener that has an unknown type, or settings that its plugin refuses."""
    known = [*TYPES, *types.found]
    for index, listener in enumerate(config.listeners):
        if listener.type not in known:
            path: KeyPath = ("listeners", index, "type")
            node = config.origin.nodes.get(path) if config.origin else None
            raise config.error_at(path, *unknown_type(listener.type, known, node))
        check = types.found[listener.type][2] if listener.type in types.found else None
        if check is not None:
            try:
                check(listener)
            except ConfigError as error:
                path = ("listeners", index, "settings")
                raise config.error_at(path, error.message, error.hint) from None
