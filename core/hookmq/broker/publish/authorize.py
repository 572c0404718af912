"""Authorize a client's action: call the `authorize` chain, and remember decisions per connection."""

from collections.abc import Callable
from math import inf

from hookmq.broker.state import BrokerState
from hookmq.hooks.call import run_authorize
from hookmq.hooks.chain import Chains, narrow
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.client import ClientInfo
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.model.runtime import Cancel
from hookmq.model.subscription import Subscription
from hookmq.routing.subscription_tree import LONG_TOPIC

Key = tuple[Action, str, int, bool]
Known = tuple[Allow | Deny, str, float]


class Decisions(dict[Key, Known]):
    """Remembered verdicts, each with the plugin that decided and an expiry time. They are looked up by action, topic or
    filter, QoS and RETAIN flag. Once `forgotten` is set, pending verdicts are not remembered, because they precede a
    change of permissions.
    """

    __slots__ = ("forgotten",)

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = False

    def forget(self) -> int:
        """Discard all verdicts and remember no new ones. Return how many there were."""
        count = len(self)
        self.forgotten = True
        self.clear()
        return count


ALLOW = Allow()
DENY = Deny()


def asked(subscription: Subscription) -> str:
    """Return the filter under which a decision on a subscription is remembered, including its share name."""
    if subscription.share is None:
        return subscription.topic_filter
    return f"$share/{subscription.share}/{subscription.topic_filter}"


def authorize(
    state: BrokerState,
    client: ClientInfo,
    chains: Chains,
    decisions: Decisions | None,
    action: Action,
    topic: str,
    qos: int,
    retain: bool,
    message: Message | None,
    subscription: Subscription | None,
    done: Callable[[Allow | Deny, str], None],
) -> Cancel | None:
    """Call `done` with the verdict and the id of the plugin that gave it.

    If the verdict is available at once, return None after the call. Otherwise return a function that cancels the wait;
    `done` is called later.

    The `topic` of a subscription is its filter without ``$share/NAME/``: permission for ``home/#`` covers every share
    name. Verdicts are remembered in `decisions`, unless it is None. An undecided verdict is never remembered.
    """
    calls = narrow(chains.authorize[action], topic)
    if not calls:
        done(ALLOW if state.settings.authz.default == "allow" else DENY, "")
        return None
    key = (action, topic if subscription is None else asked(subscription), qos, retain)
    if decisions is not None:
        known = decisions.get(key)
        if known is not None:
            if known[2] == inf or state.runtime.now() < known[2]:
                state.metrics.authz_cache_hits += 1
                done(known[0], known[1])
                return None
            del decisions[key]
            state.remembered -= 1
    state.metrics.authz_cache_misses += 1
    memory = decisions if all(call.cacheable for call in calls) else None

    def decided(verdict: Allow | Deny, by: str) -> None:
        if memory is not None:
            remember(state, memory, key, verdict, by)
        done(verdict, by)

    return run_authorize(
        state.runtime,
        calls,
        (client, action, topic, message, subscription),
        state.settings.authz.default == "allow",
        decided,
    )


def remember(
    state: BrokerState, decisions: Decisions, key: Key, verdict: Allow | Deny, by: str
) -> None:
    """Remember a verdict for the duration that it specifies, within the limit per connection."""
    limit = state.settings.broker.authz_cache
    if not limit or decisions.forgotten or len(key[1]) > LONG_TOPIC:
        return
    if verdict.cache_for == 0 or (isinstance(verdict, Deny) and not verdict.decided):
        return
    until = inf if verdict.cache_for is None else state.runtime.now() + verdict.cache_for
    if len(decisions) >= limit:
        # Forget only the oldest: clearing everything would let a scan of many topics evict all others repeatedly.
        del decisions[next(iter(decisions))]
    elif key not in decisions:
        if state.remembered >= state.settings.broker.authz_cache_total:
            return
        state.remembered += 1
    decisions[key] = (verdict, by, until)
