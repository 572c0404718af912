"""A rule of a user or group: its JSON form, its validation, and the toolkit rules that it compiles to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookmq.plugin import Action, ConfigError
from hookmq_toolkit.accounts import AccountError
from hookmq_toolkit.rules import ACTIONS, Rule, check_rule, condition_problem

MAX_TOPICS: Final = 100
"""Maximum number of topic filters in one rule."""
MAX_FILTER: Final = 1024
"""Maximum length of a topic filter, in characters."""
_KEYS: Final = ("allow", "deny", "topic", "qos", "retain")


@dataclass(frozen=True, slots=True)
class AccountRule:
    """One rule. `id` is unique within its user or group. `words` are the rule's actions as the operator wrote them."""

    id: int
    allow: bool
    words: tuple[str, ...]
    topic: tuple[str, ...]
    qos: int | None = None
    retain: bool | None = None

    def shown(self, with_id: bool = True) -> dict[str, Any]:
        """Return the JSON form."""
        found: dict[str, Any] = {"id": self.id} if with_id else {}
        found["allow" if self.allow else "deny"] = list(self.words)
        found["topic"] = list(self.topic)
        if self.qos is not None:
            found["qos"] = self.qos
        if self.retain is not None:
            found["retain"] = self.retain
        return found

    def compiled(self, source: str, order: int) -> Iterator[Rule]:
        """Yield a rule for each topic filter. `source` is the rule's name in reasons and logs."""
        actions = actions_of(self.words)
        for filter in self.topic:
            yield Rule(self.allow, filter, actions, self.qos, self.retain, order, source)


def actions_of(words: tuple[str, ...]) -> frozenset[Action]:
    """Return the actions that a rule's words cover."""
    return frozenset[Action]().union(*(ACTIONS[word] for word in words))


def parse_rule(value: object, id: int, field: str) -> AccountRule:
    """Parse a rule from a JSON value. `field` is the path of the value. Raises AccountError, which names the invalid
    field.
    """
    if not isinstance(value, Mapping):
        raise invalid(field, "expected an object")
    given = {key: one for key, one in value.items() if one is not None and key != "id"}
    for key in given:
        if key not in _KEYS:
            raise invalid(field, f"unknown key {str(key)[:80]!r}; expected {', '.join(_KEYS)}")
    if ("allow" in given) == ("deny" in given):
        raise invalid(field, "a rule must have either allow or deny")
    allow = "allow" in given
    key = "allow" if allow else "deny"
    words = texts(given[key], f"{field}.{key}", len(ACTIONS))
    for index, word in enumerate(words):
        if word not in ACTIONS:
            known = ", ".join(ACTIONS)
            raise invalid(f"{field}.{key}[{index}]", f"unknown action; expected {known}")
    if "topic" not in given:
        raise invalid(f"{field}.topic", "the field is missing")
    topic = texts(given["topic"], f"{field}.topic", MAX_TOPICS)
    qos, retain = given.get("qos"), given.get("retain")
    if qos is not None and (type(qos) is not int or qos not in (0, 1, 2)):
        raise invalid(f"{field}.qos", "expected 0, 1 or 2")
    if retain is not None and type(retain) is not bool:
        raise invalid(f"{field}.retain", "expected true or false")
    problem = condition_problem(allow, actions_of(words), qos, retain)
    if problem is not None:
        raise invalid(f"{field}.{problem[0]}", problem[1])
    made = AccountRule(id, allow, words, topic, qos, retain)
    for index, rule in enumerate(made.compiled("", 0)):
        place = f"{field}.topic[{index}]"
        if len(rule.filter) > MAX_FILTER:
            raise invalid(place, f"expected at most {MAX_FILTER} characters")
        try:
            check_rule(rule)
        except ConfigError as error:
            raise invalid(place, error.message) from None
    return made


def texts(value: object, field: str, most: int, least: int = 1) -> tuple[str, ...]:
    """Return a list of strings without duplicates. Raises AccountError."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise invalid(field, "expected a list of strings")
    if not least <= len(value) <= most:
        raise invalid(field, f"expected {least} to {most} items")
    if len(set(value)) < len(value):
        raise invalid(field, "an item is repeated")
    return tuple(value)


def invalid(field: str, text: str) -> AccountError:
    """Return an error about a field's value."""
    return AccountError("invalid", text, field)
