"""The exceptions of HookMQ.

- HookMQError
- ProtocolError: a client violated the MQTT protocol; contains the reason code to send
- ConfigError: the configuration is invalid; contains the file, line, column and a hint
- PluginError: a plugin could not be loaded, or misbehaved
- ConnectRefused: a plugin client was not accepted
- PublishRefused: a plugin's message was refused
- StaleCursor: a listing cannot continue; start it again
- PluginNotFound
- BindError: a listener could not be opened
- StoreError: durable state could not be read or written

Any other exception raised by HookMQ is a bug.
"""

from typing import Final

from hookmq.mqtt.errors import HookMQError
from hookmq.mqtt.reason_codes import ReasonCode

_SHOWN: Final = 40
"""Maximum number of characters of a value to show in an error."""


def shown(value: object) -> str:
    """Format an invalid `value` for an error message. Shorten long values, and leave out the digits of huge numbers."""
    if isinstance(value, int) and value.bit_length() > 3 * _SHOWN:
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class ConfigError(HookMQError):
    """The configuration is invalid. `line` and `column` start at 1; 0 means unknown.

    Plugins may set `path` instead: the sequence of keys below the plugin's `config:`, such as
    ``("keys", 0, "secret")``. The loader then adds the file, line and column.
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
    """A plugin could not be loaded, constructed or started. `plugin` is its plugin id."""

    exit_code = 3

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(message)
        self.plugin = plugin
        self.message = message

    def __str__(self) -> str:
        return f"plugin {self.plugin!r}: {self.message}"


class ConnectRefused(PluginError):
    """A plugin client was not accepted. `code` is the reason code of the CONNACK. `reason` is an explanation, or
    empty."""

    def __init__(self, plugin: str, code: ReasonCode, reason: str = "") -> None:
        super().__init__(plugin, f"the client was refused: {reason or code.text} (0x{code:02X})")
        self.code = code
        self.reason = reason


class PublishRefused(PluginError):
    """A plugin's message was refused. `code` is the reason code as in PUBACK, such as QUOTA_EXCEEDED if a queue is
    full."""

    def __init__(self, plugin: str, code: ReasonCode) -> None:
        super().__init__(plugin, f"refused: {code.text}")
        self.code = code


class StaleCursor(PluginError):
    """A cursor is no longer valid: the broker restarted, its session or search ended, or the cursor was already used.
    Start the listing again.
    """


class PluginNotFound(PluginError):
    """No installed distribution has an entry point with this name in the ``hookmq.plugins`` group."""


class BindError(HookMQError):
    """A listener could not be opened: the address is in use, unavailable or not permitted."""

    exit_code = 4


class StoreError(HookMQError):
    """The store failed. Messages that depended on the failed commit were not acknowledged."""
