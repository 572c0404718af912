"""Compute message keys, which identify messages that belong together."""

import re
from hashlib import blake2b
from typing import Final

from hookmq.plugin import ConfigError, Message
from hookmq_toolkit.templates import Template

_PLACE: Final = re.compile(r"topic|client_id|topic\.[1-9][0-9]{0,3}|property\..+")
_LONG: Final = 64
"""A key with more characters is replaced by its digest."""


def value_of(message: Message, name: str) -> str | None:
    """Return the value of a user property, or None."""
    for one in message.user_property:
        if one[0] == name:
            return one[1]
    return None


def shortened(key: str) -> str:
    """Return a key of limited length. Different keys have different results."""
    if len(key) <= _LONG:
        return key
    return "\0\0" + blake2b(key.encode(), digest_size=16).hexdigest()


class KeyTemplate:
    """A template for message keys, such as ``${property.key}`` or ``${topic.2}/${client_id}``.

    ``${topic}`` is the topic that the message was published to, and ``${topic.1}`` is its first level. ``${client_id}``
    is the publisher's client id, and ``${property.NAME}`` is a user property.
    """

    def __init__(self, text: str) -> None:
        self._template = Template(text)

    def check(self, setting: str) -> None:
        """Raise ConfigError if the template is invalid. `setting` is the setting's name."""
        template = self._template
        if template.unclosed:
            raise ConfigError(f"{setting}: {template.text!r} contains a '${{' that is not closed")
        if not template.names:
            raise ConfigError(f"{setting}: {template.text!r} is the same for all messages")
        for name in template.names:
            if not _PLACE.fullmatch(name):
                known = "${topic}, ${topic.N}, ${client_id}, ${property.NAME}"
                raise ConfigError(
                    f"{setting}: unknown placeholder ${{{name}}}", hint=f"known: {known}"
                )

    def key_of(self, message: Message) -> str | None:
        """Return a message's key. Return None if the message lacks one of the values, and therefore needs no order."""

        def value(name: str) -> str | None:
            if name == "topic":
                return message.topic
            if name == "client_id":
                return message.sender
            kind, _, rest = name.partition(".")
            if kind == "property":
                return value_of(message, rest)
            levels = message.topic.split("/")
            return levels[int(rest) - 1] if int(rest) <= len(levels) else None

        return self._template.fill(value)
