"""Topic names and topic filters: what is valid, what matches what, what covers what (MQTT 5.0 section 4.7).

A topic is a non-empty string whose levels are divided by ``/``; a level may be empty, so ``/`` has two levels. In a
filter the level ``+`` stands for any one level and a last level ``#`` for the level before it and everything below it:
``sport/#`` matches ``sport`` [MQTT 5.0 section 4.7.1.2]. Comparison is by code point: no folding, no normalization, and
U+FEFF is a character like any other [MQTT-4.7.3-4, 1.5.4-3]
[MQTT311-4.7.3-4, 1.5.3-3].

Everything here is iterative and linear in its input. `matches`, `contains`, `parse_share` and `compile_filter` take
valid input and do not check it again.
"""

import re
from collections.abc import Callable
from typing import Final

from hookmq.errors import ProtocolError
from hookmq.reason import ReasonCode

MAX_BYTES: Final = 65_535
"""The longest string that MQTT can carry, in bytes of UTF-8 [MQTT-4.7.3-3]."""

MAX_LEVELS: Final = 200
"""How many slashes a topic or filter may have unless the caller says otherwise; MQTT itself sets no bound."""

SHARE_PREFIX: Final = "$share/"

_REGEX_LEVELS: Final = 32
"""Filters deeper than this are matched level by level: a regular expression would take long to compile."""


def validate_topic(topic: str, max_levels: int = MAX_LEVELS) -> None:
    """Return if `topic` may name a topic; otherwise raise ProtocolError with TOPIC_NAME_INVALID (0x90).

    Refused: the empty string [MQTT-4.7.3-1], a wildcard [MQTT-4.7.0-1, MQTT-3.3.2-2], U+0000 [MQTT-4.7.3-2], a lone
    surrogate [MQTT-1.5.4-1], more than 65,535 bytes of UTF-8 [MQTT-4.7.3-3] and more than `max_levels` slashes.
    """
    code = ReasonCode.TOPIC_NAME_INVALID
    _check_text(topic, code, "topic name")
    if "+" in topic or "#" in topic:  # [MQTT-4.7.0-1] [MQTT311-4.7.1-1]
        raise ProtocolError(code, "topic name holds a wildcard")
    if topic.count("/") > max_levels:
        raise ProtocolError(code, f"topic name has more than {max_levels} slashes")


def validate_filter(filter: str, max_levels: int = MAX_LEVELS) -> None:
    """Return if `filter` may be subscribed to; otherwise raise ProtocolError with TOPIC_FILTER_INVALID (0x8F).

    The text rules are those of `validate_topic`. Further refused: ``#`` that is not a whole and the last level
    [MQTT-4.7.1-1], ``+`` that is not a whole level [MQTT-4.7.1-2], and after ``$share/`` an empty share name, one with a
    wildcard, or no filter [MQTT-4.8.2-1, MQTT-4.8.2-2]. `max_levels` counts the slashes after the share name.
    """
    code = ReasonCode.TOPIC_FILTER_INVALID
    _check_text(filter, code, "topic filter")
    inner = filter
    if filter.startswith(SHARE_PREFIX):
        name, slash, inner = filter[len(SHARE_PREFIX) :].partition("/")
        if not name:  # [MQTT-4.8.2-1]
            raise ProtocolError(code, "share name is empty")
        if "+" in name or "#" in name:  # [MQTT-4.8.2-2]
            raise ProtocolError(code, "share name holds a wildcard")
        if not slash or not inner:  # [MQTT-4.8.2-2]
            raise ProtocolError(code, "share name is not followed by a topic filter")
    if inner.count("/") > max_levels:
        raise ProtocolError(code, f"topic filter has more than {max_levels} slashes")
    rest = inner.find("#")
    if rest >= 0 and (rest != len(inner) - 1 or (rest > 0 and inner[rest - 1] != "/")):
        # [MQTT-4.7.1-1] [MQTT311-4.7.1-2]
        raise ProtocolError(code, "'#' is not a whole and the last level")
    if "+" in inner:
        for level in inner.split("/"):
            if level != "+" and "+" in level:  # [MQTT-4.7.1-2] [MQTT311-4.7.1-3]
                raise ProtocolError(code, "'+' is not a whole level")


def _check_text(text: str, code: ReasonCode, what: str) -> None:
    if not text:  # [MQTT-4.7.3-1]
        raise ProtocolError(code, f"{what} is empty")
    if "\0" in text:  # [MQTT-4.7.3-2] [MQTT311-4.7.3-2]
        raise ProtocolError(code, f"{what} holds U+0000")
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:  # from a plugin; the codec lets none through [MQTT-1.5.4-1]
            raise ProtocolError(code, f"{what} holds a surrogate") from None
    if size > MAX_BYTES:  # [MQTT-4.7.3-3] [MQTT311-4.7.3-3]
        raise ProtocolError(code, f"{what} is longer than {MAX_BYTES} bytes")


def parse_share(filter: str) -> tuple[str | None, str]:
    """Split a valid filter: ``$share/g/a/+`` gives ``("g", "a/+")``, any other ``(None, filter)``."""
    if not filter.startswith(SHARE_PREFIX):
        return None, filter
    name, _, inner = filter[len(SHARE_PREFIX) :].partition("/")
    return name, inner


def has_wildcard(filter: str) -> bool:
    """True if a valid `filter` can match more than one topic."""
    return "+" in filter or filter.endswith("#")


def matches(filter: str, topic: str) -> bool:
    """True if `filter` (without ``$share/NAME/``) matches `topic`.

    A filter that begins with a wildcard matches no topic that begins with ``$`` [MQTT-4.7.2-1].
    """
    if "+" not in filter:
        if not filter.endswith("#"):
            return filter == topic
        if filter == "#":
            return not topic.startswith("$")  # [MQTT-4.7.2-1]
        return topic.startswith(filter[:-1]) or topic == filter[:-2]
    if filter.startswith("+") and topic.startswith("$"):  # [MQTT-4.7.2-1]
        return False
    return _levels_match(filter.split("/"), topic.split("/"))


def _levels_match(pattern: list[str], levels: list[str]) -> bool:
    """Level by level, once the ``$`` rule has been looked at."""
    depth = len(pattern)
    if pattern[-1] == "#":
        depth -= 1
        if len(levels) < depth:
            return False
    elif len(levels) != depth:
        return False
    for index in range(depth):
        want = pattern[index]
        if want != "+" and want != levels[index]:
            return False
    return True


def contains(outer: str, inner: str) -> bool:
    """True if every topic that `inner` matches is matched by `outer` too; both without ``$share/NAME/``.

    For access lists: may one who was granted `outer` subscribe to `inner`? ``a/#`` contains ``a``; ``#`` and ``+/#``
    contain each other, and neither contains ``$SYS/#``; ``a/+`` does not contain ``a/#``. The bound on a topic's length
    is left out of account: a filter so long that it could match nothing is contained only where its form says so.
    """
    if outer == inner:
        return True
    have = inner.split("/")
    open_end = have[-1] == "#"
    if open_end:
        have.pop()
        # What is left matches its own topic and all below. "#" needs one level at least; "/#" needs two, because its
        # own topic would be the empty string, which is none [MQTT-4.7.3-1]: hence "/+/#" contains "/#".
        if not have or have == [""]:
            have.append("+")
    want = outer.split("/")
    if want[-1] == "#":
        want.pop()
        if not want:
            want.append("+")  # "#" and "+/#" match the same topics
        if len(have) < len(want):
            return False
    elif open_end or len(have) != len(want):
        return False
    if want[0] == "+" and have[0].startswith("$"):  # [MQTT-4.7.2-1]
        return False
    for index in range(len(want)):
        level = want[index]
        if (
            level != "+" and level != have[index]
        ):  # no literal covers "+": a level has endless names
            return False
    return True


def compile_filter(filter: str) -> Callable[[str], bool]:
    """A function that says of a topic what ``matches(filter, topic)`` would, several times faster."""
    if "+" not in filter:
        if not filter.endswith("#"):
            return _equals(filter)
        if filter == "#":
            return _not_dollar
        return _below(filter[:-2])
    pattern = filter.split("/")
    if len(pattern) > _REGEX_LEVELS:
        return _by_levels(filter)
    return _by_regex(pattern)


def _equals(filter: str) -> Callable[[str], bool]:
    def equals(topic: str) -> bool:
        return topic == filter

    return equals


def _not_dollar(topic: str) -> bool:
    return not topic.startswith("$")  # [MQTT-4.7.2-1]


def _below(parent: str) -> Callable[[str], bool]:
    prefix = parent + "/"

    def below(topic: str) -> bool:
        return topic.startswith(prefix) or topic == parent

    return below


def _by_levels(filter: str) -> Callable[[str], bool]:
    def by_levels(topic: str) -> bool:
        return matches(filter, topic)

    return by_levels


def _by_regex(pattern: list[str]) -> Callable[[str], bool]:
    # Possessive quantifiers: a level is never given back, so a failed match costs one pass.
    open_end = pattern[-1] == "#"
    parts = [
        "[^/]*+" if level == "+" else re.escape(level)
        for level in pattern[: -1 if open_end else None]
    ]
    text = "/".join(parts)
    if pattern[0] == "+":
        text = r"(?!\$)" + text  # [MQTT-4.7.2-1]
    fullmatch = re.compile(text + ("(?:/.*+)?+" if open_end else ""), re.DOTALL).fullmatch

    def by_regex(topic: str) -> bool:
        return fullmatch(topic) is not None

    return by_regex
