"""Test the stored format of unsettled messages. The format decodes to the original data, is compact, and reveals
damage.
"""

import pytest
from hookmq_queues.group import Group
from hookmq_queues.pages import SHIFT, Entry, Pages, decode
from hypothesis import given
from hypothesis import strategies as st

ENTRIES = st.lists(
    st.builds(
        Entry,
        st.integers(0, 2000) | st.integers(0, (1 << 63) - 1),
        st.just(1) | st.integers(0, (1 << 32) - 1),
        st.booleans(),
        st.just(-1) | st.integers(0, 1 << 53),
    ),
    unique_by=lambda one: one.offset,
    max_size=300,
)


def encode(pages: Pages, entries: list[Entry]) -> bytes:
    return pages.encode(
        {one.offset: one.deliveries for one in entries},
        {one.offset for one in entries if one.deliveries != 1},
        {one.offset for one in entries if one.unsure},
        {one.offset: one.due for one in entries if one.due >= 0},
    )


@given(ENTRIES, ENTRIES)
def test_what_was_written_is_read(first: list[Entry], second: list[Entry]) -> None:
    pages = Pages()
    for entries in (first, second):
        for one in (*first, *second):
            pages.touch(one.offset >> SHIFT)
        assert list(decode(encode(pages, entries))) == sorted(entries)


@given(ENTRIES, st.binary(max_size=40))
def test_a_prefix_or_a_suffix_is_damaged(entries: list[Entry], more: bytes) -> None:
    pages = Pages()
    for one in entries:
        pages.touch(one.offset >> SHIFT)
    stored = encode(pages, entries)
    for damaged in (stored[:-1], stored + stored[:1], more, stored + more):
        try:
            found = list(decode(damaged))
        except ValueError:
            continue
        assert damaged in (b"", stored) or found != sorted(entries)


def test_only_pages_that_were_touched_are_encoded() -> None:
    pages = Pages()
    counts = {5: 1, 700: 1}
    pages.touch(0)
    assert [one.offset for one in decode(pages.encode(counts, set(), set(), {}))] == [5]
    pages.touch(700 >> SHIFT)
    assert [one.offset for one in decode(pages.encode(counts, set(), set(), {}))] == [5, 700]
    counts.clear()
    pages.touch(0)
    assert [one.offset for one in decode(pages.encode({700: 1}, set(), set(), {}))] == [700]


@pytest.mark.parametrize(("step", "size"), [(1, 2_100), (2, 4_150), (1000, 120_100)])
def test_the_size_of_ten_thousand_unsettled_messages(step: int, size: int) -> None:
    group = Group()
    for offset in range(10_000 * step):
        if offset % step:
            group.settle(offset)
        else:
            group.lease(offset, "a", 5.0)
    assert len(group.unsettled) == 10_000
    assert len(group.encode(group.next)) <= size


def test_the_size_of_ten_thousand_deferred_messages() -> None:
    group = Group()
    for offset in range(10_000):
        group.lease(offset, "a", 5.0)
        group.defer(offset, 1_800_000_000 + offset / 10)
    assert len(group.encode(group.next)) <= 25_000
