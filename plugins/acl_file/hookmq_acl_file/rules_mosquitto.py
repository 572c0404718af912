"""Read rules in mosquitto's acl_file format.

    topic [read|write|readwrite|deny] FILTER      before the first `user`: for clients without a user name
    user NAME                                     the following lines apply to this user
    topic ...
    pattern [read|write|readwrite|deny] FILTER    for all clients, with %u and %c as whole levels

As in mosquitto, a user's own lines come before patterns, and ``deny`` lines come first in each group. Unlike mosquitto,
HookMQ decides SUBSCRIBE by containment: ``read`` on ``a/+`` does not allow a subscription to ``a/#``.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from hookmq.plugin import Action, ConfigError
from hookmq_toolkit.rules import Rule, check_rule

from hookmq_acl_file.index import Entry, Index
from hookmq_acl_file.problems import Problems
from hookmq_acl_file.who import EVERYBODY, Who

_READ: Final = frozenset({Action.SUBSCRIBE, Action.DELIVER})
_WRITE: Final = frozenset({Action.PUBLISH, Action.WILL})
_ACCESS: Final = {
    "read": _READ,
    "write": _WRITE,
    "readwrite": _READ | _WRITE,
    "deny": _READ | _WRITE,
}
_GAP: Final = re.compile(r"[ \t]+")
ANONYMOUS: Final = Who(anonymous=True)


class Line(NamedTuple):
    """One rule in the file."""

    number: int
    who: Who
    pattern: bool
    access: str
    filter: str


def read(text: str, source: str, name: str) -> Index:
    """Return the rules in `text`.

    `source` is the file name to use in errors, and `name` the file name in rule sources such as ``acl:12``. Raises
    FileError with all mistakes.
    """
    entries = []
    for order, line in enumerate(ordered(lines(text, source))):
        allow = line.access != "deny"
        rule = Rule(
            allow, line.filter, _ACCESS[line.access], order=order, source=f"{name}:{line.number}"
        )
        entries.append(Entry(rule, line.who))
    return Index(entries)


def ordered(listed: list[Line]) -> list[Line]:
    """Return the lines in the order in which they are applied."""
    return sorted(listed, key=lambda line: (line.pattern, line.access != "deny"))


def lines(text: str, source: str) -> list[Line]:
    """Return all rules in file order. Raises FileError with all mistakes."""
    problems = Problems()
    found: list[Line] = []
    who = ANONYMOUS
    for number, line in _written(text):
        words = _GAP.split(line, 1)
        try:
            if len(words) < 2:
                raise _wrong(f"a value is missing after {words[0][:50]!r}", source, number)
            word, rest = words
            if word == "user":
                who = Who(users=frozenset({rest}))
            elif word in ("topic", "pattern"):
                found.append(_rule(word == "pattern", rest, who, source, number))
            else:
                hint = "known: topic, pattern, user"
                raise _wrong(f"unknown word {word[:50]!r}", source, number, hint)
        except ConfigError as error:
            problems.add(error)
    problems.check()
    return found


def _written(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")
        if line and not line.startswith("#"):
            yield number, line


def _rule(pattern: bool, rest: str, who: Who, source: str, number: int) -> Line:
    access, *more = _GAP.split(rest, 1)
    filter = more[0] if more else rest
    if not more:
        access = "readwrite"
    elif access not in _ACCESS:
        hint = "read, write, readwrite or deny, also before a filter that contains a space"
        raise _wrong(f"unknown access {access[:50]!r}", source, number, hint)
    if pattern:
        who = EVERYBODY
    elif "%u" in filter or "%c" in filter:
        raise _wrong("%u and %c are plain text in a topic line", source, number, "use pattern")
    if "${" in filter:
        raise _wrong("${...} is not supported in mosquitto's format", source, number)
    try:
        check_rule(Rule(True, filter, _READ))
    except ConfigError as error:
        raise _wrong(error.message, source, number) from None
    return Line(number, who, pattern, access, filter)


def _wrong(message: str, source: str, number: int, hint: str = "") -> ConfigError:
    return ConfigError(message, source=source, line=number, column=1, hint=hint)
