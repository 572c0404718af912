"""The one exception of this package: what went wrong and what helps, in one line.

Spark wraps what a data source raises into a report of many lines; the last of them is this message.
"""


class MqttError(Exception):
    """Reading or writing cannot go on. The message is one line and names the cure."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UnreachableError(MqttError):
    """The server did not answer, or not in full; another try may help."""


class OptionError(MqttError):
    """An option is unknown, missing, or has a value that it cannot have."""


class DataLossError(MqttError):
    """Offsets that were to be read are gone, or belong to another log (``failOnDataLoss``).

    ``earliest`` is where the log begins now, if the server said so: there reading may go on.
    """

    def __init__(self, message: str, earliest: int | None = None) -> None:
        super().__init__(message)
        self.earliest = earliest
