"""A rule, and the check of its filter."""

import re
from dataclasses import dataclass
from typing import Final

from hookmq.mqtt_api import SHARE_PREFIX, validate_filter
from hookmq.plugin import Action, ConfigError, ProtocolError

USER: Final = "%u"
CLIENT_ID: Final = "%c"
_MISSPELT: Final = frozenset({"%U", "%C"})
_LEVEL: Final = re.compile(r"(?:\$\{[^}]{0,256}\}|[^/])*+")
"""One level as written. A claim's name may contain a slash. The bounded, possessive pattern takes linear time."""
_CLAIM: Final = re.compile(r"\$\{[^{}+#\0]+\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that allows or denies `actions` on `filter`, a topic filter without ``$share/`` whose
    levels may be variables.

    `qos` is the highest QoS to which the rule applies, or None for any. `retain` is the RETAIN flag to which it applies,
    or None for either value. The rule with the lowest `order` decides; in a tie, the first one. `source` is where the
    rule was defined, for logs and reasons: ``acl.yaml:12``, ``claim acl.publish[0]``.
    """

    allow: bool
    filter: str
    actions: frozenset[Action]
    qos: int | None = None
    retain: bool | None = None
    order: int = 0
    source: str = ""


def check_rule(rule: Rule) -> None:
    """Raise ConfigError if `Rules` would refuse `rule`."""
    levels_of(rule)


def levels_of(rule: Rule) -> list[str]:
    """Return the levels of a rule's filter. Raise ConfigError if the rule is invalid."""
    filter = rule.filter
    if filter.startswith(SHARE_PREFIX):
        raise _wrong(rule, "write the filter without $share/NAME/")
    if rule.qos is not None and rule.qos not in (0, 1, 2):
        raise _wrong(rule, f"qos is {rule.qos!r}; expected 0, 1 or 2")
    levels = _levels(filter)
    plain = filter
    if "%" in filter or "${" in filter:
        plain = "/".join("v" if is_variable(level) else level for level in levels)
        if "%u" in plain or "%c" in plain or "${" in plain:
            raise _wrong(rule, "a variable (%u, %c, ${claim}) must be a whole level")
        if not _MISSPELT.isdisjoint(levels):
            # As plain text it would match no topic, and a deny would have no effect.
            raise _wrong(rule, "unknown variable; expected %u, %c or ${claim}")
    try:
        validate_filter(plain)
    except ProtocolError as error:
        raise _wrong(rule, error.detail) from None
    return levels


def _levels(filter: str) -> list[str]:
    if "${" not in filter:
        return filter.split("/")
    levels: list[str] = []
    end = -1
    while end < len(filter):
        found = _LEVEL.match(filter, end + 1)
        assert found is not None  # it matches the empty string
        levels.append(found.group())
        end = found.end()
    return levels


def is_variable(level: str) -> bool:
    if level in (USER, CLIENT_ID):
        return True
    return level.startswith("${") and _CLAIM.fullmatch(level) is not None


def _wrong(rule: Rule, message: str) -> ConfigError:
    return ConfigError(f"topic filter {rule.filter[:200]!r}: {message}", source=rule.source)
