"""Test the frames of messages, with and without gaps."""

from collections.abc import Callable

import pytest
from hookmq.plugin import Message, Properties
from hookmq_toolkit.message_frames import decode_frame, encode_sparse
from hookmq_toolkit.message_record import encode_block
from hookmq_toolkit.segment_log import Frame


def message(number: int, key: str | None = None) -> Message:
    properties = Properties(user_property=() if key is None else (("key", key),))
    return Message("t", b"%d" % number, 1, properties=properties, received_at=1000.0 + number)


def number_of(one: Message) -> int:
    return int(one.payload)


@pytest.mark.parametrize(
    ("left", "gaps"),
    [
        ([], [(100, 110)]),
        ([100], [(101, 110)]),
        ([109], [(100, 109)]),
        ([103, 104, 107], [(100, 103), (105, 107), (108, 110)]),
        (list(range(100, 110)), []),
    ],
)
def test_a_sparse_block(left: list[int], gaps: list[tuple[int, int]]) -> None:
    entries = [(offset, message(offset, "k")) for offset in left]
    frame = Frame(100, 10, 1, 0, encode_sparse(100, entries))
    found, empty = decode_frame(frame)
    assert [(offset, number_of(one)) for offset, one in found] == [(one, one) for one in left]
    assert empty == gaps


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[:4],
        lambda data: data + b"x",
        lambda data: b"\xfe\xff\xff\xff\xff" + data[5:],
        lambda data: b"",
    ],
)
def test_damaged_blocks_are_refused(change: Callable[[bytes], bytes]) -> None:
    data = encode_sparse(5, [(6, message(6)), (8, message(8))])
    with pytest.raises(ValueError, match="block"):
        decode_frame(Frame(5, 4, 1, 0, change(data)))
    with pytest.raises(ValueError, match="a block of 3 messages has 1"):
        decode_frame(Frame(5, 3, 1, 0, encode_block([message(1)])))
