"""What can go wrong, under one root.

- HookMQError
    - ProtocolError: a peer broke MQTT; carries the reason code to answer with
    - ConfigError: the configuration is wrong; carries file, line, column and a hint
    - PluginError: a plugin could not be loaded or misbehaved
        - PluginNotFound
    - BindError: a listener could not be opened
    - StoreError: durable state could not be read or written

Any other exception out of HookMQ is a fault of HookMQ.
"""

from hookmq.reason import ReasonCode


class HookMQError(Exception):
    """The root of every error that HookMQ raises on purpose."""

    exit_code = 1
    """What ``hookmq`` exits with when this ends it."""
    changed: tuple[str, ...] = ()
    """The keys that changed, of a configuration that was refused at a reload."""


class ProtocolError(HookMQError):
    """A peer's bytes break the protocol. `code` is what a v5 peer is told before the connection closes
    [MQTT-4.13.1-1]; `detail` says what was wrong and never holds payload or password."""

    def __init__(self, code: ReasonCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code.text} (0x{self.code:02X}): {self.detail}"


class ConfigError(HookMQError):
    """The configuration cannot be used. `line` and `column` count from 1; 0 is an unknown place.

    A plugin may name the key instead: `path` leads to it from the plugin's `config:`, such as ``("keys", 0, "secret")``.
    The loader then adds file, line and column.
    """

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        source: str = "",
        line: int = 0,
        column: int = 0,
        hint: str = "",
        path: tuple[str | int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.line = line
        self.column = column
        self.hint = hint
        self.path = path

    def __str__(self) -> str:
        place = self.source
        if self.line:
            place += f":{self.line}:{self.column}"
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({self.hint})" if self.hint else text


class PluginError(HookMQError):
    """A plugin could not be loaded, built or started; `plugin` is its id in the configuration."""

    exit_code = 3

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(message)
        self.plugin = plugin
        self.message = message

    def __str__(self) -> str:
        return f"plugin {self.plugin!r}: {self.message}"


class PluginNotFound(PluginError):
    """No installed distribution offers an entry point of this name in the group ``hookmq.plugins``."""


class BindError(HookMQError):
    """A listener could not be opened: the address is in use, not ours or not permitted."""

    exit_code = 4


class StoreError(HookMQError):
    """The store failed; nothing that relied on the failed commit was acknowledged."""
