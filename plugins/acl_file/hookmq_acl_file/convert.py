"""Convert mosquitto's acl_file to YAML with the same meaning."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from hookmq_acl_file.rules_mosquitto import ANONYMOUS, Line, lines
from hookmq_acl_file.who import EVERYBODY, Who

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_/.-]*")
_NULLS: Final = frozenset({"null", "Null", "NULL"})
_WORDS: Final = {
    "read": "allow: subscribe",
    "write": "allow: publish",
    "readwrite": "allow: [publish, subscribe]",
    "deny": "deny: all",
}
_FILTERED: Final = {
    "read": "allow: deliver",
    "write": "allow: publish",
    "readwrite": "allow: [publish, deliver]",
    "deny": "deny: [publish, deliver]",
}
_SIFT: Final = """\
  # all subscriptions are allowed; messages that no rule above allows are not delivered
  - deny: deliver
    topic: ["#", "$SYS/#"]
  - allow: subscribe
    topic: ["#", "$SYS/#"]"""


def to_yaml(text: str, source: str, filtered: bool = False) -> str:
    """Convert `text`, the contents of the file `source`, to YAML. Comments are lost.

    With `filtered`, the result allows all subscriptions and decides each delivery, as mosquitto does. Raises ConfigError
    if `text` is not a valid acl_file.
    """
    return "".join(f"{line}\n" for line in _written(lines(text, source), source, filtered))


def _written(found: list[Line], source: str, filtered: bool) -> Iterator[str]:
    yield f"# converted from {quoted(source)} by hookmq acl import"
    words = _FILTERED if filtered else _WORDS
    if not found and not filtered:
        yield "rules: []"
        return
    yield "rules:"
    seen: dict[Who, int] = {}
    for line in found:
        seen.setdefault(line.who, len(seen))

    def place(line: Line) -> tuple[bool, int, bool, str]:
        # No line applies to two users, so lines can be grouped by user. Denials come first, because they take precedence.
        return line.pattern, seen[line.who], line.access != "deny", line.access

    for (_, _, _, access), some in groupby(sorted(found, key=place), place):
        listed = list(some)
        yield f"  - {words[access]}"
        who = listed[0].who
        if who == ANONYMOUS:
            yield "    who: {anonymous: true}"
        elif who != EVERYBODY:
            yield f"    who: {{user: {', '.join(map(quoted, who.users or ()))}}}"
        filters = list(dict.fromkeys(line.filter for line in listed))
        if len(filters) == 1:
            yield f"    topic: {quoted(filters[0])}"
            continue
        yield "    topic:"
        for filter in filters:
            yield f"      - {quoted(filter)}"
    if filtered:
        yield _SIFT


def quoted(text: str) -> str:
    """Return `text` as a YAML scalar, quoted if necessary."""
    if _PLAIN.fullmatch(text) and text not in _NULLS:
        return text
    written = []
    for letter in text:
        if letter in '"\\':
            written.append("\\" + letter)
        elif letter.isprintable() and letter != "\ufeff":
            written.append(letter)
        else:
            written.append(f"\\U{ord(letter):08X}")
    return f'"{"".join(written)}"'
