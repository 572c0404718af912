"""Call a chain of `on_publish` on the fast path, which cannot wait for a plugin.

The fast path continues only if every plugin abstains. Any other result is passed to `continue_transform`, which
completes the chain as `run_transform` would, without calling a plugin twice.
"""

from collections.abc import Callable
from typing import Any

from hookmq.hooks.async_calls import failure
from hookmq.hooks.call import transform_from
from hookmq.hooks.chain import Calls, HookImplementation, narrow
from hookmq.hooks.verdicts import Deny, Drop, Handled
from hookmq.model.client import ClientInfo
from hookmq.model.message import Message, make_message
from hookmq.model.runtime import Cancel, Runtime
from hookmq.model.subscription import Subscription
from hookmq.mqtt.properties import Properties


class Answered:
    """A message and the first call that did not abstain (None if all abstained). `answer` is the call's result. `began`
    is the call's start time, or -1 if the call is not timed.
    """

    __slots__ = ("answer", "began", "call", "message")

    def __init__(
        self,
        message: Message,
        call: HookImplementation | None = None,
        answer: Any = None,
        began: float = -1.0,
    ) -> None:
        self.message = message
        self.call = call
        self.answer = answer
        self.began = began


def inline_calls(calls: Calls, topic: str) -> Calls | None:
    """Return the calls that apply to `topic`, or None if one of them is async or runs in a thread."""
    calls = narrow(calls, topic)
    return None if any(call.is_async or call.blocking for call in calls) else calls


def ask(
    calls: Calls,
    client: ClientInfo,
    topic: str,
    payload: bytes,
    qos: int,
    properties: Properties,
    now: float,
    expires_at: float | None,
) -> Message | Answered:
    """Create the message for a PUBLISH from `client`, received at `now`, and pass it to `calls` until one does not
    abstain. All `calls` must apply to the topic. Return the message if all abstained, otherwise an `Answered` for the
    call that did not.

    Both steps are in one function, because calling an interpreted function from compiled code costs as much as making a
    message.
    """
    message = make_message(
        topic, payload, qos, False, properties, client.client_id, "client", now, expires_at
    )
    for call in calls:
        stats = call.stats
        count = stats.calls
        stats.calls = count + 1
        began = -1.0 if count & stats.mask else stats.clock()
        direct = call.direct
        try:
            answer = call.function(client, message) if direct is None else direct(message)
        except Exception as error:
            answer = failure(call, error)
        if answer is not None and answer is not message:
            return Answered(message, call, answer, began)
        stats.abstain += 1
        if began >= 0.0:
            stats.end(began)
    return message


def continue_transform(
    runtime: Runtime,
    calls: Calls,
    client: Any,
    message: Message,
    done: Callable[[Message | Subscription | Deny | Drop | Handled, str], None],
    answered: Answered,
) -> Cancel | None:
    """Complete the chain `calls` after `ask`. `done` and the return value are the same as for `run_transform`."""
    call = answered.call
    if call is None:
        done(message, "")
        return None
    index = calls.index(call)
    return transform_from(
        runtime, calls, client, message, done, index, answered.answer, answered.began
    )
