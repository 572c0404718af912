"""Settlements are messages with which consumers settle their messages. They are published to ``$queue/NAME/$ack``,
``$nack`` and ``$reject``.

Everything in them comes from clients, so each part has a limit. A refused settlement changes nothing.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, cast

from hookmq.plugin import ReasonCode

from hookmq_queues.backoff import MAX_DELAY
from hookmq_queues.outgoing import GROUP, MESSAGE_ID

Verb = Literal["$ack", "$nack", "$reject"]
VERBS: Final = frozenset({"$ack", "$nack", "$reject"})
"""The levels after the queue's name in the topics of settlements."""
MAX_IDS: Final = 1000
"""Maximum number of message ids and ranges in a settlement."""
MAX_MESSAGES: Final = 10_000
"""Maximum number of messages that a settlement names in all its ranges."""
MAX_REASON: Final = 256
"""Maximum length of a reason in characters."""
DELAY: Final = "delay"
REASON: Final = "reason"
_ID: Final = re.compile(r"([^:]{1,128}):([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)
_DELAY: Final = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?", re.ASCII)
_SHOWN: Final = 64


class SettlementError(Exception):
    """The broker refuses a settlement. `code` and the text tell the client why."""

    def __init__(self, code: ReasonCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Settlement:
    """A consumer's decision about its messages. `ranges` contains the first and the last offset of each range.

    `delay` is in seconds, or None if the client did not specify a delay.
    """

    verb: Verb
    queue: str
    ranges: tuple[tuple[int, int], ...]
    group: str | None = None
    delay: float | None = None
    reason: str = ""

    def offsets(self) -> Iterator[int]:
        """Yield all offsets."""
        for first, last in self.ranges:
            yield from range(first, last + 1)


def malformed(text: str) -> SettlementError:
    """Return the error for a bad property."""
    return SettlementError(ReasonCode.PAYLOAD_FORMAT_INVALID, text)


def impossible(text: str) -> SettlementError:
    """Return the error for a settlement that the current state of the message or group does not allow."""
    return SettlementError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, text)


def parse(verb: str, queue: str, properties: Iterable[tuple[str, str]]) -> Settlement:
    """Return the settlement that these user properties describe. Properties with other names are ignored.

    Raises SettlementError if a property is malformed, missing or repeated, or if there are too many messages.
    """
    ids: list[str] = []
    found: dict[str, str] = {}
    for name, value in properties:
        if name == MESSAGE_ID:
            ids.append(value)
        elif name in (GROUP, DELAY, REASON):
            if name in found:
                raise malformed(f"the property {name} occurs more than once")
            found[name] = value
    if not ids:
        raise malformed(f"the property {MESSAGE_ID} is missing: expected {queue}:OFFSET")
    if len(ids) > MAX_IDS:
        raise SettlementError(
            ReasonCode.QUOTA_EXCEEDED, f"too many properties {MESSAGE_ID}: at most {MAX_IDS}"
        )
    ranges = tuple(_range(queue, one) for one in ids)
    if sum(last - first + 1 for first, last in ranges) > MAX_MESSAGES:
        raise SettlementError(
            ReasonCode.QUOTA_EXCEEDED, f"too many messages: at most {MAX_MESSAGES} at a time"
        )
    reason = found.get(REASON, "")
    if len(reason) > MAX_REASON:
        raise malformed(f"the property {REASON} is longer than {MAX_REASON} characters")
    delay = _delay(found[DELAY]) if verb == "$nack" and DELAY in found else None
    return Settlement(cast(Verb, verb), queue, ranges, found.get(GROUP), delay, reason)


def _range(queue: str, text: str) -> tuple[int, int]:
    match = _ID.fullmatch(text)
    if match is None:
        raise malformed(
            f"the property {MESSAGE_ID} is {_shown(text)}: expected {queue}:OFFSET or {queue}:FIRST-LAST"
        )
    if match[1] != queue:
        raise malformed(f"{_shown(text)} is not a message of the queue {queue}")
    first = int(match[2])
    last = first if match[3] is None else int(match[3])
    if last < first:
        raise malformed(f"{_shown(text)}: the range ends before it begins")
    return first, last


def _delay(text: str) -> float:
    if not _DELAY.fullmatch(text) or float(text) > MAX_DELAY:
        raise malformed(
            f"{DELAY} is {_shown(text)}: expected seconds from 0 to {MAX_DELAY:.0f}, such as 1.5"
        )
    return float(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
