"""Test the stored form of messages."""

import contextlib
from dataclasses import fields

import pytest
from hookmq.plugin import EMPTY, Message, Properties
from hookmq_toolkit.message_record import decode_block, encode_block
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_block_without_properties_and_expiry_keeps_the_rest() -> None:
    kept = [
        Message("t/1", b"a", 1, retain=True, sender="x", received_at=1.5),
        Message("t/2", b"", 2, sender="", received_at=2.5),
        Message("t/1", b"ccc", 0, sender="x" * 65535, received_at=0.0),
    ]
    found = decode_block(encode_block(kept, retain=True))
    seen = [(m.topic, m.payload, m.qos, m.retain, m.sender, m.received_at) for m in found]
    assert seen == [(m.topic, m.payload, m.qos, m.retain, m.sender, m.received_at) for m in kept]
    assert all(m.properties is EMPTY and m.expires_at is None for m in found)
    assert not any(m.retain for m in decode_block(encode_block(kept)))


@pytest.mark.parametrize("before", [[], [BARE] * 3, [FULL, BARE]])
def test_damaged_blocks_are_refused(before: list[Message]) -> None:
    start, block = len(encode_block(before)), encode_block([*before, FULL])
    cut = (block[:end] for end in range(start + 1, len(block)))
    for damaged in (*cut, block + b"\1", b"\2" + block[1:]):
        with pytest.raises(ValueError, match="not a block of messages"):
            decode_block(damaged)


@given(at=st.integers(0), change=st.integers(1, 255))
def test_a_changed_byte_raises_nothing_but_value_error(at: int, change: int) -> None:
    block = bytearray(encode_block([FULL, BARE]))
    block[at % len(block)] ^= change
    with contextlib.suppress(ValueError):
        assert 0 < len(decode_block(bytes(block))) <= 2
