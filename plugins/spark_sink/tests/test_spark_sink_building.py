"""Test how columns are encoded, and where blocks are divided."""

import pytest
from hookmq.plugin import Message
from hookmq_spark_sink import block, building
from hookmq_spark_sink.merge import groups
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("rows", "length"), [(3, 0), (3, 1025), (4096, 7), (4097, 7), (9, 2)])
@pytest.mark.parametrize("odd", [None, 0, 1, -1])
def test_payloads_of_equal_length(rows: int, length: int, odd: int | None) -> None:
    """The offsets of values with the same length are not computed one by one, unless one value differs."""
    payloads = [
        number.to_bytes(2, "big")[: length % 3].ljust(length, b".") for number in range(rows)
    ]
    if odd is not None:
        payloads[odd] += b"!"
    one = block.parse(building.encode(0, 0, [Message("t", payload) for payload in payloads]))
    assert block.column(one, block.PAYLOAD) == payloads
    assert block.column(one, block.TOPIC) == [b"t"] * rows


def test_texts_that_are_not_ascii() -> None:
    texts = ["t/ä", "t/\ud800", "t/" + "ä" * 2000, "t/a", ""]
    messages = [Message(text, b"", sender=text) for text in texts]
    for number in range(3):  # a text that was encoded before is remembered
        one = block.parse(building.encode(0, 0, messages[number:]))
        wanted = [text.encode("utf-8", "replace") for text in texts[number:]]
        assert block.column(one, block.TOPIC) == wanted
        assert block.column(one, block.CLIENT_ID) == wanted


class Huge(bytes):
    """A value that reports the maximum length that MQTT allows, without using that much memory."""

    def __len__(self) -> int:
        return 268_435_455


def test_large_messages_get_blocks_of_their_own() -> None:
    small, huge = Message("s", b"x"), Message("h", Huge())
    messages = [small, small, huge, small, huge, huge, small]
    runs = list(building.split(messages, list(map(building.weight, messages))))
    assert [len(run) for run in runs] == [2, 1, 1, 1, 1, 1]
    assert [one for run in runs for one in run] == messages


@given(st.lists(st.integers(1, 3 << 20), min_size=1, max_size=20))
def test_runs_are_bounded_and_nothing_is_lost(weights: list[int]) -> None:
    messages = [Message(f"t/{n}", b"") for n in range(len(weights))]
    runs = list(building.split(messages, weights))
    assert [one for run in runs for one in run] == messages
    at = 0
    for run in runs:
        size = sum(weights[at : at + len(run)])
        at += len(run)
        assert size <= building.MAX_BYTES or len(run) == 1


def test_many_rows_are_several_blocks() -> None:
    messages = [Message("t", b"")] * (building.MAX_ROWS + 1)
    runs = list(building.split(messages, [1] * len(messages)))
    assert [len(run) for run in runs] == [building.MAX_ROWS, 1]


def test_groups_that_are_merged_are_bounded() -> None:
    one = block.parse(building.encode(0, 0, [Message("t", b"x" * 700_000)]))
    assert [len(group) for group in groups([one] * 7)] == [2, 2, 2, 1]
