"""Why an engine cannot be used."""

from hookmq.plugin import HookMQError


class EngineError(HookMQError):
    """The engine, its server or its stream cannot be used as it is. The message says what to change."""


class ServerRefused(EngineError):
    """A server refuses the user, or has the wrong version or settings. It is useless to try again without a change."""
