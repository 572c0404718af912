"""Stored messages, in the three forms in which JetStream sends them."""

from base64 import b64decode
from datetime import UTC, datetime
from typing import Any, Final

from hookmq_cluster.engine import Stored
from hookmq_cluster.nats_protocol import header_field

NOT_FOUND: Final = 10037
"""JetStream's error for a message that is not there."""


def seconds(text: str) -> float:
    """Return a time of JetStream, in UTC and with up to nine decimals, in epoch seconds.

    Raises ValueError for anything else. It may be as in RFC 3339, or with spaces and ``UTC``.
    """
    digits = ""
    if text[19:20] == ".":
        for one in text[20:29]:
            if not one.isdigit():
                break
            digits += one
    whole = datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)
    return (int(whole.timestamp()) * 1_000_000_000 + int(digits.ljust(9, "0"))) / 1e9


def direct_message(header: bytes, data: bytes) -> Stored:
    """Return the message in an answer to a direct get. Raises ValueError if there is none."""
    return Stored(
        header_field(header, b"\r\nNats-Subject:").decode(),
        int(header_field(header, b"\r\nNats-Sequence:")),
        data,
        seconds(header_field(header, b"\r\nNats-Time-Stamp:").decode()),
    )


def api_message(answer: dict[str, Any]) -> Stored:
    """Return the message in an answer of the API. Raises ValueError if there is none."""
    try:
        message = answer["message"]
        return Stored(
            str(message["subject"]),
            int(message["seq"]),
            b64decode(message.get("data") or "", validate=True),
            seconds(message["time"]),
        )
    except (KeyError, TypeError, AttributeError):
        raise ValueError("no message") from None


def delivery(answer: str) -> tuple[int, int, float]:
    """Return the sequence in the stream, the number of the delivery, and the time, of a consumer's message.

    `answer` is the subject for its acknowledgement. Raises ValueError if it is not one.
    """
    words = answer.split(".")
    # Newer servers put a domain and an account before the name of the stream, and a token at the end.
    at = 2 if len(words) == 9 else 4
    if len(words) < 9 or words[:2] != ["$JS", "ACK"]:
        raise ValueError("not a message of a consumer")
    return int(words[at + 3]), int(words[at + 4]), int(words[at + 5]) / 1e9
