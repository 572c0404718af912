"""The base class of HookMQ's exceptions, and the exception for MQTT protocol violations."""

from hookmq.mqtt.reason_codes import ReasonCode


class HookMQError(Exception):
    """The base class of all exceptions that HookMQ raises."""

    exit_code = 1
    """Exit status of ``hookmq`` if this exception ends the program."""
    changed: tuple[str, ...] = ()
    """The keys that changed, if a reload refused the configuration."""


class ProtocolError(HookMQError):
    """A client violated the MQTT protocol.

    `code` is sent to MQTT 5 clients before the connection closes [MQTT-4.13.1-1]. `detail` describes the error,
    without payloads or passwords.
    """

    def __init__(self, code: ReasonCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code.text} (0x{self.code:02X}): {self.detail}"
