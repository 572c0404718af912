"""Running a chain, callback-style: `done` is told the answer and the id of the plugin that gave it ("" where nobody did).

While implementations answer at once everything happens within the call, which then returns None. At the first answer that
must be awaited, and at the first implementation that runs in a thread, the rest is handed to the runtime and a `Cancel`
is returned: after calling it `done` is never called and the plugin's coroutine is closed.

Every answer is looked at: None, a verdict that is legal for the hook, or (once) an awaitable whose result is looked at in
the same way. Anything else, an exception and a missed deadline are the plugin's failure, and a failure closes: it becomes
a Deny that says ``decided=False``, unless the configuration chose otherwise for a transform.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hookmq.errors import ProtocolError
from hookmq.hooks.chains import Call, Calls, cacheable, narrow
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Drop, Limits, least
from hookmq.hooks.waiting import FAILED, Failed, Waiting, failure, nonsense
from hookmq.properties import Properties
from hookmq.reason import ReasonCode
from hookmq.runtime import Cancel, Runtime
from hookmq.topics import validate_topic
from hookmq.types import Message, Subscription

_ACCEPT: Final = Accept()
_ALLOW: Final = Allow()
_DENY: Final = Deny()
_NOT_ACCEPTED: Final = Deny(ReasonCode.SERVER_UNAVAILABLE, decided=False)
_NOT_AUTHENTICATED: Final = Deny(ReasonCode.UNSPECIFIED_ERROR, decided=False)
_UNDECIDED: Final = Deny(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, decided=False)
_UNASKED: Final = object()


# decide ----------------------------------------------------------------------------------------------------------


class _Rule:
    """How one deciding hook makes one answer of many: the verdict that consents and how two of them combine, those that
    end it at once, and the answer when a plugin failed."""

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
"""How the names of claims begin that are a plugin's own notes, its id behind it."""


def merge_accepts(first: Accept, later: Accept) -> Accept:
    """An identity and claims that were given stay; bounds only tighten."""
    claims = first.claims if first.claims is not None else later.claims
    if first.claims is not None and later.claims:
        # What a later plugin allows a client it notes among the claims: to lose that would be to allow more.
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


def _own_notes(accept: Accept, plugin_id: str) -> Accept:
    """`accept` without notes in another's name: claims come from tokens and services, which must not speak for another
    plugin."""
    claims = accept.claims
    mine = NOTES + plugin_id
    if not claims or all(name == mine or not str(name).startswith(NOTES) for name in claims):
        return accept
    kept = {k: v for k, v in claims.items() if k == mine or not str(k).startswith(NOTES)}
    return replace(accept, claims=kept)


def _merge_allows(first: Allow, later: Allow) -> Allow:
    if later is first or (later.cache_for is None and later.max_qos is None):
        return first
    return Allow(least(first.cache_for, later.cache_for), least(first.max_qos, later.max_qos))


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
    """May a client connect? `args` are (client, connect).

    Deny overrides: in order, any Deny ends it. Of those that accept, the first to give an identity is named, else the
    first; later ones may add an identity or claims that are missing so far and tighten `expires_at` and limits. If none
    answered: what `default_allow` says. A failure: Deny 0x88.
    """
    default = _ACCEPT if default_allow else _DENY
    return _decide(_CONNECT, runtime, calls, args, default, done, 0, None, "", None, _UNASKED)


def run_auth(
    runtime: Runtime,
    calls: Calls,
    args: tuple[Any, ...],
    done: Callable[[Challenge | Accept | Deny | None, str], None],
) -> Cancel | None:
    """One step of enhanced authentication. `args` are (client, auth). The first answer holds; None if nobody knows the
    method. A failure: Deny 0x80."""
    return _decide(_AUTH, runtime, calls, args, None, done, 0, None, "", None, _UNASKED)


def run_authorize(
    runtime: Runtime,
    calls: Calls,
    args: tuple[Any, ...],
    default_allow: bool,
    done: Callable[[Allow | Deny, str], None],
) -> Cancel | None:
    """May a client do that? `args` are (client, action, topic, message, subscription).

    Deny overrides: in order, any Deny ends it, and it takes one Allow at least. The Allow that `done` gets has the lowest
    `cache_for` and `max_qos` of all and names the first that allowed. Nobody answered: what `default_allow` says. A
    failure: Deny 0x83, not to be remembered.
    """
    calls = narrow(calls, args[2])
    default = _ALLOW if default_allow else _DENY
    if not cacheable(calls):
        done = _once(done)
    return _decide(_AUTHORIZE, runtime, calls, args, default, done, 0, None, "", None, _UNASKED)


def _once(done: Callable[[Allow | Deny, str], None]) -> Callable[[Allow | Deny, str], None]:
    """`done`, told that the answer holds this one time."""

    def told(verdict: Allow | Deny, by: str) -> None:
        done(Allow(0.0, verdict.max_qos) if isinstance(verdict, Allow) else verdict, by)

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
    """Go on at `index`, whose answer may be known already; `consent` is what was said so far, `by` by whom first."""
    while index < len(calls):
        call = calls[index]
        stats = call.stats
        if answer is _UNASKED:
            if call.blocking:
                waiting = waiting or Waiting(runtime)
                resume = partial(
                    _decide, rule, runtime, calls, args, default, done, index, consent, by, waiting
                )
                waiting.in_thread(call, args, resume)
                return waiting.cancel
            count = stats.calls
            stats.calls = count + 1
            began = -1.0 if count & stats.mask else stats.clock()
            try:
                answer = call.function(*args)
            except Exception as error:
                answer = failure(call, error)
            kind = type(answer)
            if kind not in _SETTLED and hasattr(kind, "__await__") and not call.sync_only:
                waiting = waiting or Waiting(runtime)
                resume = partial(
                    _decide, rule, runtime, calls, args, default, done, index, consent, by, waiting
                )
                waiting.on(call, answer, began, resume)
                return waiting.cancel
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
                    answer = _own_notes(answer, call.plugin_id)
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
                answer = _own_notes(answer, by)
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
    done: Callable[[Message | Subscription | Deny | Drop, str], None],
    skip: str = "",
) -> Cancel | None:
    """Give a message (`on_publish`, `on_will`) or a subscription (`on_subscribe`) to each in turn.

    Each sees what the one before made of it. Deny and Drop end it. `skip` is the id of the plugin that published the
    message itself and is passed over. A failure: Deny 0x83, or on as before where ``on_error`` is ``pass``. The id told
    to `done` is that of the plugin that ended it, else of the last that replaced the value. Of a message, QoS may be
    lowered but not raised, and sender, origin and time of arrival stay what they were; of a subscription, `filter` stays.
    """
    return _transform(runtime, calls, client, value, done, skip, 0, "", None, _UNASKED)


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
                waiting = waiting or Waiting(runtime)
                resume = partial(
                    _transform, runtime, calls, client, value, done, skip, index, by, waiting
                )
                waiting.in_thread(call, (client, value), resume)
                return waiting.cancel
            count = stats.calls
            stats.calls = count + 1
            began = -1.0 if count & stats.mask else stats.clock()
            try:
                answer = call.function(client, value)
            except Exception as error:
                answer = failure(call, error)
            kind = type(answer)
            if kind not in _SETTLED and hasattr(kind, "__await__"):
                waiting = waiting or Waiting(runtime)
                resume = partial(
                    _transform, runtime, calls, client, value, done, skip, index, by, waiting
                )
                waiting.on(call, answer, began, resume)
                return waiting.cancel
            if began >= 0.0:
                stats.end(began)
        kind = type(answer)
        if answer is None or answer is value:
            stats.abstain += 1
        elif kind is Deny:
            stats.deny += 1
            done(answer, call.plugin_id)
            return None
        elif kind is Drop and call.hook != "on_subscribe":
            stats.drop += 1
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
    """Give a message that leaves for a subscriber to each in turn; None if it is not to be sent (Drop, Deny).

    A failure: on as before, or None where ``on_error`` is ``drop``. The same object comes back if nobody changed it.
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
            answer = call.function(client, message, subscription)
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


def _replacement(call: Call, old: Any, new: Any) -> Any:
    """`new`, checked and with what a plugin may not change put back; `FAILED` if it cannot stand for `old`."""
    if isinstance(old, Message) and isinstance(new, Message):
        wrong = _wrong_message(old, new)
        if not wrong and call.hook == "on_deliver" and new.topic != old.topic:
            wrong = _wrong_topic(new.topic)  # after the other hooks the broker itself looks
        if not wrong:
            if (new.sender, new.origin, new.received_at) == (
                old.sender,
                old.origin,
                old.received_at,
            ):
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
    if type(new.topic) is not str:
        return "whose topic is not str"
    if type(new.payload) is not bytes:
        return "whose payload is not bytes"
    if type(new.retain) is not bool:
        return "whose retain is not bool"
    if not isinstance(new.properties, Properties):
        return "whose properties are not Properties"
    if new.expires_at is not None and type(new.expires_at) not in (int, float):
        return "whose expires_at is no time"
    return _wrong_qos(old.qos, new.qos)


def _wrong_topic(topic: str) -> str:
    try:
        validate_topic(topic)
    except ProtocolError as error:
        return f"whose topic cannot be: {error.detail}"
    return ""


def _wrong_subscription(old: Subscription, new: Subscription) -> str:
    if type(new.topic_filter) is not str:
        return "whose topic_filter is not str"
    if new.filter != old.filter:
        return "whose filter is another: change topic_filter"
    if type(new.retain_handling) is not int or not 0 <= new.retain_handling <= 2:
        return "whose retain_handling is not 0, 1 or 2"
    if type(new.no_local) is not bool or type(new.retain_as_published) is not bool:
        return "whose options are not bool"
    if new.share is not None and type(new.share) is not str:
        return "whose share is not str"
    if new.identifier is not None and type(new.identifier) is not int:
        return "whose identifier is not int"
    return _wrong_qos(old.qos, new.qos)


def _wrong_qos(old: int, new: Any) -> str:
    if not isinstance(new, int) or not 0 <= new <= 2:
        return "whose qos is not 0, 1 or 2"
    if new > old:
        return f"of QoS {new} where it was {old}: QoS is never raised"
    return ""


_SETTLED: Final[frozenset[type]] = frozenset(
    {type(None), Accept, Allow, Challenge, Deny, Drop, Message, Subscription, Failed}
)
"""Types of answers that need not be asked whether they can be awaited."""
