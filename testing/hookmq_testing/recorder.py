"""A plugin that records calls and returns prepared results, and faults that can be set for any plugin."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookmq.hooks.specs import OBSERVERS, SPECS, HookKind, hookimpl
from hookmq.model.events import Action
from hookmq.plugin import Context, Plugin

RECORDED: Final = tuple(
    name for name, spec in SPECS.items() if spec.kind not in (HookKind.PROVIDE, HookKind.REGISTER)
)
"""The hooks that a `HookRecorder` implements by default."""


@dataclass(frozen=True)
class HookCall:
    """A single call to a hook. Its arguments are also available as attributes, such as ``call.topic``."""

    hook: str
    arguments: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(f"{self.hook} has no argument {name!r}") from None

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items() if k != "broker")
        return f"{self.hook}({shown})"


class HookRecorder(Plugin):
    """A plugin that records every call to `hooks`, by default all except the provide and register hooks. It abstains
    unless `answer` is called.

        recorder = HookRecorder("on_connect", "authorize")
        recorder.answer("authorize", Deny(ReasonCode.QUOTA_EXCEEDED))

    The core takes different code paths if no plugin implements `on_publish`, `on_deliver` or an
    observer, so name only the hooks that the test needs. With `deliver`, `authorize` is also called
    for each delivery. `cached` says whether the verdicts of `authorize` may be cached.
    """

    def __new__(cls, *hooks: str, **_: Any) -> "HookRecorder":
        unknown = set(hooks) - set(SPECS)
        if unknown:
            raise ValueError(f"unknown hooks: {', '.join(sorted(unknown))}")
        methods = {name: _method(name) for name in hooks or RECORDED}
        made: HookRecorder = object.__new__(type(cls.__name__, (cls,), methods))
        return made

    def __init__(
        self, *hooks: str, id: str = "recorder", deliver: bool = False, cached: bool = True
    ) -> None:
        super().__init__(None, Context(id))
        self.recorded: list[HookCall] = []
        """Every call, in order."""
        self.authorize_cached = cached  # type: ignore[misc]
        if deliver:
            self.authorize_actions = frozenset(Action)  # type: ignore[misc]
        self._answers: dict[str, list[Any]] = {}

    def answer(self, hook: str, *answers: Any) -> None:
        """Return `answers` from the next calls to `hook`, in turn. All later calls repeat the last answer.

        If an answer is an exception, it is raised. An awaitable, such as `VirtualRuntime.event`, is awaited. A function
        is called with the arguments that it names.
        """
        if hook not in SPECS:
            raise ValueError(f"unknown hook: {hook}")
        self._answers[hook] = list(answers)

    def calls(self, *hooks: str) -> list[HookCall]:
        """Return the calls to the given hooks, in order. Without arguments, return all calls."""
        return [call for call in self.recorded if not hooks or call.hook in hooks]

    def clear(self) -> None:
        """Forget the recorded calls, but keep the prepared answers."""
        self.recorded.clear()

    def called(self, hook: str, arguments: tuple[Any, ...]) -> Any:
        """Record a call and return its prepared answer."""
        call = HookCall(hook, dict(zip(SPECS[hook].arguments, arguments, strict=True)))
        self.recorded.append(call)
        answers = self._answers.get(hook)
        if not answers:
            return None
        return give(answers.pop(0) if len(answers) > 1 else answers[0], call.arguments)


def give(answer: Any, arguments: Mapping[str, Any]) -> Any:
    """Return or raise `answer`, as described in `HookRecorder.answer`."""
    if isinstance(answer, BaseException) or (
        isinstance(answer, type) and issubclass(answer, BaseException)
    ):
        raise answer
    if inspect.isroutine(answer):
        wanted = inspect.signature(answer).parameters
        return answer(**{name: arguments[name] for name in wanted})
    return answer


def _method(name: str) -> Callable[..., Any]:
    names = ", ".join(SPECS[name].arguments)
    # pluggy matches arguments by name.
    made: Callable[..., Any] = eval(f"lambda self, {names}: self.called({name!r}, ({names},))")
    made.__name__ = name
    return hookimpl(made)


class Faults:
    """Faults that replace the results of plugins, keyed by (plugin id, hook)."""

    def __init__(self, never: Callable[[], Any]) -> None:
        self._never = never
        self._faults: dict[tuple[str, str], tuple[Any, int | None]] = {}

    def set(self, plugin_id: str, hook: str, fault: Any, times: int | None) -> None:
        """Set a fault; see `Harness.fail`."""
        if fault == "timeout" and SPECS[hook].timeout is None:
            raise ValueError(f"{hook} is synchronous, so it cannot time out")
        self._faults[plugin_id, hook] = (fault, times)

    def clear(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def wrap(
        self, plugin_id: str, hook: str, arguments: Iterable[str], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a wrapper that calls `function`, unless a fault is set at the time of the call."""
        names = tuple(arguments)
        key = (plugin_id, hook)

        def call(*args: Any) -> Any:
            found = self._faults.get(key)
            if found is None:
                return function(*args)
            fault, times = found
            if times is not None:
                if times > 1:
                    self._faults[key] = (fault, times - 1)
                else:
                    del self._faults[key]
            if isinstance(fault, str) and fault == "timeout":
                return self._never()
            return give(fault, dict(zip(names, args, strict=True)))

        return call


__all__ = ["OBSERVERS", "RECORDED", "Faults", "HookCall", "HookRecorder"]
