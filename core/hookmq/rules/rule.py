"""A rule, and what is a good one."""

import re
from dataclasses import dataclass
from typing import Final

from hookmq.errors import ConfigError, ProtocolError
from hookmq.topics import SHARE_PREFIX, validate_filter
from hookmq.types import Action

USER: Final = "%u"
CLIENT_ID: Final = "%c"
_MISSPELT: Final = frozenset({"%U", "%C"})
_LEVEL: Final = re.compile(r"(?:\$\{[^}]{0,256}\}|[^/])*+")
"""One level as written; a claim's name may hold a slash. Bounded and possessive: linear in the filter's length."""
_CLAIM: Final = re.compile(r"\$\{[^{}+#\0]+\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """Allow or deny `actions` on `filter`, a topic filter without ``$share/`` whose levels may be variables.

    `qos` is the highest QoS that the rule speaks of, None for every; `retain` the RETAIN flag, None for either. Of
    several rules the one with the lowest `order` decides, of equals the one given first. `source` says where the rule
    stands and is what is reported: ``acl.yaml:12``, ``claim acl.publish[0]``.
    """

    allow: bool
    filter: str
    actions: frozenset[Action]
    qos: int | None = None
    retain: bool | None = None
    order: int = 0
    source: str = ""


def check_rule(rule: Rule) -> None:
    """Return if `rule` is one that `Rules` takes; otherwise raise its ConfigError."""
    levels_of(rule)


def levels_of(rule: Rule) -> list[str]:
    """A rule's levels, after its filter was found good."""
    filter = rule.filter
    if filter.startswith(SHARE_PREFIX):
        raise _wrong(rule, "a rule speaks of the filter behind $share/NAME/, which bears none")
    if rule.qos is not None and rule.qos not in (0, 1, 2):
        raise _wrong(rule, f"qos is {rule.qos!r}: 0, 1 or 2")
    levels = _levels(filter)
    plain = filter
    if "%" in filter or "${" in filter:
        plain = "/".join("v" if is_variable(level) else level for level in levels)
        if "%u" in plain or "%c" in plain or "${" in plain:
            raise _wrong(rule, "a variable (%u, %c, ${claim}) is a whole level")
        if not _MISSPELT.isdisjoint(levels):
            # As plain text it would match nothing, and a rule that denies would let everything pass.
            raise _wrong(rule, "variables are written %u and %c")
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
