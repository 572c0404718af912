"""Blanks fields of JSON payloads for subscribers that are not trusted: a plugin that transforms what is delivered."""

import json
from dataclasses import dataclass, field

from hookmq.plugin import ClientInfo, ConfigError, Drop, Message, Plugin, hookimpl, setting


@dataclass(frozen=True)
class RedactConfig:
    """What is hidden, and from whom."""

    fields: tuple[str, ...] = field(metadata={"help": "keys of the JSON object that are hidden"})
    trusted: frozenset[str] = setting(frozenset(), "identities that see everything")
    replacement: str = setting("***", "what stands in place of a hidden value")

    def __post_init__(self) -> None:
        if not self.fields:
            raise ConfigError("fields: nothing would be hidden")


class RedactPlugin(Plugin):
    """Everybody else gets the object with the fields blanked. What is no JSON object is not delivered to them at all:
    nobody could say what is in it."""

    Config = RedactConfig
    config: RedactConfig

    _last: Message | None = None
    _redacted: Message | Drop = Drop()

    @hookimpl
    def on_deliver(self, client: ClientInfo, message: Message) -> Message | Drop | None:
        """Runs for every subscriber of a message, one after another; so the last result is kept."""
        if client.identity is not None and client.identity in self.config.trusted:
            return None
        if message is not self._last:
            self._last, self._redacted = message, self._redact(message)
        return self._redacted

    def _redact(self, message: Message) -> Message | Drop:
        try:
            content = json.loads(message.payload)
        except ValueError:
            return Drop()
        if not isinstance(content, dict):
            return Drop()
        hidden = dict.fromkeys(content.keys() & set(self.config.fields), self.config.replacement)
        if not hidden:
            return message
        return message.replace(payload=json.dumps(content | hidden).encode())
