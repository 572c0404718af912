"""Run the chain of a deciding or transforming hook. `done` receives the result, and the id of the plugin that decided
it, or "".

If all implementations return at once, the whole chain runs within the call, which returns None. If a result must be
awaited or an implementation runs in a thread, the call returns a `Cancel` and the chain continues later. After a
cancellation, `done` is never called and the plugin's coroutine is closed.

Every return value is checked. It must be None, a verdict that the hook allows, or an awaitable of either. Any other
value, an exception or a timeout is a plugin failure. A failure denies with ``decided=False``, unless a transform hook's
`on_error` is set otherwise.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hookmq.hooks.async_calls import FAILED, Failed, Waiting, failure, nonsense
from hookmq.hooks.chain import Calls, HookImplementation, cacheable, narrow
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Handled, Limits, least
from hookmq.model.message import Message
from hookmq.model.runtime import Cancel, Runtime
from hookmq.model.subscription import Subscription
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.mqtt.topics import validate_topic

_ACCEPT: Final = Accept()
_ALLOW: Final = Allow()
_DENY: Final = Deny()
_NOT_ACCEPTED: Final = Deny(ReasonCode.SERVER_UNAVAILABLE, decided=False)
_NOT_AUTHENTICATED: Final = Deny(ReasonCode.UNSPECIFIED_ERROR, decided=False)
_UNDECIDED: Final = Deny(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, decided=False)
_UNASKED: Final = object()


# decide ----------------------------------------------------------------------------------------------------------


class _Rule:
    """Defines how a deciding hook combines the verdicts of plugins.

    `consent` is the type of the consenting verdict; `merge` combines two such verdicts. Verdicts whose type is in
    `final` end the chain. `failed` is the result if a plugin fails.
    """

    __slots__ = ("consent", "failed", "final", "merge")

    def __init__(
        self,
        consent: type | None,
        merge: Callable[[Any, Any], Any],
        final: frozenset[type],
        failed: Deny,
    ) -> None:
        self.consent = consent
        self.merge = merge
        self.final = final
        self.failed = failed


NOTES: Final = "hookmq:"
"""Prefix of a claim that belongs to one plugin, followed by the plugin id."""


def merge_accepts(first: Accept, later: Accept) -> Accept:
    """Combine two Accepts. The first identity and claims win; the stricter limits and expiry apply."""
    claims = first.claims if first.claims is not None else later.claims
    if first.claims is not None and later.claims:
        # Keep the later plugin's own claim. It may restrict the client, so dropping it would grant more.
        noted = {k: v for k, v in later.claims.items() if str(k).startswith(NOTES)}
        if noted:
            claims = {**noted, **first.claims}
    limits: Limits | None = later.limits
    if limits is None or first.limits is None:
        limits = first.limits or limits
    else:
        limits = first.limits.tighten(limits)
    expires_at = least(first.expires_at, later.expires_at)
    return Accept(
        first.identity if first.identity is not None else later.identity,
        claims,
        expires_at,
        limits,
        expiry_code=first.expiry_code if expires_at == first.expires_at else later.expiry_code,
    )


def own_notes(accept: Accept, plugin_id: str) -> Accept:
    """Return `accept` without claims reserved for other plugins, so that tokens and services cannot forge such claims."""
    claims = accept.claims
    mine = NOTES + plugin_id
    if not claims or all(name == mine or not str(name).startswith(NOTES) for name in claims):
        return accept
    kept = {k: v for k, v in claims.items() if k == mine or not str(k).startswith(NOTES)}
    return replace(accept, claims=kept)


def _merge_allows(first: Allow, later: Allow) -> Allow:
    if later is first or (later.cache_for is None and later.max_qos is None):
        return first
    cache_for = least(first.cache_for, later.cache_for)
    return Allow(cache_for, least(first.max_qos, later.max_qos), first.rule)


_CONNECT: Final = _Rule(Accept, merge_accepts, frozenset({Deny}), _NOT_ACCEPTED)
_AUTH: Final = _Rule(None, merge_accepts, frozenset({Accept, Challenge, Deny}), _NOT_AUTHENTICATED)
_AUTHORIZE: Final = _Rule(Allow, _merge_allows, frozenset({Deny}), _UNDECIDED)


def run_connect(
    runtime: Runtime,
    calls: Calls,
    args: tuple[Any, ...],
    default_allow: bool,
    done: Callable[[Accept | Deny, str], None],
) -> Cancel | None:
    """Decide on a connection (`on_connect`). `args` are (client, connect).

    The first Deny ends the chain. Otherwise Accepts are combined. `done` receives the id of the first plugin that
    provided an identity, or else of the first plugin that accepted. If all plugins abstain, `default_allow` decides.
    A failure is Deny 0x88.
    """
    default = _ACCEPT if default_allow else _DENY
    return _decide(_CONNECT, runtime, calls, args, default, done, 0, None, "", None, _UNASKED)


def run_auth(
    runtime: Runtime,
    calls: Calls,
    args: tuple[Any, ...],
    done: Callable[[Challenge | Accept | Deny | None, str], None],
) -> Cancel | None:
    """Take a step of enhanced authentication (`on_auth`). `args` are (client, auth).

    The first verdict decides. The result is None if no plugin supports the method. A failure is Deny 0x80.
    """
    return _decide(_AUTH, runtime, calls, args, None, done, 0, None, "", None, _UNASKED)


def run_authorize(
    runtime: Runtime,
    calls: Calls,
    args: tuple[Any, ...],
    default_allow: bool,
    done: Callable[[Allow | Deny, str], None],
) -> Cancel | None:
    """Decide on an action (`authorize`). `args` are (client, action, topic, message, subscription).

    The first Deny ends the chain. Otherwise at least one Allow is needed. The result has the lowest `cache_for` and
    `max_qos` of all verdicts. `done` also receives the id of the first plugin that allowed the action. If all plugins
    abstain, `default_allow` decides. A failure is Deny 0x83 and must not be cached.
    """
    calls = narrow(calls, args[2])
    default = _ALLOW if default_allow else _DENY
    if not cacheable(calls):
        done = _once(done)
    return _decide(_AUTHORIZE, runtime, calls, args, default, done, 0, None, "", None, _UNASKED)


def _once(done: Callable[[Allow | Deny, str], None]) -> Callable[[Allow | Deny, str], None]:
    """Wrap `done` so that the verdict passed to it is never cached."""

    def told(verdict: Allow | Deny, by: str) -> None:
        if isinstance(verdict, Allow):
            verdict = Allow(0.0, verdict.max_qos, verdict.rule)
        done(verdict, by)

    return told


def _decide(
    rule: _Rule,
    runtime: Runtime,
    calls: Calls,
    args: tuple[Any, ...],
    default: Any,
    done: Callable[[Any, str], None],
    index: int,
    consent: Any,
    by: str,
    waiting: Waiting | None,
    answer: Any,
) -> Cancel | None:
    """Run the chain, starting at `index`. `answer` is the result of the call at `index`, if it is known. `consent` is the
    verdict so far, and `by` is the id of the plugin that gave it.
    """
    while index < len(calls):
        call = calls[index]
        stats = call.stats
        if answer is _UNASKED:
            if call.blocking:
                waits, began = True, -1.0
            else:
                count = stats.calls
                stats.calls = count + 1
                began = -1.0 if count & stats.mask else stats.clock()
                try:
                    answer = call.function(*args)
                except Exception as error:
                    answer = failure(call, error)
                kind = type(answer)
                waits = kind not in _SETTLED and hasattr(kind, "__await__") and not call.sync_only
            if waits:
                waiting = waiting or Waiting(runtime)
                resume = partial(
                    _decide, rule, runtime, calls, args, default, done, index, consent, by, waiting
                )
                return waiting.start(call, args, answer, began, resume)
            if began >= 0.0:
                stats.end(began)
        kind = type(answer)
        if answer is None:
            stats.abstain += 1
        elif kind is rule.consent:
            if call.grants is not None and not call.grants(args[2]):
                stats.abstain += 1
            else:
                if kind is Allow:
                    stats.allow += 1
                else:
                    stats.accept += 1
                    answer = own_notes(answer, call.plugin_id)
                if consent is None:
                    consent, by = answer, call.plugin_id
                else:
                    if kind is Accept and consent.identity is None and answer.identity is not None:
                        by = call.plugin_id
                    consent = rule.merge(consent, answer)
        elif kind in rule.final:
            by = call.plugin_id
            if kind is Deny:
                stats.deny += 1
                if answer.rule:
                    by = f"{by}: {answer.rule}"
            elif kind is Accept:
                stats.accept += 1
                answer = own_notes(answer, by)
            else:
                stats.challenge += 1
            done(answer, by)
            return None
        else:
            if answer is not FAILED:
                nonsense(call, answer)
            done(rule.failed, call.plugin_id)
            return None
        index += 1
        answer = _UNASKED
    done(default if consent is None else consent, by)
    return None


# transform -------------------------------------------------------------------------------------------------------


def run_transform(
    runtime: Runtime,
    calls: Calls,
    client: Any,
    value: Message | Subscription,
    done: Callable[[Message | Subscription | Deny | Drop | Handled, str], None],
    skip: str = "",
) -> Cancel | None:
    """Pass a message (`on_publish`, `on_will`) or a subscription (`on_subscribe`) through a chain.

    Each plugin sees the previous plugin's result. Deny, Drop and Handled end the chain. The plugin with the id `skip`
    published the message and is not called. A failure is Deny 0x83, or is ignored if `on_error` is ``pass``. `done`
    receives the id of the plugin that ended the chain, or of the last plugin that replaced the value.

    Plugins cannot raise the QoS. Changes to a message's sender, origin or time of arrival are undone. A subscription's
    `filter` must not change.
    """
    return _transform(runtime, calls, client, value, done, skip, 0, "", None, _UNASKED)


def transform_from(
    runtime: Runtime,
    calls: Calls,
    client: Any,
    value: Message | Subscription,
    done: Callable[[Message | Subscription | Deny | Drop | Handled, str], None],
    index: int,
    answer: Any,
    began: float,
) -> Cancel | None:
    """Continue `run_transform` at `index`. The call there has already returned `answer`, and all earlier calls abstained.
    `began` is that call's start time, or -1 if it is not timed.
    """
    call = calls[index]
    kind = type(answer)
    if kind not in _SETTLED and hasattr(kind, "__await__"):
        waiting = Waiting(runtime)
        resume = partial(_transform, runtime, calls, client, value, done, "", index, "", waiting)
        return waiting.start(call, (client, value), answer, began, resume)
    call.stats.end(began)
    return _transform(runtime, calls, client, value, done, "", index, "", None, answer)


def _transform(
    runtime: Runtime,
    calls: Calls,
    client: Any,
    value: Any,
    done: Callable[[Any, str], None],
    skip: str,
    index: int,
    by: str,
    waiting: Waiting | None,
    answer: Any,
) -> Cancel | None:
    while index < len(calls):
        call = calls[index]
        stats = call.stats
        if answer is _UNASKED:
            if skip and call.plugin_id == skip:
                index += 1
                continue
            wanted = call.topic
            if wanted is not None and not wanted(_topic(value)):
                index += 1
                continue
            if call.blocking:
                waits, began = True, -1.0
            else:
                count = stats.calls
                stats.calls = count + 1
                began = -1.0 if count & stats.mask else stats.clock()
                try:
                    answer = call.function(client, value)
                except Exception as error:
                    answer = failure(call, error)
                kind = type(answer)
                waits = kind not in _SETTLED and hasattr(kind, "__await__")
            if waits:
                waiting = waiting or Waiting(runtime)
                resume = partial(
                    _transform, runtime, calls, client, value, done, skip, index, by, waiting
                )
                return waiting.start(call, (client, value), answer, began, resume)
            if began >= 0.0:
                stats.end(began)
        kind = type(answer)
        if answer is None or answer is value:
            stats.abstain += 1
        elif kind is Deny or (kind in _DISPOSED and call.hook != "on_subscribe"):
            if kind is Deny:
                stats.deny += 1
            elif kind is Drop:
                stats.drop += 1
            else:
                stats.handled += 1
            done(answer, call.plugin_id)
            return None
        else:
            if answer is not FAILED:
                answer = _replacement(call, value, answer)
            if answer is not FAILED:
                stats.replace += 1
                value, by = answer, call.plugin_id
            elif call.on_error != "pass":
                done(_UNDECIDED, call.plugin_id)
                return None
        index += 1
        answer = _UNASKED
    done(value, by)
    return None


def run_deliver(
    calls: Calls, client: Any, message: Message, subscription: Subscription
) -> Message | None:
    """Pass an outgoing message through a chain. Return the message to send, or None after Drop or Deny.

    A failure is ignored, or drops the message if `on_error` is ``drop``. If no plugin changes the message, the same
    object is returned.
    """
    for call in calls:
        wanted = call.topic
        if wanted is not None and not wanted(message.topic):
            continue
        stats = call.stats
        count = stats.calls
        stats.calls = count + 1
        began = -1.0 if count & stats.mask else stats.clock()
        try:
            direct = call.direct
            if direct is None:
                answer = call.function(client, message, subscription)
            else:
                answer = direct(message)
        except Exception as error:
            answer = failure(call, error)
        if began >= 0.0:
            stats.end(began)
        if answer is None or answer is message:
            stats.abstain += 1
            continue
        kind = type(answer)
        if kind is Drop:
            stats.drop += 1
            return None
        if kind is Deny:
            stats.deny += 1
            return None
        if answer is not FAILED:
            answer = _replacement(call, message, answer)
        if answer is not FAILED:
            stats.replace += 1
            message = answer
        elif call.on_error == "drop":
            return None
    return message


def _topic(value: Message | Subscription) -> str:
    return value.topic if isinstance(value, Message) else value.topic_filter


def _replacement(call: HookImplementation, old: Any, new: Any) -> Any:
    """Return `new` with its protected fields restored, or `FAILED` if it cannot replace `old`."""
    if isinstance(old, Message) and isinstance(new, Message):
        wrong = _wrong_message(old, new)
        if not wrong and call.hook == "on_deliver" and new.topic != old.topic:
            wrong = _wrong_topic(new.topic)  # the broker validates it after all other hooks
        if not wrong:
            own = (old.sender, old.origin, old.received_at)
            if (new.sender, new.origin, new.received_at) == own:
                return new
            return new.replace(sender=old.sender, origin=old.origin, received_at=old.received_at)
    elif isinstance(old, Subscription) and isinstance(new, Subscription):
        wrong = _wrong_subscription(old, new)
        if not wrong:
            return new
    else:
        return nonsense(call, new)
    call.stats.failed(f"answered with a {type(new).__name__} {wrong}")
    return FAILED


def _wrong_message(old: Message, new: Message) -> str:
    if not isinstance(new.properties, Properties):
        return "whose properties are not Properties"
    if new.expires_at is not None and type(new.expires_at) not in (int, float):
        return "whose expires_at is neither a number nor None"
    types = (("topic", str), ("payload", bytes), ("retain", bool))
    return _wrong_types(new, types) or _wrong_qos(old.qos, new.qos)


def _wrong_topic(topic: str) -> str:
    try:
        validate_topic(topic)
    except ProtocolError as error:
        return f"with an invalid topic: {error.detail}"
    return ""


def _wrong_subscription(old: Subscription, new: Subscription) -> str:
    if new.filter != old.filter:
        return "with another filter: change topic_filter instead"
    if type(new.retain_handling) is not int or not 0 <= new.retain_handling <= 2:
        return "whose retain_handling is not 0, 1 or 2"
    types = [("topic_filter", str), ("no_local", bool), ("retain_as_published", bool)]
    types += [(name, kind) for name, kind in _OPTIONAL if getattr(new, name) is not None]
    return _wrong_types(new, types) or _wrong_qos(old.qos, new.qos)


_OPTIONAL: Final[tuple[tuple[str, type], ...]] = (("share", str), ("identifier", int))


def _wrong_types(new: object, types: Iterable[tuple[str, type]]) -> str:
    for name, kind in types:
        if type(getattr(new, name)) is not kind:
            return f"whose {name} is not {kind.__name__}"
    return ""


def _wrong_qos(old: int, new: Any) -> str:
    if not isinstance(new, int) or not 0 <= new <= 2:
        return "whose qos is not 0, 1 or 2"
    if new > old:
        return f"of QoS {new} instead of {old}: QoS cannot be raised"
    return ""


_SETTLED: Final[frozenset[type]] = frozenset(
    {type(None), Accept, Allow, Challenge, Deny, Drop, Handled, Message, Subscription, Failed}
)
"""Result types that are never awaitable."""
_DISPOSED: Final[frozenset[type]] = frozenset({Drop, Handled})
"""Result types after which a message is processed no further, but is still acknowledged."""
