"""Blank out fields of JSON payloads for untrusted subscribers: a plugin that transforms deliveries."""

import json
from dataclasses import dataclass, field

from hookmq.plugin import ClientInfo, ConfigError, Drop, Message, Plugin, hookimpl, setting


@dataclass(frozen=True)
class RedactConfig:
    """The fields to hide, and the clients that may see them."""

    fields: tuple[str, ...] = field(metadata={"help": "keys of the JSON object to hide"})
    trusted: frozenset[str] = setting(frozenset(), "identities that see everything")
    replacement: str = setting("***", "value that replaces hidden ones")

    def __post_init__(self) -> None:
        if not self.fields:
            raise ConfigError("fields: expected at least one key")


class RedactPlugin(Plugin):
    """A plugin that delivers redacted messages to untrusted clients.

    A payload that is not a JSON object might contain anything, so untrusted clients do not receive it.
    """

    Config = RedactConfig
    config: RedactConfig

    _last: Message | None = None
    _redacted: Message | Drop = Drop()

    @hookimpl
    def on_deliver(self, client: ClientInfo, message: Message) -> Message | Drop | None:
        """Redact the message. The hook is called for each subscriber in turn, so the last result is cached."""
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
