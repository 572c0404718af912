"""May this client do that? The chain of `authorize`, and what is remembered of its answers per connection."""

from collections.abc import Callable
from math import inf

from hookmq.broker.core import Core
from hookmq.hooks.chains import Chains, narrow
from hookmq.hooks.run import run_authorize
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.router import LONG_TOPIC
from hookmq.runtime import Cancel
from hookmq.types import Action, ClientInfo, Message, Subscription

Key = tuple[Action, str, int, bool]
Known = tuple[Allow | Deny, str, float]


class Decisions(dict[Key, Known]):
    """Remembered verdicts: (verdict, who decided, until when), by (action, topic or filter, QoS, retain). Once they are
    `forgotten` an answer that is still awaited is not remembered: it was asked for before rights changed."""

    __slots__ = ("forgotten",)

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = False

    def forget(self) -> int:
        """Remember nothing, now and later; returns how many there were."""
        count = len(self)
        self.forgotten = True
        self.clear()
        return count


ALLOW = Allow()
DENY = Deny()


def asked(subscription: Subscription) -> str:
    """What a decision about a subscription is remembered by: what is matched, behind its share name."""
    if subscription.share is None:
        return subscription.topic_filter
    return f"$share/{subscription.share}/{subscription.topic_filter}"


def authorize(
    core: Core,
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
    """Tell `done` the verdict and who gave it: at once (then None is returned) or later. The `topic` of a subscription is
    what is matched, without ``$share/NAME/``: a grant of ``home/#`` contains it or not, however it is shared. `decisions`
    is where answers are looked up and remembered, None for no memory. "Could not decide" is never remembered."""
    calls = narrow(chains.authorize[action], topic)
    if not calls:
        done(ALLOW if core.settings.authz.default == "allow" else DENY, "")
        return None
    key = (action, topic if subscription is None else asked(subscription), qos, retain)
    if decisions is not None:
        known = decisions.get(key)
        if known is not None:
            if known[2] == inf or core.runtime.now() < known[2]:
                core.metrics.authz_cache_hits += 1
                done(known[0], known[1])
                return None
            del decisions[key]
            core.remembered -= 1
    core.metrics.authz_cache_misses += 1
    memory = decisions if all(call.cacheable for call in calls) else None

    def decided(verdict: Allow | Deny, by: str) -> None:
        if memory is not None:
            remember(core, memory, key, verdict, by)
        done(verdict, by)

    return run_authorize(
        core.runtime,
        calls,
        (client, action, topic, message, subscription),
        core.settings.authz.default == "allow",
        decided,
    )


def remember(core: Core, decisions: Decisions, key: Key, verdict: Allow | Deny, by: str) -> None:
    """Keep a verdict for as long as it may be kept, within the bound per connection."""
    limit = core.settings.broker.authz_cache
    if not limit or decisions.forgotten or len(key[1]) > LONG_TOPIC:
        return
    if verdict.cache_for == 0 or (isinstance(verdict, Deny) and not verdict.decided):
        return
    until = inf if verdict.cache_for is None else core.runtime.now() + verdict.cache_for
    if len(decisions) >= limit:
        # The oldest goes: a scan of topics must not push the rest out over and over at a cost.
        del decisions[next(iter(decisions))]
    elif key not in decisions:
        if core.remembered >= core.settings.broker.authz_cache_total:
            return
        core.remembered += 1
    decisions[key] = (verdict, by, until)
