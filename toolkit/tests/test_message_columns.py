"""Test encoding and decoding messages by column."""

import contextlib
from dataclasses import fields

import pytest
from hookmq.plugin import EMPTY, Message, Properties
from hookmq.storage_api import MessageColumns, collect
from hookmq_toolkit.message_columns import decode_columns, encode_columns, read_columns
from hypothesis import given
from hypothesis import strategies as st

FULL = Message(
    "a/ä",
    b"\0payload",
    2,
    True,
    properties=Properties(content_type="text/plain", user_property=(("k", "v"), ("k", "w"))),
    sender="client",
    origin="will",
    received_at=12.5,
    expires_at=99.5,
)
BARE = Message("t", b"", 0, properties=EMPTY, sender=None, origin="plugin:p", received_at=1.0)
PLAIN = Message("t/1", b"a", 1, sender="c", received_at=2.0)
LONG = Message("t" * 2000, b"b" * 70_000, 1, sender="", received_at=3.0)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
MESSAGES = st.builds(
    Message,
    TEXTS,
    st.binary(max_size=4),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([EMPTY, FULL.properties]),
    st.none() | TEXTS,
    st.sampled_from(["client", "will"]),
    st.floats(0, 1e10),
    st.none() | st.floats(0, 1e10),
)


@given(st.lists(MESSAGES | st.sampled_from([FULL, BARE, PLAIN, LONG]), max_size=8))
def test_messages_survive(messages: list[Message]) -> None:
    found = decode_columns(encode_columns(collect(messages)))
    names = [one.name for one in fields(Message)]
    assert [[getattr(one, name) for name in names] for one in found] == [
        [getattr(one, name) for name in names] for one in messages
    ]


@given(st.lists(MESSAGES, max_size=8))
def test_columns_survive(messages: list[Message]) -> None:
    columns = collect(messages)
    found = read_columns(encode_columns(columns))
    names = [
        name
        for name in dir(columns)
        if not (name.startswith("_") or name == "room" or callable(getattr(columns, name)))
    ]
    assert "topics" in names
    assert [getattr(found, name) for name in names] == [getattr(columns, name) for name in names]


def test_no_messages_are_no_bytes() -> None:
    assert encode_columns(MessageColumns()) == b""
    assert decode_columns(b"") == []


def test_equal_texts_are_stored_once() -> None:
    one, many = (len(encode_columns(collect([PLAIN] * count))) for count in (1, 101))
    assert many - one == 100 * (1 + 8 + 4 + len(PLAIN.payload))


@pytest.mark.parametrize("messages", [[FULL], [PLAIN, BARE, FULL], [PLAIN] * 3])
def test_damaged_blocks_are_refused(messages: list[Message]) -> None:
    block = encode_columns(collect(messages))
    cut = (block[:end] for end in range(1, len(block)))
    for damaged in (*cut, block + b"\1", b"\2" + block[1:]):
        with pytest.raises(ValueError, match="not a block of messages"):
            decode_columns(damaged)


@given(at=st.integers(0), change=st.integers(1, 255))
def test_a_changed_byte_raises_nothing_but_value_error(at: int, change: int) -> None:
    block = bytearray(encode_columns(collect([FULL, BARE])))
    block[at % len(block)] ^= change
    with contextlib.suppress(ValueError):
        decode_columns(bytes(block))
