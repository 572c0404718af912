"""Commits as JetStream messages: one message, or an atomic batch.

The conditions of a batch refer to the stream before the batch, and the server checks the messages in order. It refuses a
condition on a subject that an earlier message of the batch writes, and a replacement of what an earlier message wrote.
`check_commit` therefore refuses both before anything is sent.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from hookmq_cluster.engine import Entry
from hookmq_cluster.nats_protocol import publish_with_header, status

WRONG_LAST_SEQUENCE: Final = 10071
BUSY: Final = 10164
"""Another message with a condition on the same subject is being decided."""
DUPLICATE_IN_PROGRESS: Final = 10158
"""A message with the same id is being decided."""
DUPLICATE_IN_BATCH: Final = 10201
"""The stream has a message with an id in this batch, or is deciding one."""
UNKNOWN_KEY: Final = (WRONG_LAST_SEQUENCE, 10165)
"""The answers to a probe, if the stream has no message with the id. The second one is for a TTL that is not valid."""
NO_RESPONDERS: Final = 503
"""No server has a leader for the stream. Nothing was received."""
IMPOSSIBLE: Final = (1 << 63) - 1
"""A sequence that no message has."""


def check_commit(entries: Sequence[Entry], max_batch: int, max_entry: int) -> None:
    """Raise ValueError for a commit that no engine can make."""
    if not 0 < len(entries) <= max_batch:
        raise ValueError(f"a commit of {len(entries)} entries; possible: 1 to {max_batch}")
    written: set[str] = set()
    for entry in entries:
        if len(entry.data) > max_entry:
            raise ValueError(f"an entry of {len(entry.data)} bytes; possible: up to {max_entry}")
        if entry.expect is not None and entry.expect[0] in written:
            raise ValueError(f"an expectation about {entry.expect[0]}, which the commit changed")
        if entry.replace and entry.subject in written:
            raise ValueError(f"a replacement of {entry.subject}, which the commit changed")
        written.add(entry.subject)


def _fields(entry: Entry) -> bytes:
    """Return the header fields of one entry."""
    fields = b""
    if entry.expect is not None:
        fields = (
            b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
            b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n"
            % (entry.expect[1], entry.expect[0].encode())
        )
    if entry.replace:
        fields += b"Nats-Rollup: sub\r\n"
    if entry.ttl:
        fields += b"Nats-TTL: %ds\r\n" % entry.ttl
    return fields


def encode_commit(entries: Sequence[Entry], key: str, batch: str, answer: str) -> bytes:
    """Return the bytes that publish `entries`. The answer to all of them comes once, to `answer`.

    The first message has the id `key`, if there is one. `batch` is new in each attempt, and has at most 64 characters.
    """
    reply = answer.encode() + b" "
    message_id = b"Nats-Msg-Id: %b\r\n" % key.encode() if key else b""
    if len(entries) == 1:
        entry = entries[0]
        fields = message_id + _fields(entry)
        if not fields:
            return b"PUB %b %b%d\r\n%b\r\n" % (
                entry.subject.encode(), reply, len(entry.data), entry.data,
            )  # fmt: skip
        return publish_with_header(
            entry.subject.encode(), b"NATS/1.0\r\n%b\r\n" % fields, entry.data, reply
        )
    begin = b"NATS/1.0\r\nNats-Batch-Id: %b\r\nNats-Batch-Sequence: " % batch.encode()
    last = len(entries)
    messages = []
    for number, entry in enumerate(entries, 1):
        header = b"%b%d\r\n%b%b%b\r\n" % (
            begin,
            number,
            message_id if number == 1 else b"",
            b"Nats-Batch-Commit: 1\r\n" if number == last else b"",
            _fields(entry),
        )
        messages.append(
            publish_with_header(
                entry.subject.encode(), header, entry.data, reply if number == last else b""
            )
        )
    return b"".join(messages)


def encode_probe(subject: str, key: str, answer: str, replicated: bool) -> bytes:
    """Return a message that is never stored, and whose answer says whether the stream has a message with the id `key`.

    It has something that the server refuses after it has looked for the id. A stream with replicas checks conditions
    after ids, and a stream without them does it the other way round. The code of the answer is then in `UNKNOWN_KEY`.
    """
    refused = (
        b"Nats-Expected-Last-Subject-Sequence: %d" % IMPOSSIBLE if replicated else b"Nats-TTL: no"
    )
    header = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n%b\r\n\r\n" % (key.encode(), refused)
    return publish_with_header(subject.encode(), header, b"", answer.encode() + b" ")


class PublishAnswer(NamedTuple):
    """What a server says about a commit. `sequence` is 0 unless it is stored, and `code` is 0 if it is.

    `duplicate` means that the message was stored by an earlier attempt; `sequence` is then that of this message.
    """

    sequence: int
    duplicate: bool
    code: int
    text: str


def decode_answer(header: bytes, data: bytes) -> PublishAnswer:
    """Return what an answer says. Anything that is not an answer of JetStream has the code -1."""
    if status(header) == NO_RESPONDERS:
        return PublishAnswer(0, False, NO_RESPONDERS, "the stream has no leader")
    try:
        fields: Any = json.loads(data)
        error = fields.get("error")
        if error is not None:
            code, text = int(error.get("err_code") or -1), str(error.get("description") or "")
            return PublishAnswer(0, False, code or -1, text[:200])
        sequence = int(fields["seq"])
        if sequence > 0:
            return PublishAnswer(sequence, bool(fields.get("duplicate")), 0, "")
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return PublishAnswer(0, False, -1, "an answer that is not one of JetStream")


def found_sequence(text: str) -> int:
    """Return the sequence in the text of the error `WRONG_LAST_SEQUENCE`, or -1."""
    word = text.rpartition(" ")[2]
    return int(word) if word.isdigit() else -1
