"""Test that snapshots are immutable values, and that the fast constructor returns the same objects as the class."""

from dataclasses import FrozenInstanceError, fields

import pytest
from hookmq.model.client import Peer
from hookmq.model.snapshots import InflightMessage, Page, SessionSnapshot, make_session_snapshot

GIVEN = (
    "c", "u", "i", "default", Peer("192.0.2.1", 1), 5, True, 1.0, None, True, 60, 30.0, True, 1, 2, 3, 4, "w", 5,
)  # fmt: skip


def test_the_quick_constructor_makes_the_same() -> None:
    quick, plain = make_session_snapshot(*GIVEN), SessionSnapshot(*GIVEN)
    assert type(quick) is SessionSnapshot
    assert quick == plain
    assert len(fields(SessionSnapshot)) == len(GIVEN)


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        make_session_snapshot(*GIVEN).queued = 0  # type: ignore[misc]


def test_a_page_is_the_last_unless_it_has_a_cursor() -> None:
    assert Page((1, 2)) == Page((1, 2), "")
    assert InflightMessage(1, 2, True).message is None
