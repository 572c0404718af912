"""Test the index of sessions. A reader that continues from a serial number misses nothing and sees nothing twice."""

import random

import pytest
from hookmq.session.serial_index import BLOCK, Numbered, SerialIndex
from hypothesis import given
from hypothesis import strategies as st

COMMANDS = st.lists(st.tuples(st.sampled_from("aaarp"), st.integers(0, 1 << 30)), max_size=300)


def filled(count: int) -> tuple[SerialIndex[Numbered], list[Numbered]]:
    index: SerialIndex[Numbered] = SerialIndex()
    items = [Numbered() for _ in range(count)]
    for item in items:
        index.add(item)
    return index, items


def serials(items: list[Numbered]) -> list[int]:
    return [item.serial for item in items]


def test_serial_numbers_rise_and_are_never_used_again() -> None:
    index, (one, two) = filled(2)
    index.remove(two)
    three = Numbered()
    index.add(three)
    assert (one.serial, three.serial) == (1, 3)
    assert index.page(0, 9) == [one, three]
    assert len(index) == 2


def test_an_object_that_is_not_there_is_not_removed() -> None:
    index, items = filled(3)
    index.remove(Numbered())
    index.remove(items[1])
    index.remove(items[1])
    stranger = Numbered()
    stranger.serial = 3
    index.remove(stranger)
    assert serials(index.page(0, 9)) == [1, 3]
    assert len(index) == 2
    empty: SerialIndex[Numbered] = SerialIndex()
    empty.remove(items[0])
    assert empty.page(0, 5) == empty.page(7, 5) == []


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("size", [1, 7, BLOCK, 1000])
def test_pages_cover_everything_once(count: int, size: int) -> None:
    index, items = filled(count)
    found: list[Numbered] = []
    start = 0
    while page := index.page(start, size):
        assert len(page) <= size
        found += page
        start = page[-1].serial + 1
    assert found == items


@given(COMMANDS, st.integers(1, 9))
def test_a_reader_sees_what_stays_exactly_once(commands: list[tuple[str, int]], size: int) -> None:
    index, stay = filled(30)
    others: list[Numbered] = []
    seen: list[Numbered] = []
    start = 0

    def read() -> bool:
        nonlocal start
        page = index.page(start, size)
        seen.extend(page)
        start = page[-1].serial + 1 if page else start
        return bool(page)

    for command, number in commands:
        if command == "a":
            others.append(Numbered())
            index.add(others[-1])
        elif command == "r" and others:
            index.remove(others.pop(number % len(others)))
        elif command == "p":
            read()
    while read():
        pass
    assert [item for item in seen if item in stay] == stay
    assert len({id(item) for item in seen}) == len(seen)
    assert len(index) == len(stay) + len(others)
    assert index.page(0, 1000) == [*stay, *others]


def test_sparse_lists_join() -> None:
    """Sparse lists are merged, so memory use depends on how many objects remain."""
    chance = random.Random(5)
    index, items = filled(60 * BLOCK)
    for item in items:
        if chance.random() < 0.95:
            index.remove(item)
    left = len(index)
    assert left > BLOCK
    assert serials(index.page(0, 1 << 20)) == sorted(serials(index.page(0, 1 << 20)))
    blocks = getattr(index, "_blocks", None)
    if blocks is not None:  # the compiled class hides it
        assert len(blocks) < 8 * left / BLOCK
        assert all(blocks)
