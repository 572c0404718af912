"""Topics and topic filters that contain client variables, such as ``devices/%c/#``.

``%c`` is the client id, ``%u`` the identity or user name, and ``${NAME}`` the claim of that name;
`hookmq_toolkit.rules.rule_values` returns their values. A value fills in at most one topic level. A client therefore
cannot widen a topic filter or reach other topics by choosing a special client id.
"""

import re
from collections.abc import Mapping
from typing import Final

from hookmq.mqtt_api import ProtocolError, validate_filter
from hookmq.plugin import ConfigError

_VARIABLE: Final = re.compile(r"%c|%u|\$\{([^{}]+)\}")


class TopicTemplate:
    """A parsed template. `variables` are its placeholders, in order."""

    __slots__ = ("_dollar", "text", "variables")

    def __init__(self, text: str) -> None:
        self.text = text
        self.variables: tuple[str, ...] = tuple(one.group(0) for one in _VARIABLE.finditer(text))
        self._dollar = text.startswith("$") and not _VARIABLE.match(text)

    def check(self, key: str) -> None:
        """Raise ConfigError if the template can never be a topic filter. `key` names the setting in the message."""
        sample = self.replaced("x")
        problem = "a '${' that is not closed" if "${" in sample else ""
        try:
            validate_filter(sample)
        except ProtocolError as error:
            problem = problem or error.detail
        if problem:
            raise ConfigError(f"{key}: expected a topic filter, found {self.text!r}: {problem}")

    def replaced(self, text: str) -> str:
        """Return the template with `text` in place of each variable."""
        return _VARIABLE.sub(lambda found: text, self.text)

    def fill(self, values: Mapping[str, str], parts: Mapping[str, str] | None = None) -> str:
        """Return the filled topic or topic filter.

        `parts` contains strings that replace ``${NAME}`` unchanged. They may span several levels, and take precedence
        over claims. Raises ValueError if a value is missing, if one of `values` is not a single topic level, or if a
        variable would make the first level start with ``$``.
        """

        def value(found: re.Match[str]) -> str:
            name = found.group(0)
            if parts is not None and found.group(1) in parts:
                return parts[found.group(1)]
            text = values.get(name)
            if not text:
                raise ValueError(f"the client has no {name}")
            if any(sign in text for sign in "/+#\0"):
                raise ValueError(f"the client's {name} is no single topic level")
            return text

        filled = _VARIABLE.sub(value, self.text)
        if filled.startswith("$") and not self._dollar:
            raise ValueError(f"{filled.split('/')[0]} would become the first level")
        return filled


def overlap(first: str, second: str) -> bool:
    """Return whether some topic matches both topic filters [MQTT-4.7.1-1, 4.7.2-1]."""
    one, other = first.split("/"), second.split("/")
    if one[0].startswith("$") != other[0].startswith("$"):
        return False
    for at in range(max(len(one), len(other))):
        if at == len(one):
            return other[at] == "#"
        if at == len(other):
            return one[at] == "#"
        if "#" in (one[at], other[at]):
            return True
        if "+" not in (one[at], other[at]) and one[at] != other[at]:
            return False
    return True
