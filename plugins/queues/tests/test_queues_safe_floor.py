"""Test up to which offset segments can safely be deleted while messages are being moved to another log."""

from hookmq_queues.safe_floor import SafeFloor
from hypothesis import given
from hypothesis import strategies as st


@given(
    st.lists(st.tuples(st.sampled_from(["rise", "move", "flush", "committed"]), st.integers(1, 3)))
)
def test_no_message_is_deleted_before_its_move_is_committed(steps: list[tuple[str, int]]) -> None:
    """For each moved message, the model remembers whether its commit is stored."""
    safe = SafeFloor()
    floor = begun = stored = 0
    moves: list[tuple[int, int]] = []  # (offset, number of the commit that will contain it)
    for word, number in steps:
        if word == "move":
            safe.hold()
            moves.append((floor, begun + 1))
            floor += 1
            safe.rise(floor)
        elif word == "rise":
            floor += number
            safe.rise(floor)
        elif word == "flush":
            begun += 1
            safe.flush(begun)
        elif stored < begun:
            stored += 1
            safe.committed(stored)
        pending = [offset for offset, commit in moves if commit > stored]
        assert safe.value <= min(pending, default=floor)
        if not pending and stored == begun:
            assert safe.value == floor


def test_it_costs_nothing_without_moves() -> None:
    safe = SafeFloor()
    safe.rise(5)
    safe.flush(1)
    assert (safe.value, safe.committed(1)) == (5, False)
