"""Applying a changed configuration to a running broker: all of it that can be, or, on any error, nothing."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from hookmq import logs
from hookmq.broker import Broker
from hookmq.broker.handle import Handle
from hookmq.config.listeners import check_types
from hookmq.config.model import Config
from hookmq.config.plugins import build, guards
from hookmq.config.reload import LIVE_LISTENER_KEYS, Report, compare, moved_listeners
from hookmq.errors import BindError, ConfigError, HookMQError, PluginError
from hookmq.hooks.entry import PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.specs import SPECS, Kind
from hookmq.server.extensions import Extensions
from hookmq.server.node import AnyListener, Node
from hookmq.server.settings import ListenerSettings
from hookmq.server.tls import server_context

FIXED: Final = (
    *(n for n, spec in SPECS.items() if spec.kind is Kind.PROVIDE and n != "provide_meter"),
    "register_listeners",
)
"""Hooks whose answers the broker was built on: plugins with one of these stay until it is started anew."""


async def start_plugins(hooks: Hooks) -> None:
    """Run `on_startup` of those not yet started. Raises PluginError when one that is required fails."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: HookMQError | None) -> None:
        if not ended.done():
            ended.set_result(None) if error is None else ended.set_exception(error)

    hooks.startup(done)
    await ended


async def told(run: Callable[[Callable[[], None]], None]) -> None:
    """Run what tells by a callback that it is done, and return when it did."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    run(lambda: None if ended.done() else ended.set_result(None))
    await ended


class Live:
    """The configuration in force of a running broker. `source` reads the configuration again, as the first time; `config`
    is what holds, which lacks what waits for a restart."""

    def __init__(
        self,
        config: Config,
        hooks: Hooks,
        broker: Broker,
        node: Node,
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

    async def reread(self) -> None:
        """Read the configuration again and apply it. Logs ``config.reloaded`` with what was applied and what needs a
        restart. Raises HookMQError, and has changed nothing, when it cannot be used."""
        new = await asyncio.to_thread(self._source)
        try:
            report = await self.reload(new)
        except HookMQError as error:
            report = compare(self.config, new)
            error.changed = tuple(change.path for change in (*report.applied, *report.restart))
            raise
        self.node.runtime.log("info", "config.reloaded", **report.fields())

    async def reload(self, new: Config) -> Report:
        """Apply `new`: validate all of it, build what is new, then swap. Plugins that are kept get `on_reload`, new ones
        `on_ready`, and those that leave end after their calls in flight; no client is disconnected. Raises HookMQError,
        and has changed nothing, when any part of `new` cannot be used."""
        old = self.config
        report = compare(old, new)
        log = self.node.runtime.log
        known = tuple(one for one in self.hooks.plugins if not one.disabled)
        hooks = Hooks(build(new, log=log, known=known))
        _keep_providers(self.hooks, hooks)
        check_types(new, Extensions(hooks).types)
        wanted, opening = self._plan(new)
        for settings in wanted.values():
            if settings.tls is not None:
                await asyncio.to_thread(server_context, settings.tls)
        opened: list[AnyListener] = []
        try:
            # their handles are bound before they start; the broker binds the same again when it takes over
            hooks.bind(self.node.runtime, partial(Handle, self.broker.core))
            await start_plugins(hooks)
            _keep_guards(known, hooks)
            extensions = Extensions(hooks, self.broker, self.node.connections, log)
            for settings in opening:
                listener = await self._open(settings, new, extensions)
                opened.append(listener)
        except BaseException:
            for listener in opened:
                await listener.close()
            await self._end(hooks, self.hooks)
            self.hooks.bind(self.node.runtime)  # queues that both have obey the old options again
            raise
        # from here on nothing fails
        _apply(hooks)
        self.broker.reload(new.settings, hooks)
        replaced, self.hooks = self.hooks, hooks
        self.node.use(extensions)
        self._swap_listeners(wanted, opened)
        self.config = dataclasses.replace(
            new,
            loop=old.loop,
            listeners=tuple(wanted.values()),
            broker=dataclasses.replace(
                new.broker,
                max_topic_levels=old.broker.max_topic_levels,
                max_write_buffer=old.broker.max_write_buffer,
            ),
        )
        self._apply_logging(new)
        kept = tuple(one for one in hooks.plugins if _object_in(one, replaced))
        await told(lambda done: hooks.reloaded(old, new, kept, done))
        await told(hooks.ready)
        self._background(self._end(replaced, hooks))
        return report

    def _plan(self, new: Config) -> tuple[dict[str, ListenerSettings], list[ListenerSettings]]:
        """The listeners' settings that will hold, by name, and those to open."""
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
        self, settings: ListenerSettings, new: Config, extensions: Extensions
    ) -> AnyListener:
        listener = self.node.make(settings, new.broker, extensions.types)
        try:
            await listener.open()
        except BindError as error:
            raise BindError(
                f"{error} (a listener that moves is opened before the old one is closed)"
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

    async def _end(self, hooks: Hooks, successor: Hooks) -> None:
        seconds = self.broker.settings.broker.shutdown_timeout
        await told(lambda done: hooks.shutdown(seconds, done, successor))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Return when what earlier reloads left behind is done, or cut it off: for the end of the process."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))


async def _close_when_empty(listener: AnyListener) -> None:
    """Let the clients of a listener that was taken away stay as long as they like."""
    await listener.gate.emptied()
    await listener.close()


def _merged(before: ListenerSettings, after: ListenerSettings) -> ListenerSettings:
    """`before` with the keys of `after` that an open listener can take."""
    keys = set(LIVE_LISTENER_KEYS)
    if (before.tls is None) != (after.tls is None):
        keys.discard("tls")
    return dataclasses.replace(before, **{key: getattr(after, key) for key in keys})


def _apply(hooks: Hooks) -> None:
    """Have plugins go on with the configurations that they agreed to."""
    for instance in hooks.plugins:
        apply, instance.apply = instance.apply, None
        if apply is not None:
            apply()


def _object_in(instance: PluginInstance, hooks: Hooks) -> bool:
    return any(one.plugin is instance.plugin for one in hooks.plugins)


def _keep_guards(running: Sequence[PluginInstance], new: Hooks) -> None:
    """Raise PluginError if a plugin with ``required: false`` that guards the running broker failed to start anew."""
    for one in new.plugins:
        if one.disabled and guards(one.entry, running):
            why = one.stats("on_startup").last_error
            raise PluginError(one.id, f"on_startup failed: {why}")


def _keep_providers(old: Hooks, new: Hooks) -> None:
    """Raise ConfigError when a plugin comes, goes or changes whose answers the broker was built on."""
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
                f"the plugin {changed[0]!r} ({hook}) cannot come, go or change while the broker runs",
                hint="restart it",
            )


def _configure_logging(config: Config) -> None:
    logs.configure(config.log.level, config.log.format)
