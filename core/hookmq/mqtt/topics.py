"""Validate, match and compare topics and filters (MQTT 5.0 section 4.7).

A topic is a non-empty string of levels separated by ``/``. A level may be empty, so ``/`` has two levels. In a filter,
the level ``+`` matches any single level. A final ``#`` matches its parent level and everything below: ``sport/#`` matches
``sport`` [MQTT 5.0 section 4.7.1.2]. Strings are compared by code point, without case folding or normalization. U+FEFF is
an ordinary character [MQTT-4.7.3-4, 1.5.4-3] [MQTT311-4.7.3-4, 1.5.3-3].

All functions are iterative and take linear time. `matches`, `contains`, `parse_share` and `compile_filter` expect valid
input and do not check it.
"""

import re
from collections.abc import Callable
from typing import Final

from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.reason_codes import ReasonCode

MAX_BYTES: Final = 65_535
"""The longest string in MQTT, in bytes of UTF-8 [MQTT-4.7.3-3]."""

MAX_LEVELS: Final = 200
"""Default limit on slashes in a topic or filter. MQTT has no limit."""

SHARE_PREFIX: Final = "$share/"
"""Prefix of shared subscription filters."""

_REGEX_LEVELS: Final = 32
"""Filters with more levels are matched level by level because a regular expression would be slow to compile."""


def validate_topic(topic: str, max_levels: int = MAX_LEVELS) -> None:
    """Raise ProtocolError with TOPIC_NAME_INVALID (0x90) if `topic` is not a valid topic.

    A topic must not be empty [MQTT-4.7.3-1], or contain wildcards [MQTT-4.7.0-1, MQTT-3.3.2-2], U+0000 [MQTT-4.7.3-2]
    or lone surrogates [MQTT-1.5.4-1]. Its limits are 65,535 bytes of UTF-8 [MQTT-4.7.3-3] and `max_levels` slashes.
    """
    code = ReasonCode.TOPIC_NAME_INVALID
    _check_text(topic, code, "topic name")
    if "+" in topic or "#" in topic:  # [MQTT-4.7.0-1] [MQTT311-4.7.1-1]
        raise ProtocolError(code, "topic name contains a wildcard")
    if topic.count("/") > max_levels:
        raise ProtocolError(code, f"topic name has more than {max_levels} slashes")


def validate_filter(filter: str, max_levels: int = MAX_LEVELS) -> None:
    """Raise ProtocolError with TOPIC_FILTER_INVALID (0x8F) if `filter` is not a valid filter.

    Strings are checked as in `validate_topic`. ``#`` must be the whole last level [MQTT-4.7.1-1], and ``+`` must be a
    whole level [MQTT-4.7.1-2]. After ``$share/``, a non-empty share name without wildcards and a filter must follow
    [MQTT-4.8.2-1, MQTT-4.8.2-2]. `max_levels` applies to the slashes after the share name.
    """
    code = ReasonCode.TOPIC_FILTER_INVALID
    _check_text(filter, code, "topic filter")
    inner = filter
    if filter.startswith(SHARE_PREFIX):
        name, slash, inner = filter[len(SHARE_PREFIX) :].partition("/")
        if not name:  # [MQTT-4.8.2-1]
            raise ProtocolError(code, "share name is empty")
        if "+" in name or "#" in name:  # [MQTT-4.8.2-2]
            raise ProtocolError(code, "share name contains a wildcard")
        if not slash or not inner:  # [MQTT-4.8.2-2]
            raise ProtocolError(code, "share name is not followed by a topic filter")
    if inner.count("/") > max_levels:
        raise ProtocolError(code, f"topic filter has more than {max_levels} slashes")
    rest = inner.find("#")
    if rest >= 0 and (rest != len(inner) - 1 or (rest > 0 and inner[rest - 1] != "/")):
        # [MQTT-4.7.1-1] [MQTT311-4.7.1-2]
        raise ProtocolError(code, "'#' is not the whole last level")
    if "+" in inner:
        for level in inner.split("/"):
            if level != "+" and "+" in level:  # [MQTT-4.7.1-2] [MQTT311-4.7.1-3]
                raise ProtocolError(code, "'+' is not a whole level")


def _check_text(text: str, code: ReasonCode, what: str) -> None:
    if not text:  # [MQTT-4.7.3-1]
        raise ProtocolError(code, f"{what} is empty")
    if "\0" in text:  # [MQTT-4.7.3-2] [MQTT311-4.7.3-2]
        raise ProtocolError(code, f"{what} contains U+0000")
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:  # from a plugin; the decoder refuses surrogates [MQTT-1.5.4-1]
            raise ProtocolError(code, f"{what} contains a surrogate") from None
    if size > MAX_BYTES:  # [MQTT-4.7.3-3] [MQTT311-4.7.3-3]
        raise ProtocolError(code, f"{what} is longer than {MAX_BYTES} bytes")


def parse_share(filter: str) -> tuple[str | None, str]:
    """Split a valid filter: ``$share/g/a/+`` into ``("g", "a/+")``, any other filter into ``(None, filter)``."""
    if not filter.startswith(SHARE_PREFIX):
        return None, filter
    name, _, inner = filter[len(SHARE_PREFIX) :].partition("/")
    return name, inner


def has_wildcard(filter: str) -> bool:
    """Return whether a valid `filter` contains wildcards."""
    return "+" in filter or filter.endswith("#")


def matches(filter: str, topic: str) -> bool:
    """Return whether `filter` (without ``$share/NAME/``) matches `topic`.

    Filters that start with a wildcard do not match topics that start with ``$`` [MQTT-4.7.2-1].
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
    """Compare level by level. The caller has checked the ``$`` rule."""
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
    """Return whether `outer` matches every topic that `inner` matches. Both are filters without ``$share/NAME/``.

    Use this for access rules: may a client with permission for `outer` subscribe to `inner`? ``a/#`` contains ``a``.
    ``#`` and ``+/#`` contain each other, but not ``$SYS/#``. ``a/+`` does not contain ``a/#``. The maximum topic length
    is ignored.
    """
    if outer == inner:
        return True
    have = inner.split("/")
    open_end = have[-1] == "#"
    if open_end:
        have.pop()
        # The rest matches its own topic and all below. "#" needs at least one level. "/#" needs two, because its own
        # topic would be the empty string, which is invalid [MQTT-4.7.3-1]. So "/+/#" contains "/#".
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
        if level != "+" and level != have[index]:  # no literal contains "+"
            return False
    return True


def compile_filter(filter: str) -> Callable[[str], bool]:
    """Return a function that checks whether `filter` matches a topic. It is several times faster than `matches`."""
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
    # Possessive quantifiers never backtrack, so a failed match costs one pass.
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
