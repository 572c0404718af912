"""Find plugins' hook implementations with pluggy, sort them in configuration order, and check them."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pluggy

from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.instance import HookOptions, PluginEntry, PluginInstance
from hookmq.hooks.specs import PROJECT, SPECS, HookKind, HookSpec, Specs
from hookmq.model.errors import ConfigError, PluginError
from hookmq.model.events import Action
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.topics import SHARE_PREFIX, validate_filter
from hookmq.plugin import Plugin

Registry = Mapping[str, tuple["Implementation", ...]]
"""Implementations by hook, in configuration order."""


class _Manager(pluggy.PluginManager):
    """A pluggy manager that looks for hooks only among the attributes that the plugin's author wrote.

    pluggy itself searches every attribute, most of them inherited. For a broker without clients, that search took most
    of the startup time.
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        if _inherited(plugin, name):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _inherited(plugin: Any, name: str) -> bool:
    """Return whether an attribute of a plugin (an object or a class) is inherited unchanged from `Plugin` or `object`."""
    if isinstance(plugin, type):
        kind = plugin
    elif name in getattr(plugin, "__dict__", ()):
        return False
    else:
        kind = type(plugin)
    for one in kind.__mro__:
        if name in one.__dict__:
            return one is Plugin or one is object
    return False


class Implementation(NamedTuple):
    """One plugin's implementation of one hook. `arguments` are the names of its arguments, in its own order."""

    instance: PluginInstance
    spec: HookSpec
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    is_async: bool


def register(instances: Sequence[PluginInstance]) -> Registry:
    """Return the plugins' implementations by hook.

    Raises PluginError if an implementation is invalid, and ConfigError if an entry's id is taken, its options are
    unsuitable, or a plugin cannot run together with the others.
    """
    if not instances:
        return dict.fromkeys(SPECS, ())
    manager = _Manager(PROJECT)
    manager.add_hookspecs(Specs)
    by_id: dict[str, PluginInstance] = {}
    for instance in instances:
        if instance.id in by_id:
            raise ConfigError(
                f"two plugins have the id {instance.id!r}", hint="give each its own `id`"
            )
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
        # pluggy lists the last registration first. We use the order of the configuration.
        found.sort(key=lambda one: instances.index(one.instance))
        registry[name] = tuple(found)
    for instance in instances:
        mine = {
            name
            for name, found in registry.items()
            if any(one.instance is instance for one in found)
        }
        instance.kept.hooks = frozenset(mine)
        _check_idle(instance)
        _check_timeouts(instance)
        _check_actions(instance, registry["authorize"])
        if instance.plugin.blocking and "on_deliver" in mine:
            raise PluginError(
                instance.id, "on_deliver must be synchronous, so its plugin cannot be blocking"
            )
        _check_entry(instance.entry, mine)
        instance.plugin.check_together([one.plugin for one in instances])
    return registry


def adapt(
    function: Callable[..., Any], takes: Sequence[str], spec: HookSpec, broker: BrokerHandle | None
) -> Callable[..., Any]:
    """Adapt `function` so that it accepts all of the hook's arguments except `broker`.

    Returns `function` itself if its arguments already match.
    """
    if tuple(takes) == spec.given:
        return function
    text = f"lambda {', '.join(spec.given)}: function({', '.join(takes)})"
    # `register` checked the names against `spec`. An evaluated lambda is twice as fast as any alternative.
    adapted: Callable[..., Any] = eval(text, {"function": function, "broker": broker})
    return adapted


def _check_methods(manager: pluggy.PluginManager, instance: PluginInstance) -> None:
    plugin, plugin_id = instance.plugin, instance.id
    seen: dict[str, str] = {}
    for attribute in dir(plugin):
        options: Mapping[str, Any] | None = manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            if attribute in SPECS:
                found = inspect.getattr_static(plugin, attribute, None)
                if callable(found) or isinstance(found, classmethod):
                    raise PluginError(
                        plugin_id, f"{attribute} is named like a hook but is not marked @hookimpl"
                    )
            continue
        name = options.get("specname") or attribute
        spec = SPECS.get(name)
        if spec is None:
            hint = _nearest(name, SPECS)
            raise PluginError(plugin_id, f"unknown hook {name}{hint}")
        if name in seen:
            raise PluginError(plugin_id, f"{seen[name]} and {attribute} both implement {name}")
        seen[name] = attribute
        for option in ("wrapper", "hookwrapper", "tryfirst", "trylast"):
            if options.get(option):
                raise PluginError(
                    plugin_id,
                    f"{attribute} is marked {option}=True: hooks have no wrappers, the configuration orders them",
                )
        _check_signature(plugin_id, spec, getattr(plugin, attribute))


def _check_signature(plugin_id: str, spec: HookSpec, function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise PluginError(
                plugin_id,
                f"{spec.name} takes {str(parameter)!r}: expected plain arguments of {spec.signature}",
            )
        if parameter.default is not parameter.empty:
            raise PluginError(
                plugin_id,
                f"argument {parameter.name!r} of {spec.name} has a default: hooks have no defaults",
            )
        if parameter.name not in spec.arguments:
            hint = _nearest(parameter.name, spec.arguments)
            raise PluginError(
                plugin_id,
                f"argument {parameter.name!r} of {spec.name} is not one of {spec.signature}{hint}",
            )


def _is_async(plugin_id: str, spec: HookSpec, function: Callable[..., Any]) -> bool:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(plugin_id, f"{spec.name} yields: a hook returns its answer")
    if not inspect.iscoroutinefunction(function):
        return False
    if spec.timeout is None:
        raise PluginError(plugin_id, f"{spec.name} cannot be async")
    return True


def _check_idle(instance: PluginInstance) -> None:
    unknown = sorted(instance.plugin.idle_hooks - SPECS.keys())
    if unknown:
        raise PluginError(instance.id, f"idle_hooks: unknown hook {unknown[0]!r}")


def _check_timeouts(instance: PluginInstance) -> None:
    for hook, seconds in instance.plugin.timeouts.items():
        if hook not in SPECS or SPECS[hook].timeout is None:
            raise PluginError(instance.id, f"timeouts: {hook!r} is not an asynchronous hook")
        if not seconds > 0:
            raise PluginError(instance.id, f"timeouts: {hook}: {seconds!r} is not above 0")


def _check_actions(instance: PluginInstance, authorize: Iterable[Implementation]) -> None:
    plugin = instance.plugin
    actions = plugin.authorize_actions
    if not all(isinstance(action, Action) for action in actions):
        raise PluginError(instance.id, "authorize_actions contains a value that is not an Action")
    for one in authorize:
        if one.instance is not instance or Action.DELIVER not in actions:
            continue
        if one.is_async:
            raise PluginError(instance.id, "authorize of Action.DELIVER cannot be async")
        if plugin.blocking:
            raise PluginError(instance.id, "a plugin that authorizes DELIVER cannot be blocking")


def _check_entry(entry: PluginEntry, implemented: set[str]) -> None:
    where = f"plugin {entry.id!r}"
    _check_filters(f"{where}: filters", entry.filters)
    for hook, options in entry.hooks.items():
        spec = SPECS.get(hook)
        if spec is None:
            raise ConfigError(
                f"{where}: unknown hook {hook!r}", hint=_nearest(hook, SPECS).lstrip("; ")
            )
        if hook not in implemented:
            names = ", ".join(sorted(implemented)) or "no hooks"
            raise ConfigError(f"{where} does not implement {hook}", hint=f"it implements {names}")
        _check_options(f"{where}: hooks.{hook}", spec, options)


def _check_options(where: str, spec: HookSpec, options: HookOptions) -> None:
    if options.timeout is not None:
        if spec.timeout is None:
            raise ConfigError(f"{where}.timeout: {spec.name} is synchronous")
        if not options.timeout > 0:
            raise ConfigError(f"{where}.timeout: {options.timeout!r} is not above 0")
    if options.on_error is not None and options.on_error not in spec.on_error:
        allowed = " or ".join(spec.on_error)
        words = f"expected {allowed}" if allowed else "not available for this hook"
        raise ConfigError(f"{where}.on_error: {options.on_error!r}: {words}")
    if options.queue is not None:
        if spec.kind is not HookKind.OBSERVE:
            raise ConfigError(f"{where}.queue: only observers have a queue")
        if options.queue < 1:
            raise ConfigError(f"{where}.queue: {options.queue} is less than 1")
    if options.filters is not None and not spec.topic:
        raise ConfigError(f"{where}.filters: {spec.name} has no topic")
    _check_filters(f"{where}.filters", options.filters)


def _check_filters(where: str, filters: tuple[str, ...] | None) -> None:
    for filter in filters or ():
        if filter.startswith(SHARE_PREFIX):
            raise ConfigError(f"{where}: {filter!r} is a shared subscription: expected a filter")
        try:
            validate_filter(filter)
        except ProtocolError as error:
            raise ConfigError(f"{where}: {filter!r}: {error.detail}") from error


def _nearest(name: str, among: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(among), 1, 0.5)
    return f"; did you mean {near[0]}?" if near else ""
