"""From the entries of ``plugins:`` to plugin objects: found, imported, told their configuration, constructed.

Nothing is opened or started here; ``hookmq check`` does exactly this.
"""

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from hookmq.config.binder import FAILED, Binder
from hookmq.config.document import Node
from hookmq.config.model import Config
from hookmq.config.problems import NOWHERE, Path, Problems
from hookmq.errors import ConfigError, PluginError, PluginNotFound
from hookmq.hooks.discovery import Installed, find, installed, load
from hookmq.hooks.entry import PluginEntry, PluginInstance
from hookmq.hooks.place import at
from hookmq.hooks.specs import HOOK_API, SPECS, Kind
from hookmq.plugin import Context, Log, Plugin, no_log

Loaded = tuple[Installed, type[Plugin]]

FIRST_PARTY: Final = {
    "acl_file": "acl_file", "auth_http": "auth_http", "auth_jwt": "auth_jwt", "auth_password": "auth_password",
    "ratelimit": "ratelimit", "spark_sink": "spark_sink", "storage": "storage", "webhook": "webhook",
    "webhook_filter": "webhook",
}  # fmt: skip
"""Plugins of this project and their folders below ``plugins/``. A message never tells to install anything else: whoever
registers a name that was only mistyped would run code in the broker."""

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CLAUSE: Final = re.compile(r"\s*(>=|<=|==|!=|>|<|~=)\s*(\d+(?:\.\d+)*)\s*")


def how_to_install(folder: str) -> str:
    """Return the command that installs a plugin of this project. No package index has it yet."""
    return f"in a checkout: uv pip install ./plugins/{folder}"


def build(
    config: Config,
    among: Iterable[Installed] | None = None,
    log: Log = no_log,
    known: Sequence[PluginInstance] = (),
) -> tuple[PluginInstance, ...]:
    """A plugin object for every entry that is enabled, in their order. `among` are the plugins to choose from (the
    installed ones by default). An object of `known` is taken over where its entry's ``use`` and id are the same, and its
    config is, too, or it can go on with another one: `PluginInstance.apply` is then to be called.

    Raises PluginError for a plugin that is missing, cannot be imported, wants another `HOOK_API` or fails when it is
    constructed; ConfigError, with every mistake in it, for what a plugin's own configuration says wrong. A plugin with
    ``required: false`` that is missing or fails is left out, and logged; so is one with ``if_installed`` that is missing,
    and only that: one that is there and fails must not pass unseen. A mistake in its configuration is not forgiven, and
    neither is a failure of a plugin that guards the running broker (see `guards`).
    """
    offered = tuple(installed() if among is None else among)
    problems = Problems()
    prepared: list[tuple[int, PluginEntry, Installed, type[Plugin], Any]] = []
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
    *(name for name, spec in SPECS.items() if spec.kind in (Kind.DECIDE, Kind.TRANSFORM)),
    "provide_meter",
)
"""Hooks that refuse, change or limit something."""


def guards(entry: PluginEntry, known: Iterable[PluginInstance]) -> bool:
    """Whether a running plugin with the entry's id decides, changes or limits anything: a reload must not go on without
    it."""
    return any(
        one.id == entry.id
        and not one.disabled
        and any(hasattr(one.plugin, name) for name in GUARDS)
        for one in known
    )


def loaded(entry: PluginEntry, offered: Sequence[Installed]) -> Loaded:
    """Return the plugin's class. Raises PluginError; PluginNotFound names the plugin that may be meant."""
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
            f"{found.distribution} {found.version} works with plugin API {kind.requires_api}, "
            f"this HookMQ has {HOOK_API}",
        )
    return found, kind


def accepts(clauses: str, version: str) -> bool:
    """Whether `version` fulfils every one of `clauses`, such as ``>=1.0,<2``. What cannot be read is not fulfilled."""
    have = _numbers(version)
    for clause in filter(None, map(str.strip, clauses.split(","))):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            return False
        want = _numbers(match[2])
        if match[1] == "~=":
            # compatible: all but the last of the numbers that were given stay
            fixed = match[2].count(".")
            good = have >= want and have[:fixed] == want[:fixed]
        else:
            good = _COMPARE[match[1]](have, want)
        if not good:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """A version's numbers, filled up so that 1 and 1.0 are equal."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    return tuple((numbers + [0] * 4)[:4])


def effective(config: Config, among: Iterable[Installed] | None = None) -> Config:
    """`config` with every plugin's own configuration as its `Config`, defaults included, to be shown. What belongs to a
    plugin that is not installed, or that validates itself, stays as it was written. Raises ConfigError for mistakes."""
    offered = tuple(installed() if among is None else among)
    problems = Problems()
    entries = list(config.plugins)
    nodes: dict[Path, Node] = dict(config.origin.nodes) if config.origin else {}
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
    problems: Problems,
    nodes: dict[Path, Node] | None = None,
) -> Any:
    """The plugin's own configuration as its `Config`, each mistake noted at its line and column; None for a plugin that
    has nothing to configure. FAILED after a problem. What was bound goes to `nodes`, by path. Raises PluginError when
    `Config` is no type to bind to."""
    entry = config.plugins[index]
    path: Path = ("plugins", index, "config")
    node = _config_node(config, index)
    if kind.Config is None:
        if isinstance(node.value, dict) and node.value:
            key = next(iter(node.value))
            place = node.keys.get(key, node.place)
            problems.add(place, (*path, key), f"the plugin {entry.use!r} has nothing to configure")
            return FAILED
        return None
    binder = config.origin.binder(problems) if config.origin else Binder(problems)
    try:
        value = binder.bind(node, kind.Config, path)
    except (TypeError, NameError) as error:
        raise PluginError(entry.id, f"its Config cannot be bound: {error}") from error
    if nodes is not None:
        nodes.update(binder.nodes)
    return value


def _config_node(config: Config, index: int) -> Node:
    """The node of an entry's ``config:``, or one made of the entry when it came by no document."""
    if config.origin is None:
        return _as_node(config.plugins[index].config)
    entry = config.origin.document.at(("plugins", index))
    found = entry.value.get("config") if isinstance(entry.value, dict) else None
    return found or Node({}, entry.place)


def _as_node(value: Any) -> Node:
    if isinstance(value, dict | MappingProxyType):
        return Node({str(key): _as_node(child) for key, child in value.items()}, NOWHERE)
    if isinstance(value, list | tuple):
        return Node([_as_node(child) for child in value], NOWHERE)
    return Node(value, NOWHERE)


def _located(config: Config, index: int, error: ConfigError) -> PluginError:
    """Return what a plugin says of its configuration, with the place of the key that it names."""
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
            except Exception as error:
                raise PluginError(entry.id, f"reconfigure failed: {error!r}{at(error)}") from error
            if apply is None:
                return None
        kept = old.with_entry(entry)
        kept.apply = apply
        return kept
    return None


def _construct(
    entry: PluginEntry,
    found: Installed,
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
    except Exception as error:
        raise PluginError(
            entry.id, f"constructing it failed: {type(error).__name__}: {error}{at(error)}"
        ) from error
    return PluginInstance(entry, plugin, found.distribution, found.version)
