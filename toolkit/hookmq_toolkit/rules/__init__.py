"""Access rules: find the rule that decides on a topic or filter.

A `Rule` allows or denies actions on a topic filter. `Rules` finds the first rule that applies. If none applies, the
caller decides; every plugin in this repository denies.

**PUBLISH, WILL, DELIVER.** A rule applies if its filter matches the topic. If the rule has a `qos`, the message's QoS
must not be higher. If it has `retain`, the message's RETAIN flag must be the same.

**SUBSCRIBE.** The decision covers all messages that the subscription can receive, retained or not, up to its QoS.

- An *allow* applies if its filter **contains** the requested one: ``home/+`` never allows ``home/#``. An allow with a
  `qos` also applies to a subscription with a higher QoS, and lowers it: return ``Allow(max_qos=rule.qos)``. An allow with
  `retain` never applies, because a subscription cannot be limited to such messages.
- A *deny* applies if the two filters **overlap**, regardless of its `qos` and `retain`. If ``home/secret`` is denied
  first, a subscription to ``home/#`` is refused, because it would receive messages on the denied topic.

**Variables** are whole levels of a rule's filter: ``%u`` is the user, ``%c`` the client id and ``${NAME}`` a claim. A
value is compared as one level and never read as a filter. A value is unusable if it is missing or empty, contains
``+``, ``#``, ``/`` or U+0000, or starts with ``$`` as the first level. An allow then does not apply, and a deny applies
as if the variable matched any level. Either way, less is allowed, never more.
"""

from hookmq_toolkit.rules.decide import Rules
from hookmq_toolkit.rules.lists import MAX_LISTED, rules_from_lists
from hookmq_toolkit.rules.named import ACTIONS, condition_problem
from hookmq_toolkit.rules.rule import CLIENT_ID, USER, Rule, check_rule
from hookmq_toolkit.rules.values import rule_values

__all__ = [
    "ACTIONS", "CLIENT_ID", "MAX_LISTED", "USER", "Rule", "Rules", "check_rule", "condition_problem", "rule_values",
    "rules_from_lists",
]  # fmt: skip
