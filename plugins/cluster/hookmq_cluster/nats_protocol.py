"""The client protocol of NATS: bytes to messages and back. No I/O.

The cluster has this protocol itself, and not from nats-py, for two reasons. A commit must not be sent after its
connection was lost, but nats-py keeps unsent messages and sends them later. And each received message costs nats-py
three times as much CPU time, since it starts tasks and parses headers as e-mail. Here, a message is one call, and headers
stay bytes.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from hookmq_cluster.engine_errors import EngineError

MAX_LINE: Final = 1 << 20
"""Longest line of a server, in bytes. The list of servers in INFO is the only long one."""
MAX_MESSAGE: Final = 64 << 20
"""Largest message of a server, in bytes."""

Deliver = Callable[[int, str, str, bytes, bytes], None]
"""Called for each message: subscription id, subject, subject for the answer, header, data."""


class Parser:
    """Parses the bytes from a server. `feed` calls the functions that it was given.

    Raises EngineError for anything that is not NATS. The connection cannot be used afterwards.
    """

    def __init__(self, deliver: Deliver, control: Callable[[str, str], None]) -> None:
        self._deliver = deliver
        self._control = control
        """Called with the operation, such as ``PING``, and the rest of its line."""
        self._rest = b""
        self._stopped = False

    def stop(self) -> bytes:
        """Parse nothing more, even in this `feed`. Return the bytes that are not parsed yet."""
        self._stopped = True
        rest, self._rest = self._rest, b""
        return rest

    def feed(self, data: bytes) -> None:
        """Parse `data`, which follows the data of the last call."""
        if self._rest:
            data = self._rest + data
        at = 0
        end = len(data)
        while True:
            stop = data.find(b"\r\n", at)
            if stop < 0:
                if end - at > MAX_LINE:
                    raise EngineError("the NATS server sent a line that is too long")
                break
            first = data[at : at + 1]
            if first == b"M" or first == b"H":
                words = data[at:stop].split()
                start = stop + 2
                try:
                    if first == b"M":
                        header_size = 0
                        size = int(words[-1])
                    else:
                        header_size = int(words[-2])
                        size = int(words[-1])
                    number = int(words[2])
                    known = words[0] == (b"MSG" if first == b"M" else b"HMSG")
                    extra = len(words) - (4 if first == b"M" else 5)
                except (ValueError, IndexError):
                    raise _malformed(data[at:stop]) from None
                if not known or not 0 <= header_size <= size <= MAX_MESSAGE or extra not in (0, 1):
                    raise _malformed(data[at:stop])
                if end < start + size + 2:
                    break
                at = start + size + 2
                self._deliver(
                    number,
                    words[1].decode("utf-8", "replace"),
                    words[3].decode("utf-8", "replace") if extra else "",
                    data[start : start + header_size],
                    data[start + header_size : start + size],
                )
            else:
                line = data[at:stop].decode("utf-8", "replace")
                at = stop + 2
                operation, _, rest = line.partition(" ")
                self._rest = data[at:]
                self._control(operation.upper(), rest.strip())
                if self._stopped:
                    return
        self._rest = data[at:]


def _malformed(line: bytes) -> EngineError:
    return EngineError(f"the NATS server sent a malformed line: {line[:100]!r}")


def information(text: str) -> dict[str, Any]:
    """Return the fields of an INFO line."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise EngineError("the NATS server sent a malformed INFO")
    return fields


def publish(subject: str, data: bytes, answer: str = "") -> bytes:
    """Return a message without a header."""
    return b"PUB %b %b%d\r\n%b\r\n" % (
        subject.encode(),
        answer.encode() + b" " if answer else b"",
        len(data),
        data,
    )


def publish_with_header(subject: bytes, header: bytes, data: bytes, answer: bytes = b"") -> bytes:
    """Return a message with a header, which begins with ``NATS/1.0`` and ends with an empty line.

    `answer` ends with a space, or is empty.
    """
    return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (
        subject,
        answer,
        len(header),
        len(header) + len(data),
        header,
        data,
    )


def header_field(header: bytes, name: bytes) -> bytes:
    """Return the value of a header's field, or empty bytes. `name` is as ``\\r\\nNats-Sequence:``."""
    at = header.find(name)
    if at < 0:
        return b""
    start = at + len(name)
    return header[start : header.find(b"\r\n", start)].strip()


def status(header: bytes) -> int:
    """Return the status in the first line of a header, or 0."""
    word = header[8:12].strip() if header else b""
    return int(word) if word.isdigit() else 0
