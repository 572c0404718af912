"""Test the names that the store uses for queues and for plugins' spaces."""

from hookmq.storage.records import group_owner, session_owner, state_space, timer_space
from hypothesis import given
from hypothesis import strategies as st

SHARES = st.text(min_size=1).filter(lambda name: not set(name) & set("/+#"))


@given(st.text(min_size=1), SHARES, st.text(min_size=1))
def test_owners_of_sessions_and_shared_subscriptions_do_not_collide(
    client: str, share: str, filter: str
) -> None:
    assert session_owner(client) != group_owner(share, filter)


@given(SHARES, st.text(min_size=1), SHARES, st.text(min_size=1))
def test_owners_of_shared_subscriptions_do_not_collide(
    share: str, filter: str, other_share: str, other_filter: str
) -> None:
    same = (share, filter) == (other_share, other_filter)
    assert (group_owner(share, filter) == group_owner(other_share, other_filter)) is same


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_plugins_timers_are_no_plugins_state(one: str, other: str) -> None:
    assert state_space(one) != timer_space(other)
    assert (state_space(one) == state_space(other)) is (one == other)
