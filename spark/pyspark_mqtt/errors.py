"""The exceptions of this package. Each message is one line that states the problem and gives advice.

Spark wraps a data source's exception in a report of many lines and prints this message last.
"""


class MqttError(Exception):
    """Reading or writing cannot continue. The message is one line, with advice."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UnreachableError(MqttError):
    """The server did not respond, or its response was cut off. Another attempt may succeed."""


class OptionError(MqttError):
    """An option is unknown, missing or invalid."""


class DataLossError(MqttError):
    """Requested offsets were removed, or belong to another log (``failOnDataLoss``).

    ``earliest`` is the first remaining offset, if the server reported it. Reading may continue there.
    """

    def __init__(self, message: str, earliest: int | None = None) -> None:
        super().__init__(message)
        self.earliest = earliest
