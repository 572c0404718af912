"""The names of queues in the store."""

from hookmq.storage.records import group_owner, session_owner
from hypothesis import given
from hypothesis import strategies as st

SHARES = st.text(min_size=1).filter(lambda name: not set(name) & set("/+#"))


@given(st.text(min_size=1), SHARES, st.text(min_size=1))
def test_a_clients_queue_is_no_shared_subscriptions(client: str, share: str, filter: str) -> None:
    assert session_owner(client) != group_owner(share, filter)


@given(SHARES, st.text(min_size=1), SHARES, st.text(min_size=1))
def test_owners_of_shared_subscriptions_do_not_collide(
    share: str, filter: str, other_share: str, other_filter: str
) -> None:
    same = (share, filter) == (other_share, other_filter)
    assert (group_owner(share, filter) == group_owner(other_share, other_filter)) is same
