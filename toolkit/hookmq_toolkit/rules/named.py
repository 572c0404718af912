"""The words for actions in rule files, and the conditions that have no effect on those actions."""

from collections.abc import Mapping
from typing import Final

from hookmq.plugin import Action

_READ: Final = frozenset({Action.SUBSCRIBE, Action.DELIVER})
_WRITE: Final = frozenset({Action.PUBLISH, Action.WILL})
ACTIONS: Final[Mapping[str, frozenset[Action]]] = {
    "publish": _WRITE,
    "subscribe": _READ,
    "deliver": frozenset({Action.DELIVER}),
    "will": frozenset({Action.WILL}),
    "all": _READ | _WRITE,
}
"""The actions that each word in a rule covers.

A client that may subscribe may receive the messages, and a client that may publish may set a will.
"""


def condition_problem(
    allow: bool, actions: frozenset[Action], qos: int | None, retain: bool | None
) -> tuple[str, str, str] | None:
    """Return a condition that has no effect on a rule with these `actions`, as (name, reason, hint), or None."""
    asks = Action.SUBSCRIBE in actions
    if qos is not None and asks and not allow:
        why = "qos has no effect if subscribe is denied: every subscription includes QoS 0"
        return "qos", why, ""
    if retain is not None and asks:
        return "retain", "retain has no effect on subscribe", "use publish, will or deliver"
    return None
