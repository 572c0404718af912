"""Test the stored form of messages."""

from dataclasses import fields

import pytest
from hookmq.plugin import EMPTY, Message, Properties
from hookmq_toolkit.message_record import decode_block, encode_block

FULL = Message(
    "a/ä",
    b"\0payload",
    2,
    properties=Properties(content_type="text/plain", user_property=(("k", "v"), ("k", "w"))),
    sender="client",
    origin="will",
    received_at=12.5,
    expires_at=99.5,
)
BARE = Message("t", b"", 0, properties=EMPTY, sender=None, origin="plugin:p", received_at=1.0)


def test_messages_survive() -> None:
    found = decode_block(encode_block([FULL, BARE, FULL]))
    names = [one.name for one in fields(Message)]
    for message, wanted in zip(found, (FULL, BARE, FULL), strict=True):
        for name in names:
            assert getattr(message, name) == getattr(wanted, name)
    assert decode_block(b"") == []


def test_damaged_blocks_are_refused() -> None:
    block = encode_block([FULL])
    for damaged in (block[:-1], block + b"\1", b"\2" + block[1:]):
        with pytest.raises(ValueError, match="not a block of messages"):
            decode_block(damaged)
