"""One rewrite rule: the topics to which it applies, and the topic or topic filter that it produces."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from hookmq.mqtt_api import ProtocolError, validate_filter
from hookmq.plugin import ConfigError, Plugin, setting
from hookmq_toolkit.topic_template import TopicTemplate

RuleAction = Literal["publish", "subscribe", "will", "deliver"]
_GROUP: Final = re.compile(r"\$\{([^{}]*)\}")


@dataclass(frozen=True)
class Rule:
    """One entry of `rules`."""

    filter: str = field(
        metadata={"help": "topic filter; the rule applies to topics that it matches"}
    )
    to: str = field(
        metadata={"help": "the new topic, with ${1}, ${NAME}, %c and %u filled in"},
    )
    regex: str = setting(
        "", "regular expression that must match the whole topic; its groups fill in `to`"
    )
    actions: tuple[RuleAction, ...] = setting(
        ("publish", "subscribe", "will"),
        "publish, subscribe and will rewrite what clients send, deliver what they receive",
        nonempty=True,
    )


class CompiledRule:
    """A compiled rule.

    `place` names the rule in messages, such as ``rules[0]``. `result` is a topic filter that matches every topic the
    rule can produce. `variables` are the placeholders whose values depend on the client: ``%c``, ``%u`` and claims.
    Raises ConfigError for a rule that can never work.
    """

    __slots__ = (
        "_groups", "_levels", "_parent", "_regex", "_to", "actions", "filter", "place", "result", "variables",
    )  # fmt: skip

    def __init__(self, rule: Rule, place: str) -> None:
        self.place = place
        self.filter = rule.filter
        self.actions = frozenset(rule.actions)
        if not is_filter(rule.filter):
            raise ConfigError(f"{place}.filter: expected a topic filter, found {rule.filter!r}")
        if not rule.to:
            raise ConfigError(f"{place}.to: expected a topic, found an empty text")
        self._to = TopicTemplate(rule.to)
        self._levels = rule.filter.split("/")
        self._regex: re.Pattern[str] | None = None
        if rule.regex:
            try:
                self._regex = re.compile(rule.regex)
            except re.error as error:
                raise ConfigError(f"{place}.regex: {error}") from error
        self._groups = self._group_names()
        last = str(len(self._groups))
        self._parent = TopicTemplate(rule.to.replace("/${" + last + "}", ""))
        """The new topic if ``#`` matched the parent level, so that the last group is empty."""
        for name in _GROUP.findall(rule.to):
            if not name or (name.isdigit() and name not in self._groups):
                has = len(self._groups)
                raise ConfigError(f"{place}.to: ${{{name}}} names no group; the rule has {has}")
        self.variables = tuple(one for one in self._to.variables if one[2:-1] not in self._groups)
        literal = self._to.replaced("")
        for sign in "+#\0":
            if sign in literal:
                raise ConfigError(f"{place}.to: {sign!r} must not occur in the new topic")
        if rule.to.startswith(("$SYS/", "$share/")):
            raise ConfigError(f"{place}.to: topics below {rule.to.split('/')[0]} cannot be made")
        self.result = self._result(rule.to)

    def _group_names(self) -> frozenset[str]:
        if self._regex is not None:
            numbers = (str(number) for number in range(1, self._regex.groups + 1))
            return frozenset((*numbers, *self._regex.groupindex))
        wild = sum(level in ("+", "#") for level in self._levels)
        return frozenset(str(number) for number in range(1, wild + 1))

    def _result(self, to: str) -> str:
        many: frozenset[str] = frozenset()  # groups whose text may contain slashes
        if self._regex is not None:
            many = self._groups
        elif self._levels[-1] == "#":
            many = frozenset({str(len(self._groups))})
        levels: list[str] = []
        for level in to.split("/"):
            if many.intersection(_GROUP.findall(level)):
                return "/".join([*levels, "#"])
            levels.append("+" if TopicTemplate(level).variables else level)
        return "/".join(levels)

    def apply(self, topic: str, values: Mapping[str, str]) -> str | None:
        """Return the rewritten topic or topic filter, or None if the rule does not apply.

        `values` maps `variables` to text. Raises ValueError if a value is missing or is not exactly one topic level.
        """
        if not Plugin.contains(self.filter, topic):
            return None
        groups = self._match(topic)
        if groups is None:
            return None
        to = self._to
        if self._regex is None and self._levels[-1] == "#" and not groups[str(len(groups))]:
            to = self._parent
        return to.fill(values, groups)

    def _match(self, topic: str) -> dict[str, str] | None:
        if self._regex is not None:
            found = self._regex.fullmatch(topic)
            if found is None:
                return None
            numbered = {str(at): text or "" for at, text in enumerate(found.groups(), 1)}
            return numbered | {name: text or "" for name, text in found.groupdict().items()}
        levels = topic.split("/")
        groups: dict[str, str] = {}
        for at, level in enumerate(self._levels):
            if level == "#":
                groups[str(len(groups) + 1)] = "/".join(levels[at:])
            elif level == "+":
                groups[str(len(groups) + 1)] = levels[at]
        return groups


def is_filter(text: str) -> bool:
    """Return whether `text` is a valid topic filter for an ordinary subscription."""
    try:
        validate_filter(text)
    except ProtocolError:
        return False
    return not text.startswith("$share/")
