"""From plugin objects to implementations: pluggy pairs methods with specifications, this puts them into the order of the
configuration and refuses what could go wrong later.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pluggy

from hookmq.errors import ConfigError, PluginError, ProtocolError
from hookmq.hooks.entry import HookOptions, PluginEntry, PluginInstance
from hookmq.hooks.specs import PROJECT, SPECS, BrokerHandle, Kind, Spec, Specs
from hookmq.plugin import Plugin
from hookmq.topics import SHARE_PREFIX, validate_filter
from hookmq.types import Action

ON_CLASS: Final = frozenset({"register_cli"})
"""Hooks that are called on a plugin's class, without an object."""
Registry = Mapping[str, tuple["Implementation", ...]]
"""Implementations by hook, each hook's in the order of the configuration."""


class Implementation(NamedTuple):
    """One hook of one plugin, as it was written. `arguments` are those it takes, in its order."""

    instance: PluginInstance
    spec: Spec
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    is_async: bool


def register(instances: Sequence[PluginInstance]) -> Registry:
    """Find what the plugins implement. Raises PluginError for a plugin that breaks the rules of hooks, ConfigError for an
    entry whose options do not fit."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Specs)
    order: dict[str, int] = {}
    by_id: dict[str, PluginInstance] = {}
    for index, instance in enumerate(instances):
        if instance.id in order:
            raise ConfigError(
                f"two plugins have the id {instance.id!r}", hint="give each an `id` of its own"
            )
        order[instance.id] = index
        by_id[instance.id] = instance
        _check_methods(manager, instance)
        try:
            manager.register(instance.plugin, instance.id)
            manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(instance.id, str(error)) from error
    registry: dict[str, tuple[Implementation, ...]] = {}
    for name, spec in SPECS.items():
        found: list[Implementation] = []
        for implemented in getattr(manager.hook, name).get_hookimpls():
            instance = by_id[implemented.plugin_name]
            if name in instance.plugin.idle_hooks:
                continue
            is_async = _is_async(instance.id, spec, implemented.function)
            found.append(
                Implementation(
                    instance, spec, implemented.function, tuple(implemented.argnames), is_async
                )
            )
        # pluggy's order is that of registration, last first; ours is that of the configuration.
        found.sort(key=lambda one: order[one.instance.id])
        registry[name] = tuple(found)
    for instance in instances:
        mine = {
            name
            for name, found in registry.items()
            if any(one.instance is instance for one in found)
        }
        _check_idle(instance)
        _check_timeouts(instance)
        _check_actions(instance, registry["authorize"])
        if instance.plugin.blocking and "on_deliver" in mine:
            raise PluginError(
                instance.id, "on_deliver must answer at once, so its plugin cannot be blocking"
            )
        _check_entry(instance.entry, mine)
    return registry


def adapt(
    function: Callable[..., Any], takes: Sequence[str], spec: Spec, broker: BrokerHandle | None
) -> Callable[..., Any]:
    """`function` made callable with the hook's arguments less `broker`: itself if that is what it takes, else a lambda
    that leaves out what it does not take and puts `broker` in."""
    if tuple(takes) == spec.given:
        return function
    text = f"lambda {', '.join(spec.given)}: function({', '.join(takes)})"
    # The names are those of `spec`, `register` saw to it; a compiled lambda costs half of any other way.
    adapted: Callable[..., Any] = eval(text, {"function": function, "broker": broker})
    return adapted


def _check_methods(manager: pluggy.PluginManager, instance: PluginInstance) -> None:
    plugin, plugin_id = instance.plugin, instance.id
    seen: dict[str, str] = {}
    for attribute in dir(plugin):
        options: Mapping[str, Any] | None = manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            found = inspect.getattr_static(plugin, attribute, None)
            if attribute in SPECS and (callable(found) or isinstance(found, classmethod)):
                raise PluginError(
                    plugin_id, f"{attribute} has the name of a hook but is not marked @hookimpl"
                )
            continue
        name = options.get("specname") or attribute
        spec = SPECS.get(name)
        if spec is None:
            hint = _nearest(name, SPECS)
            raise PluginError(plugin_id, f"there is no hook named {name}{hint}")
        if name in seen:
            raise PluginError(plugin_id, f"{seen[name]} and {attribute} both implement {name}")
        seen[name] = attribute
        for option in ("wrapper", "hookwrapper", "tryfirst", "trylast"):
            if options.get(option):
                raise PluginError(
                    plugin_id,
                    f"{attribute} is marked {option}=True; hooks have no wrappers, and their order is that of the"
                    " configuration",
                )
        if name in ON_CLASS:
            class_hook(plugin_id, type(plugin), name)
        _check_signature(plugin_id, spec, getattr(plugin, attribute))


def class_hook(plugin_id: str, kind: type[Plugin], name: str) -> Callable[..., Any] | None:
    """What a plugin's class has for a hook of `ON_CLASS`, to be called with all of the hook's arguments; None if nothing.
    Raises PluginError if it cannot be called without an object."""
    manager, spec = pluggy.PluginManager(PROJECT), SPECS[name]
    for attribute in dir(kind):
        found = inspect.getattr_static(kind, attribute)
        options = manager.parse_hookimpl_opts(kind, attribute)
        if attribute == name and options is None:
            raise PluginError(
                plugin_id,
                f"{name} has the name of a hook but is not marked @hookimpl",
            )
        if options is None or (options.get("specname") or attribute) != name:
            continue
        if not isinstance(found, staticmethod | classmethod):
            raise PluginError(
                plugin_id,
                f"{attribute} is called on the class, without a configuration: it must be a @staticmethod or a"
                " @classmethod",
            )
        function = getattr(kind, attribute)
        _check_signature(plugin_id, spec, function)
        _is_async(plugin_id, spec, function)
        return adapt(function, tuple(inspect.signature(function).parameters), spec, None)
    return None


def _check_signature(plugin_id: str, spec: Spec, function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise PluginError(
                plugin_id,
                f"{spec.name} takes {str(parameter)!r}: arguments of a hook are plain names, of {spec.signature}",
            )
        if parameter.default is not parameter.empty:
            raise PluginError(
                plugin_id,
                f"argument {parameter.name!r} of {spec.name} has a default, which would hide what the broker passes",
            )
        if parameter.name not in spec.arguments:
            hint = _nearest(parameter.name, spec.arguments)
            raise PluginError(
                plugin_id,
                f"argument {parameter.name!r} of {spec.name} is not one of {spec.signature}{hint}",
            )


def _is_async(plugin_id: str, spec: Spec, function: Callable[..., Any]) -> bool:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(plugin_id, f"{spec.name} yields; a hook returns its answer")
    if not inspect.iscoroutinefunction(function):
        return False
    if spec.timeout is None:
        raise PluginError(plugin_id, f"{spec.name} cannot be async: it must answer at once")
    return True


def _check_idle(instance: PluginInstance) -> None:
    unknown = sorted(instance.plugin.idle_hooks - SPECS.keys())
    if unknown:
        raise PluginError(instance.id, f"idle_hooks: there is no hook named {unknown[0]!r}")


def _check_timeouts(instance: PluginInstance) -> None:
    for hook, seconds in instance.plugin.timeouts.items():
        if hook not in SPECS or SPECS[hook].timeout is None:
            raise PluginError(instance.id, f"timeouts: {hook!r} is no hook that is awaited")
        if not seconds > 0:
            raise PluginError(instance.id, f"timeouts: {seconds!r} for {hook} is not above 0")


def _check_actions(instance: PluginInstance, authorize: Iterable[Implementation]) -> None:
    plugin = instance.plugin
    actions = plugin.authorize_actions
    if not all(isinstance(action, Action) for action in actions):
        raise PluginError(instance.id, "authorize_actions holds something that is not an Action")
    for one in authorize:
        if one.instance is not instance or Action.DELIVER not in actions:
            continue
        if one.is_async:
            raise PluginError(
                instance.id, "authorize cannot be async where authorize_actions has DELIVER"
            )
        if plugin.blocking:
            raise PluginError(
                instance.id, "blocking is not possible where authorize_actions has DELIVER"
            )


def _check_entry(entry: PluginEntry, implemented: set[str]) -> None:
    where = f"plugin {entry.id!r}"
    _check_filters(f"{where}: filters", entry.filters)
    for hook, options in entry.hooks.items():
        spec = SPECS.get(hook)
        if spec is None:
            raise ConfigError(
                f"{where}: there is no hook named {hook!r}", hint=_nearest(hook, SPECS).lstrip("; ")
            )
        if hook not in implemented:
            names = ", ".join(sorted(implemented)) or "no hook at all"
            raise ConfigError(
                f"{where} does not implement {hook}, so that it has no options",
                hint=f"it implements {names}",
            )
        _check_options(f"{where}: hooks.{hook}", spec, options)


def _check_options(where: str, spec: Spec, options: HookOptions) -> None:
    if options.timeout is not None:
        if spec.timeout is None:
            raise ConfigError(f"{where}.timeout: {spec.name} is never awaited")
        if not options.timeout > 0:
            raise ConfigError(f"{where}.timeout: {options.timeout!r} is not above 0")
    if options.on_error is not None and options.on_error not in spec.on_error:
        allowed = " or ".join(spec.on_error)
        words = f"must be {allowed}" if allowed else "is not for this hook"
        raise ConfigError(f"{where}.on_error: {options.on_error!r} {words}")
    if options.queue is not None:
        if spec.kind is not Kind.OBSERVE:
            raise ConfigError(f"{where}.queue: only observers have a queue")
        if options.queue < 1:
            raise ConfigError(f"{where}.queue: {options.queue} is less than 1")
    if options.filters is not None and not spec.topic:
        raise ConfigError(f"{where}.filters: {spec.name} is not about a topic")
    _check_filters(f"{where}.filters", options.filters)


def _check_filters(where: str, filters: tuple[str, ...] | None) -> None:
    for filter in filters or ():
        if filter.startswith(SHARE_PREFIX):
            raise ConfigError(f"{where}: {filter!r} is a shared subscription, not a topic filter")
        try:
            validate_filter(filter)
        except ProtocolError as error:
            raise ConfigError(f"{where}: {filter!r}: {error.detail}") from error


def _nearest(name: str, among: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(among), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""
