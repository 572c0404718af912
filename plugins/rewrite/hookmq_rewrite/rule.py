"""One rewrite rule: what it applies to, and the topic or topic filter that it makes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from hookmq.plugin import ConfigError, Plugin, setting

RuleAction = Literal["publish", "subscribe", "will", "deliver"]
_VARIABLE: Final = re.compile(r"%c|%u|\$\{([^{}]*)\}")


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
    """A rule that is ready to use.

    `place` names the rule in messages, such as ``rules[0]``. `result` is a topic filter that matches every topic the
    rule can make. Raises ConfigError for a rule that can never work.
    """

    __slots__ = (
        "_dollar",
        "_groups",
        "_levels",
        "_regex",
        "_text",
        "actions",
        "filter",
        "place",
        "result",
        "variables",
    )

    def __init__(self, rule: Rule, place: str) -> None:
        self.place = place
        self.filter = rule.filter
        self.actions = frozenset(rule.actions)
        if not is_filter(rule.filter):
            raise ConfigError(f"{place}.filter: expected a topic filter, found {rule.filter!r}")
        if not rule.to:
            raise ConfigError(f"{place}.to: expected a topic, found an empty text")
        self._text = rule.to
        self._levels = rule.filter.split("/")
        self._regex: re.Pattern[str] | None = None
        if rule.regex:
            try:
                self._regex = re.compile(rule.regex)
            except re.error as error:
                raise ConfigError(f"{place}.regex: {error}") from error
        self._groups = self._group_names()
        names = [found.group(0) for found in _VARIABLE.finditer(rule.to)]
        self.variables = tuple(one for one in names if one[2:-1] not in self._groups)
        """The placeholders that need the client: ``%c``, ``%u`` and claims."""
        for one in self.variables:
            if one[2:-1].isdigit() or one == "${}":
                has = len(self._groups)
                raise ConfigError(f"{place}.to: {one} names no group; the rule has {has}")
        literal = _VARIABLE.sub("", rule.to)
        for sign in "+#\0":
            if sign in literal:
                raise ConfigError(f"{place}.to: {sign!r} must not occur in the new topic")
        if literal.startswith(("$SYS", "$share")) or literal == "$":
            raise ConfigError(f"{place}.to: topics below {literal.split('/')[0]} cannot be made")
        self._dollar = rule.to.startswith("$") and not _VARIABLE.match(rule.to)
        """Whether the rule makes topics that start with ``$`` on purpose."""
        self.result = self._result()

    def _group_names(self) -> frozenset[str]:
        if self._regex is not None:
            numbers = (str(number) for number in range(1, self._regex.groups + 1))
            return frozenset((*numbers, *self._regex.groupindex))
        wild = sum(level in ("+", "#") for level in self._levels)
        return frozenset(str(number) for number in range(1, wild + 1))

    def _many(self) -> frozenset[str]:
        """Return the groups whose text may contain slashes."""
        if self._regex is not None:
            return self._groups
        return frozenset({str(len(self._groups))}) if self._levels[-1] == "#" else frozenset()

    def _result(self) -> str:
        many = self._many()
        levels: list[str] = []
        for level in self._text.split("/"):
            found = [one.group(1) for one in _VARIABLE.finditer(level)]
            if any(name in many for name in found):
                return "/".join([*levels, "#"])
            levels.append("+" if _VARIABLE.search(level) else level)
        return "/".join(levels)

    def apply(self, topic: str, values: Mapping[str, str]) -> str | None:
        """Return what the rule makes of a topic or topic filter, or None if it does not apply.

        `values` has the texts of `variables`. Raises ValueError if one of them is missing or is no single level.
        """
        if not Plugin.contains(self.filter, topic):
            return None
        groups = self._match(topic)
        if groups is None:
            return None

        def fill(found: re.Match[str]) -> str:
            name = found.group(0)
            text = groups.get(name[2:-1]) if name.startswith("$") else None
            if text is not None:
                return text
            value = values.get(name)
            if not value:
                raise ValueError(f"the client has no {name}")
            if any(sign in value for sign in "/+#\0"):
                raise ValueError(f"the client's {name} is no single topic level")
            return value

        made = _VARIABLE.sub(fill, self._without_empty_rest(groups))
        if made.startswith("$") and not (self._dollar or topic.startswith("$")):
            raise ValueError(f"{made.split('/')[0]} would become the first level")
        return made

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

    def _without_empty_rest(self, groups: Mapping[str, str]) -> str:
        """Return `to` without the slash before the last group if ``#`` matched the parent level."""
        last = str(len(self._groups))
        if self._regex is None and self._levels[-1] == "#" and not groups[last]:
            return self._text.replace("/${" + last + "}", "")
        return self._text


def is_filter(text: str) -> bool:
    """Return whether `text` is a valid topic filter of an ordinary subscription [MQTT-4.7.1-1, 4.7.1-2, 4.7.3-1]."""
    if not text or "\0" in text or len(text.encode()) > 65535 or text.startswith("$share/"):
        return False
    levels = text.split("/")
    return "#" not in levels[:-1] and not any(
        len(level) > 1 and ("+" in level or "#" in level) for level in levels
    )
