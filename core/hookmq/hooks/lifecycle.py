"""Start and stop plugins, one after another.

The return values of lifecycle hooks are ignored. An exception or a timeout is a failure.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from hookmq.hooks.async_calls import FAILED, Waiting, failure
from hookmq.hooks.chain import HookImplementation
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.observer_drain import drain
from hookmq.hooks.observer_queue import ObserverQueue
from hookmq.hooks.registry import Registry, adapt
from hookmq.hooks.specs import SPECS
from hookmq.model.errors import PluginError
from hookmq.model.runtime import Runtime

POLL: Final = 0.05
"""Seconds between checks for unfinished calls."""


class PluginSet(Protocol):
    """The part of `hookmq.hooks.manager.Hooks` that is needed to start and stop plugins."""

    plugins: tuple[PluginInstance, ...]
    registry: Registry
    runtime: Runtime | None
    on_ready_ended: Callable[[], None]
    """Called each time a plugin's `on_ready` has returned."""

    def disable(self, plugin_id: str, why: str) -> None:
        """Remove a plugin from every chain."""


def startup(hooks: PluginSet, done: Callable[[PluginError | None], None]) -> None:
    """Start the plugins; see `Hooks.startup`."""
    instances = [one for one in hooks.plugins if not one.kept.started and not one.disabled]

    def ended(instance: PluginInstance, error: str) -> bool:
        if not error:
            instance.kept.started = True
            return True
        if not instance.entry.required:
            _runtime(hooks).log("error", "plugin.disabled", plugin=instance.id, error=error)
            hooks.disable(instance.id, f"on_startup failed: {error}")
            return True
        done(PluginError(instance.id, f"on_startup failed: {error}"))
        return False

    _Round(hooks, "on_startup", (), instances, ended, lambda: done(None), None).go()


def ready(hooks: PluginSet, done: Callable[[], None]) -> None:
    """Run `on_ready` for the plugins; see `Hooks.ready`."""
    fresh = [one for one in hooks.plugins if not one.kept.ready and not one.disabled]
    for one in fresh:
        one.kept.ready = True

    def ended(instance: PluginInstance, error: str) -> bool:
        instance.kept.ready_ended = True
        hooks.on_ready_ended()
        return True

    _Round(hooks, "on_ready", (), fresh, ended, done, None).go()


def each(
    hooks: PluginSet,
    hook: str,
    args: tuple[Any, ...],
    instances: Iterable[PluginInstance],
    done: Callable[[], None],
    deadline: float | None = None,
) -> None:
    """Run one hook for the given plugins and ignore failures. `deadline` is a time on the runtime's monotonic
    clock."""
    chosen = [one for one in instances if not one.disabled]
    _Round(hooks, hook, args, chosen, lambda instance, error: True, done, deadline).go()


def shutdown(
    hooks: PluginSet, seconds: float, done: Callable[[], None], successor: PluginSet | None
) -> None:
    """Stop the plugins; see `Hooks.shutdown`."""
    runtime = _runtime(hooks)
    deadline = runtime.now() + seconds
    stay = {id(one.kept) for one in successor.plugins} if successor is not None else set()
    leaving = [one for one in hooks.plugins if id(one.kept) not in stay]
    queues: list[ObserverQueue] = [one.kept.queue for one in leaving if one.kept.queue is not None]
    started = [one for one in reversed(leaving) if one.kept.started]

    def settle() -> None:
        left = deadline - runtime.now()
        if left > 0 and any(s.pending for one in started for s in one.kept.stats.values()):
            runtime.call_later(min(POLL, left), settle)
        else:
            drain(queues, runtime, farewell, max(0.0, left))

    def farewell(dropped: int) -> None:
        if dropped:
            runtime.log("warning", "observers.dropped", events=dropped)
        for one in started:
            one.kept.started = one.kept.ready = one.kept.ready_ended = False
        left = max(0.0, deadline - runtime.now())
        each(hooks, "on_shutdown", (left,), started, ended, deadline)

    def ended() -> None:
        for one in leaving:
            one.kept.leave()
        done()

    settle()


def _runtime(hooks: PluginSet) -> Runtime:
    if hooks.runtime is None:
        raise RuntimeError("bind() the hooks to a runtime first")
    return hooks.runtime


class _Round:
    """Runs one hook for several plugins, one after another. `ended` receives each plugin's error,
    or "", and returns whether to continue.
    """

    __slots__ = (
        "_args", "_deadline", "_done", "_ended", "_hook", "_hooks", "_instances", "_next", "_runtime", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        hooks: PluginSet,
        hook: str,
        args: tuple[Any, ...],
        instances: Sequence[PluginInstance],
        ended: Callable[[PluginInstance, str], bool],
        done: Callable[[], None],
        deadline: float | None,
    ) -> None:
        self._hooks = hooks
        self._hook = hook
        self._args = args
        self._instances = instances
        self._ended = ended
        self._done = done
        self._deadline = deadline
        self._next = 0
        self._runtime = _runtime(hooks)
        self._waiting = Waiting(self._runtime)

    def go(self) -> None:
        """Run until a plugin must be awaited, or all plugins are done."""
        while self._next < len(self._instances):
            instance = self._instances[self._next]
            self._next += 1
            call = self._call(instance)
            if call is not None:
                began = call.stats.begin()
                try:
                    answer = call.function(*self._args)
                except Exception as error:
                    answer = failure(call, error)
                if hasattr(type(answer), "__await__"):
                    self._waiting.start(call, self._args, answer, began, self._answered)
                    return
                call.stats.end(began)
                if not self._told(instance, answer):
                    return
            elif not self._ended(instance, ""):
                return
        self._done()

    def _answered(self, answer: Any) -> None:
        if self._told(self._instances[self._next - 1], answer):
            self.go()

    def _told(self, instance: PluginInstance, answer: Any) -> bool:
        stats = instance.stats(self._hook)
        if answer is FAILED:
            return self._ended(instance, stats.last_error)
        stats.ok += 1
        return self._ended(instance, "")

    def _call(self, instance: PluginInstance) -> HookImplementation | None:
        spec = SPECS[self._hook]
        for one in self._hooks.registry[self._hook]:
            if one.instance is instance:
                timeout = instance.timeout(self._hook) or 0.0
                if self._deadline is not None:
                    timeout = min(timeout, max(0.0, self._deadline - self._runtime.now()))
                function = adapt(one.function, one.arguments, spec, instance.broker)
                return HookImplementation(
                    instance.id,
                    self._hook,
                    function,
                    timeout=timeout,
                    stats=instance.stats(self._hook),
                )
        return None
