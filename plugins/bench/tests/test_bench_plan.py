"""Test which subscriber gets which messages, and which process runs each client."""

import pytest
from hookmq.mqtt_api import matches
from hookmq_bench.plan import MAGIC, share
from hypothesis import given
from hypothesis import strategies as st
from unwired import vary


@given(
    st.sampled_from(["pair", "fanin", "fanout", "pub", "sub"]), st.integers(1, 9), st.integers(1, 9),
    st.integers(1, 6), st.booleans(),
)  # fmt: skip
def test_everybody_lives_in_one_process(
    scenario: str, publishers: int, subscribers: int, processes: int, shared: bool
) -> None:
    plan = vary(
        scenario=scenario,
        publishers=0 if scenario == "sub" else publishers,
        subscribers=publishers if scenario == "pair" else 0 if scenario == "pub" else subscribers,
        processes=processes,
        shared=shared and scenario in ("fanin", "fanout", "sub"),
    )
    homes = plan.homes()
    for number in range(plan.publishers):
        assert 0 <= homes.publisher(number) < processes
    for number in range(plan.subscribers):
        assert 0 <= homes.subscriber(number) < processes
    if plan.kind.paired:
        assert homes.publishers == homes.subscribers


def test_a_single_one_has_a_process_to_itself() -> None:
    fanin = vary(scenario="fanin", publishers=50, subscribers=1, processes=3).homes()
    assert (list(fanin.publishers), list(fanin.subscribers)) == ([1, 2], [0])
    fanout = vary(scenario="fanout", publishers=1, subscribers=50, processes=3).homes()
    assert (list(fanout.publishers), list(fanout.subscribers)) == ([0], [1, 2])


@pytest.mark.parametrize("scenario", ["pair", "fanin", "fanout"])
@pytest.mark.parametrize("topic", ["x/{run}/{i}", "{i}/x", "same"])
def test_filters_match_the_topics_of_the_sources(scenario: str, topic: str) -> None:
    if scenario == "pair" and topic == "same":
        return  # refused on the command line
    plan = vary(scenario=scenario, publishers=4, subscribers=4, topic=topic)
    for subscriber in range(4):
        wanted = set(plan.sources_of(subscriber))
        found = {
            number
            for number in range(4)
            if matches(plan.filter_of(subscriber), plan.topic_of(number))
        }
        assert found == wanted


def test_copies() -> None:
    assert vary(scenario="pair", subscribers=9).copies == 1
    assert vary(scenario="fanout", subscribers=9).copies == 9
    assert vary(scenario="fanout", subscribers=9, shared=True).copies == 1
    assert vary(scenario="pub", subscribers=0).copies == 0


def test_a_shared_subscription_is_of_this_run() -> None:
    plan = vary(scenario="fanin", shared=True, topic="a/{i}")
    assert plan.filter_of(1) == "$share/bench/a/+"


def test_a_key_holds_the_run_and_the_publisher() -> None:
    assert vary().key(0x123456) == MAGIC << 48 | 0xABCDEF << 24 | 0x123456


@given(st.integers(0, 1000), st.integers(1, 9))
def test_shares_add_up(count: int, parts: int) -> None:
    dealt = [share(count, parts, part) for part in range(parts)]
    assert sum(dealt) == count
    assert max(dealt) - min(dealt) <= 1
