"""Chains that record each call: which plugin returned what, and how long the call took."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hookmq.hooks.async_calls import HeldAwaitable
from hookmq.hooks.chain import Calls, Chains, HookImplementation
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Handled
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.model.runtime import Runtime
from hookmq.model.subscription import Subscription

Record = Callable[[HookImplementation, tuple[Any, ...], dict[str, object]], None]
"""Takes a call, its arguments, and the fields that describe its result. Called on the event loop."""


def timed_chains(runtime: Runtime, chains: Chains, record: Record) -> Chains:
    """Return a copy of `chains` whose calls behave the same but are recorded."""

    def timed(calls: Calls) -> Calls:
        return tuple(
            replace(call, function=_TimedFunction(runtime, call, record), direct=None)
            if call.plugin_id
            else call
            for call in calls
        )

    return replace(
        chains, on_connect=timed(chains.on_connect), on_auth=timed(chains.on_auth),
        authorize={action: timed(chains.authorize[action]) for action in Action}, on_publish=timed(chains.on_publish),
        on_subscribe=timed(chains.on_subscribe), on_deliver=timed(chains.on_deliver), on_will=timed(chains.on_will),
    )  # fmt: skip


class _TimedFunction:
    """Calls a plugin's implementation, and records its result."""

    __slots__ = ("_call", "_record", "_runtime")

    def __init__(self, runtime: Runtime, call: HookImplementation, record: Record) -> None:
        self._runtime = runtime
        self._call = call
        self._record = record

    def __call__(self, *args: Any) -> Any:
        began = self._runtime.now()
        try:
            answer = self._call.function(*args)
        except BaseException as error:
            self._ended(args, began, {"verdict": "error", "error": type(error).__name__})
            raise
        if hasattr(type(answer), "__await__"):
            return self._awaited(HeldAwaitable(answer), args, began)
        self._ended(args, began, describe(answer, args))
        return answer

    async def _awaited(self, held: HeldAwaitable, args: tuple[Any, ...], began: float) -> Any:
        """Await the result. If this coroutine is closed before it starts, `held` closes the plugin's coroutine."""
        try:
            answer = await held.take()
        except BaseException as error:  # also if the call is cancelled, after a timeout
            self._ended(args, began, {"verdict": "error", "error": type(error).__name__})
            raise
        self._ended(args, began, describe(answer, args))
        return answer

    def _ended(self, args: tuple[Any, ...], began: float, fields: dict[str, object]) -> None:
        runtime = self._runtime
        fields["microseconds"] = round((runtime.now() - began) * 1e6)
        if runtime.on_loop():
            self._record(self._call, args, fields)
        else:
            runtime.call_threadsafe(partial(self._record, self._call, args, fields))


def describe(answer: Any, args: tuple[Any, ...]) -> dict[str, object]:
    """Return the fields that describe what a plugin returned for `args`. Claims and challenges are left out."""
    match answer:
        case None:
            return {"verdict": "abstain"}
        case Allow():
            return {
                "verdict": "allow",
                "cache_for": answer.cache_for,
                "max_qos": answer.max_qos,
                "rule": answer.rule,
            }
        case Accept():
            return {"verdict": "accept", "identity": answer.identity}
        case Deny():
            return {
                "verdict": "deny",
                "code": int(answer.code),
                "reason": answer.reason,
                "rule": answer.rule,
                "decided": answer.decided,
            }
        case Drop() | Handled():
            return {"verdict": type(answer).__name__.lower(), "code": int(answer.code)}
        case Challenge():
            return {"verdict": "challenge"}
        case Message():
            if any(answer is one for one in args):
                return {"verdict": "abstain"}
            return {"verdict": "replace", "topic": answer.topic, "qos": answer.qos}
        case Subscription():
            if any(answer is one for one in args):
                return {"verdict": "abstain"}
            return {"verdict": "replace", "filter": answer.topic_filter, "qos": answer.qos}
    return {"verdict": "error", "error": f"answered with {type(answer).__name__}"}


def topic_of(call: HookImplementation, args: tuple[Any, ...]) -> str | None:
    """Return the topic or filter that a call was about, or None."""
    if call.hook == "authorize":
        return str(args[2])
    about = args[1]
    if isinstance(about, Message):
        return about.topic
    return about.topic_filter if isinstance(about, Subscription) else None
