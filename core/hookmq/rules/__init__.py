"""Access rules: which of many decides whether a topic may be published to, subscribed to or delivered.

A `Rule` allows or denies actions on a topic filter; `Rules` finds the first in order that applies. What comes of it where
none applies is the caller's affair (every plugin of ours denies).

**PUBLISH, WILL, DELIVER.** A rule applies if its filter matches the topic, the message's QoS is not above `Rule.qos` and
its RETAIN flag is `Rule.retain`, where they are given.

**SUBSCRIBE** asks for every message that the filter could bring, retained or not, up to a QoS.

- An *allow* applies if its filter **contains** the one subscribed to: ``home/+`` never allows ``home/#``. With a `qos` it
  applies to a subscription for more as well, and lowers it: the caller answers ``Allow(max_qos=rule.qos)``. With a
  `retain` condition it never applies, for no subscription keeps to it.
- A *deny* applies if the two **overlap**, whatever its `qos` and `retain`: where ``home/secret`` is denied first,
  ``home/#`` is refused as a whole, since it would bring what is denied.

**Variables** are whole levels of a rule's filter: ``%u`` the user, ``%c`` the client id, ``${NAME}`` a claim. A value is
compared as one level and never read as a filter. A value that is missing or empty, holds ``+``, ``#``, ``/`` or U+0000,
or begins with ``$`` where it would be the first level, is unusable: then an allow does not apply at all, and a deny
applies as if the variable stood for any level. Either way less is allowed, never more.
"""

from hookmq.rules.decide import Rules
from hookmq.rules.lists import MAX_LISTED, rules_from_lists
from hookmq.rules.rule import CLIENT_ID, USER, Rule, check_rule
from hookmq.rules.values import claim, rule_values

__all__ = [
    "CLIENT_ID", "MAX_LISTED", "USER", "Rule", "Rules", "check_rule", "claim", "rule_values", "rules_from_lists",
]  # fmt: skip
