"""Limits that all nodes of a cluster share."""

import pytest
from hookmq.plugin import ConfigError
from hookmq_ratelimit.buckets import Allowance
from hookmq_ratelimit.settings import Limit


def allowance(rate: str, burst: float = 0) -> Allowance:
    """Return a shared limit."""
    return Allowance(Limit("publishes", "broker", rate, burst=burst, shared=True), "r/x", 10)


def test_a_limit_per_client_needs_no_sharing() -> None:
    with pytest.raises(ConfigError, match="shared: a client is on one node at a time"):
        Limit("publishes", "client", "1/s", shared=True)


def taken(limit: Allowance, now: float) -> int:
    """Return how many tokens there are at once."""
    bucket = limit.get("", now)
    return next(count for count in range(1000) if not bucket.take(now))


def test_the_parts_of_all_nodes_are_the_rate() -> None:
    limit = allowance("30/min")
    limit.divide(3)
    assert taken(limit, 1000.0) == 10
    assert taken(limit, 1006.0) == 1
    assert taken(limit, 1060.0) == 9


def test_used_tokens_stay_used_when_the_number_of_nodes_changes() -> None:
    limit = allowance("30/min")
    assert taken(limit, 1000.0) == 30
    limit.divide(3)
    assert taken(limit, 1000.0) == 0
    assert taken(limit, 1060.0) == 10
    limit.divide(1)
    assert taken(limit, 1060.0) == 0
    assert taken(limit, 1120.0) == 30


def test_each_node_allows_at_least_one_at_once() -> None:
    limit = allowance("3/min", burst=2)
    limit.divide(10)
    assert taken(limit, 1000.0) == 1
    assert taken(limit, 1100.0) == 0
    assert taken(limit, 1200.0) == 1
