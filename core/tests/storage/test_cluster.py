"""Test the values that a broker and its cluster exchange."""

from hookmq.model.subscription import Subscription
from hookmq.storage.cluster import Remote, RemoteMatch, RemoteRoute


def test_remotes_with_equal_names_differ() -> None:
    one, two = Remote("node"), Remote("node")
    assert one != two
    assert len({one, two}) == 2
    assert repr(one) == "Remote('node')"


def test_a_route_remembers_the_plan_of_the_cluster() -> None:
    match = RemoteMatch(Remote("node"), Subscription("a", "a"))
    route = RemoteRoute((match,))
    assert (route.matches, route.plan) == ((match,), None)
    route.plan = "plan"
    assert route.plan == "plan"
