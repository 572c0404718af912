"""A plugin that writes down what it is called with and answers as it is told, and faults for any plugin."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookmq.hooks.specs import OBSERVERS, SPECS, Kind, hookimpl
from hookmq.plugin import Context, Plugin
from hookmq.types import Action

RECORDED: Final = tuple(
    name for name, spec in SPECS.items() if spec.kind not in (Kind.PROVIDE, Kind.REGISTER)
)
"""What a `HookRecorder` implements unless told otherwise."""


@dataclass(frozen=True)
class HookCall:
    """One call of a hook; its arguments are attributes as well: ``call.topic``."""

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
    """Records every call of the hooks it implements, `hooks` by name (all but provide and register by default), and
    abstains until told otherwise.

        recorder = HookRecorder("on_connect", "authorize")
        recorder.answer("authorize", Deny(ReasonCode.QUOTA_EXCEEDED))

    Note that the core takes other paths where nobody implements `on_publish`, `on_deliver` or an observer: name just the
    hooks that the test is about. `deliver` also asks it to `authorize` each delivery; `cached` tells whether its answers
    may be remembered.
    """

    def __new__(cls, *hooks: str, **_: Any) -> "HookRecorder":
        unknown = set(hooks) - set(SPECS)
        if unknown:
            raise ValueError(f"there is no hook named {', '.join(sorted(unknown))}")
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
        """Answer the next calls of `hook` with `answers`, one after another, the last for good. An exception is raised,
        an awaitable (`VirtualRuntime.event`) awaited, and a function called with the hook's arguments it names."""
        if hook not in SPECS:
            raise ValueError(f"there is no hook named {hook}")
        self._answers[hook] = list(answers)

    def calls(self, *hooks: str) -> list[HookCall]:
        """The calls of some hooks, or all, in order."""
        return [call for call in self.recorded if not hooks or call.hook in hooks]

    def clear(self) -> None:
        """Forget what was recorded; answers stay."""
        self.recorded.clear()

    def called(self, hook: str, arguments: tuple[Any, ...]) -> Any:
        """Record a call and answer it."""
        call = HookCall(hook, dict(zip(SPECS[hook].arguments, arguments, strict=True)))
        self.recorded.append(call)
        answers = self._answers.get(hook)
        if not answers:
            return None
        return give(answers.pop(0) if len(answers) > 1 else answers[0], call.arguments)


def give(answer: Any, arguments: Mapping[str, Any]) -> Any:
    """`answer` as `HookRecorder.answer` means it."""
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
    # pluggy pairs implementations with specifications by the names of their arguments.
    made: Callable[..., Any] = eval(f"lambda self, {names}: self.called({name!r}, ({names},))")
    made.__name__ = name
    return hookimpl(made)


class Faults:
    """What plugins are to answer instead of what they would: by (plugin id, hook)."""

    def __init__(self, never: Callable[[], Any]) -> None:
        self._never = never
        self._faults: dict[tuple[str, str], tuple[Any, int | None]] = {}

    def set(self, plugin_id: str, hook: str, fault: Any, times: int | None) -> None:
        """As `Harness.fail`."""
        if fault == "timeout" and SPECS[hook].timeout is None:
            raise ValueError(f"{hook} is never awaited, so that it cannot time out")
        self._faults[plugin_id, hook] = (fault, times)

    def clear(self) -> None:
        """No more faults."""
        self._faults.clear()

    def wrap(
        self, plugin_id: str, hook: str, arguments: Iterable[str], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`function`, less the faults that are set when it is called."""
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
