"""Test the latency percentiles of commits, deliveries and hooks, in the history and in the overview."""

from admin_site import Site
from hookmq_admin.history import History
from hookmq_admin.latency import LATENCIES, buckets, percentiles
from hookmq_testing import Harness, HookRecorder


def read(family: str, *counts: float, label: str = "") -> dict[str, float]:
    bounds = ("0.001", "0.01", "+Inf")
    return {
        f'{family}_bucket{{{label}le="{bound}"}}': count
        for bound, count in zip(bounds, counts, strict=True)
    }


def test_a_percentile_is_the_bound_below_which_the_new_values_are() -> None:
    first = buckets(read("commit_duration_seconds", 0, 100, 100))
    second = buckets(read("commit_duration_seconds", 60, 198, 200))
    found = percentiles(first, second)
    assert found["commit_p50"] == 0.001
    assert found["commit_p99"] == 0.01
    assert found["delivery_p99"] is None
    assert percentiles({}, first) | {"commit_p50": 0.01} == percentiles({}, first)
    assert set(percentiles(second, second).values()) == {None}


def test_a_value_above_all_bounds_counts_as_the_highest_bound() -> None:
    assert percentiles({}, buckets(read("delivery_delay_seconds", 0, 0, 5)))["delivery_p50"] == 0.01


def test_the_hooks_of_all_plugins_are_added_up() -> None:
    one = read("hook_duration_seconds", 99, 99, 99, label='hook="authorize",plugin="a",')
    other = read("hook_duration_seconds", 0, 9, 9, label='hook="on_event",plugin="b",')
    found = percentiles({}, buckets({**one, **other, "hook_queue_depth": 7.0}))
    assert (found["hook_p50"], found["hook_p99"]) == (0.001, 0.01)


def test_each_sample_has_the_latencies_since_the_last_one() -> None:
    with Harness([HookRecorder("on_connect", id="x")]) as harness:
        history = History(harness.handle("x"), 10.0, 16)
        assert set(history.latency().values()) == {None}
        history.start()
        harness.connect("a", keep_alive=0)
        harness.advance(10)
        assert history.latency()["hook_p99"] == 1e-05  # the virtual clock stands still
        harness.advance(10)
        _, series = history.samples(0.0, 1000, LATENCIES)
        assert series["hook_p99"] == [None, 1e-05, None]
        assert history.latency()["hook_p99"] is None
        history.stop()


def test_the_overview_has_every_latency(site: Site) -> None:
    assert set(site.ask("GET", "/overview").json["latency"]) == set(LATENCIES)
    assert set(site.ask("GET", "/history").json["series"]) >= set(LATENCIES)
