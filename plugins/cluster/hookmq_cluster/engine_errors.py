"""Why an engine cannot be used."""

from hookmq.plugin import HookMQError


class EngineError(HookMQError):
    """The engine, its server or its stream cannot be used as it is. The message says what to change."""
