"""Apply a changed configuration to a running broker. Settings that need a restart are left out. If there is an error,
nothing changes.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from hookmq.broker import Broker
from hookmq.broker.plugin_api import PluginBroker
from hookmq.config.diff import (
    LIVE_LISTENER_KEYS,
    RESTART_KEYS,
    compare,
    moved_listeners,
)
from hookmq.config.model import Config
from hookmq.config.plugins import build, check_types, guards
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.specs import SPECS, HookKind
from hookmq.model.errors import BindError, ConfigError, PluginError
from hookmq.model.reload_report import ReloadReport
from hookmq.mqtt.errors import HookMQError
from hookmq.server import logs
from hookmq.server.extensions import PluginExtensions
from hookmq.server.loop import finished
from hookmq.server.server import AnyListener, Server
from hookmq.server.settings import ListenerSettings
from hookmq.server.tls import server_context

FIXED: Final = (
    *(
        n
        for n, spec in SPECS.items()
        if spec.kind is HookKind.PROVIDE and n != "provide_rate_limiter"
    ),
    "register_listeners",
    "register_workers",
)
"""Hooks that provide the broker's foundations, such as its store. Plugins that implement one of them cannot change
without a restart."""


class HotReload:
    """Holds the configuration of a running broker and replaces it.

    `config` is the configuration in force, without changes that need a restart. `source` reads the configuration again.
    """

    def __init__(
        self,
        config: Config,
        hooks: Hooks,
        broker: Broker,
        node: Server,
        source: Callable[[], Config],
        handler: Callable[[Config], None] | None = None,
    ) -> None:
        self.config = config
        self.hooks = hooks
        self.broker = broker
        self.node = node
        self._source = source
        self._apply_logging = handler or _configure_logging
        self._tasks: set[asyncio.Task[None]] = set()

    async def reread(self) -> ReloadReport:
        """Reread the configuration, apply it, and log ``config.reloaded`` with the changes. Return the changes.

        If the new configuration cannot be used, raises HookMQError and changes nothing.
        """
        new = await asyncio.to_thread(self._source)
        try:
            report = await self.reload(new)
        except HookMQError as error:
            report = compare(self.config, new)
            error.changed = tuple(change.path for change in (*report.applied, *report.restart))
            raise
        self.node.runtime.log("info", "config.reloaded", **report.fields())
        return report

    async def reload(self, new: Config) -> ReloadReport:
        """Validate `new`, build its new plugins and listeners, then switch to it.

        Plugins that remain get `on_reload`, and new plugins get `on_ready`. Removed plugins are stopped once their
        running calls have finished. No client is disconnected. If any part of `new` cannot be used, raises HookMQError
        and changes nothing.
        """
        old = self.config
        report = compare(old, new)
        log = self.node.runtime.log
        known = tuple(one for one in self.hooks.plugins if not one.disabled)
        hooks = Hooks(build(new, log=log, known=known))
        _keep_providers(self.hooks, hooks)
        check_types(new, PluginExtensions(hooks).types)
        wanted, opening = self._plan(new)
        for settings in wanted.values():
            if settings.tls is not None:
                await asyncio.to_thread(server_context, settings.tls)
        opened: list[AnyListener] = []
        try:
            # plugins need their `broker` before they start; `Broker.reload` rebinds it
            hooks.bind(self.node.runtime, partial(PluginBroker, self.broker.state))
            await finished(hooks.startup)
            _keep_guards(known, hooks)
            extensions = PluginExtensions(hooks, self.broker, log)
            for settings in opening:
                listener = await self._open(settings, new, extensions)
                opened.append(listener)
        except BaseException:
            for listener in opened:
                await listener.close()
            await self._end(hooks, self.hooks)
            self.hooks.bind(self.node.runtime)  # restore the old options of shared queues
            raise
        # nothing can fail from here on
        for instance in hooks.plugins:
            apply, instance.apply = instance.apply, None
            if apply is not None:
                apply()
        self.broker.reload(new.settings, hooks)
        replaced, self.hooks = self.hooks, hooks
        self.node.use(extensions)
        self._swap_listeners(wanted, opened)
        fixed = [key.removeprefix("broker.") for key in RESTART_KEYS]
        broker = dataclasses.replace(new.broker, **{key: getattr(old.broker, key) for key in fixed})
        self.config = dataclasses.replace(
            new, loop=old.loop, listeners=tuple(wanted.values()), broker=broker
        )
        self._apply_logging(new)
        before = {id(one.plugin) for one in replaced.plugins}
        kept = tuple(one for one in hooks.plugins if id(one.plugin) in before)
        await finished(lambda done: hooks.reloaded(old, new, kept, done))
        await finished(hooks.ready)
        self._background(self._end(replaced, hooks))
        return report

    def _plan(self, new: Config) -> tuple[dict[str, ListenerSettings], list[ListenerSettings]]:
        """Return the settings that all listeners will have after the reload, by name, and the settings of the listeners
        to open.
        """
        running = {name: listener.settings for name, listener in self.node.listeners.items()}
        moved = moved_listeners(self.config, new)
        wanted: dict[str, ListenerSettings] = {}
        opening = []
        for settings in new.listeners:
            before = running.get(settings.name)
            if before is None or settings.name in moved:
                opening.append(settings)
                wanted[settings.name] = settings
            else:
                wanted[settings.name] = _merged(before, settings)
        return wanted, opening

    async def _open(
        self, settings: ListenerSettings, new: Config, extensions: PluginExtensions
    ) -> AnyListener:
        listener = self.node.make(settings, new.broker, extensions.types)
        # Until the switch, the plugins in force do not know this listener. A drain may also begin or end meanwhile.
        listener.gate.open = False
        try:
            await listener.open()
        except BindError as error:
            raise BindError(
                f"{error} (a listener with a new address is opened before the old one is closed)"
            ) from None
        return listener

    def _swap_listeners(
        self, wanted: dict[str, ListenerSettings], opened: list[AnyListener]
    ) -> None:
        running = self.node.listeners
        fresh = {listener.settings.name: listener for listener in opened}
        for name in list(running):
            if name not in wanted or name in fresh:
                leaving = running.pop(name)
                leaving.shut()
                self._background(_close_when_empty(leaving))
            else:
                running[name].apply(wanted[name])
        running.update(fresh)
        for listener in opened:
            self.node.admit(listener)

    async def _end(self, hooks: Hooks, successor: Hooks) -> None:
        seconds = self.broker.settings.broker.shutdown_timeout
        await finished(lambda done: hooks.shutdown(seconds, done, successor))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Cancel background work left over from earlier reloads, and wait for it. Call this before the process ends."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))


async def _close_when_empty(listener: AnyListener) -> None:
    """Close a listener that a reload removed, once its last client has disconnected."""
    await listener.gate.emptied()
    await listener.close()


def _merged(before: ListenerSettings, after: ListenerSettings) -> ListenerSettings:
    """Return a copy of `before` with those settings from `after` that can change while the listener is open."""
    keys = set(LIVE_LISTENER_KEYS)
    if (before.tls is None) != (after.tls is None):
        keys.discard("tls")
    return dataclasses.replace(before, **{key: getattr(after, key) for key in keys})


def _keep_guards(running: Sequence[PluginInstance], new: Hooks) -> None:
    """Raise PluginError if a plugin with ``required: false`` guards the running broker, but its replacement failed to
    start.
    """
    for one in new.plugins:
        if one.disabled and guards(one.entry, running):
            why = one.stats("on_startup").last_error
            raise PluginError(one.id, f"on_startup failed: {why}")


def _keep_providers(old: Hooks, new: Hooks) -> None:
    """Raise ConfigError if a plugin that implements a hook in `FIXED` is added, removed or changed."""
    for hook in FIXED:
        before = {one.instance.id: one.instance.plugin for one in old.registry[hook]}
        after = {one.instance.id: one.instance.plugin for one in new.registry[hook]}
        changed = [
            name
            for name in dict.fromkeys([*before, *after])
            if before.get(name) is not after.get(name)
        ]
        if changed:
            raise ConfigError(
                f"the plugin {changed[0]!r} ({hook}) cannot be added, removed or changed while the broker runs",
                hint="restart the broker",
            )


def _configure_logging(config: Config) -> None:
    logs.configure(config.log.level, config.log.format)
