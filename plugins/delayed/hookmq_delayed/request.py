"""Parse requests to ``$delayed/SECONDS/TOPIC`` and ``$delayed/cancel/ID``."""

from dataclasses import dataclass
from typing import Final

from hookmq.mqtt_api import ProtocolError, validate_topic

PREFIX: Final = "$delayed/"
_CANCEL: Final = "cancel"
_DIGITS: Final = 10
"""Maximum number of digits in a delay."""


class InvalidRequest(Exception):
    """The topic is not a valid request. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class Delay:
    """A request to publish to `topic` after `seconds`."""

    seconds: int
    topic: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request to cancel the delayed message that the same client sent under this id."""

    id: str


def parse(topic: str) -> Delay | Cancel:
    """Parse a topic that starts with ``$delayed/``. Raises InvalidRequest."""
    first, slash, rest = topic.removeprefix(PREFIX).partition("/")
    if first == _CANCEL:
        if not rest:
            raise InvalidRequest("expected $delayed/cancel/ID")
        return Cancel(rest)
    if not (first.isascii() and first.isdigit()) or len(first) > _DIGITS or not slash:
        raise InvalidRequest("expected $delayed/SECONDS/TOPIC")
    try:
        validate_topic(rest)
    except ProtocolError as error:
        raise InvalidRequest(f"the target topic is invalid: {error.detail}") from error
    if rest.startswith((PREFIX, "$SYS/")):
        raise InvalidRequest("the target topic must not start with $delayed/ or $SYS/")
    return Delay(int(first), rest)
