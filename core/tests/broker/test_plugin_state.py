"""Test plugins' keys and timers in memory: their sizes, limits, order and records."""

from math import inf

import pytest
from hookmq.broker.plugin_state import PluginSpace, PluginStates
from hookmq.model.errors import PluginError
from hookmq.model.settings import BrokerSettings
from hookmq.storage.records import DropState, PutState, Record
from hypothesis import given
from hypothesis import strategies as st

BOUNDS = BrokerSettings(plugin_state_bytes=20, plugin_state_keys=3)
KEYS = st.sampled_from(("", "a", "ab", "abc", "b", "ä"))
CHANGES = st.lists(
    st.tuples(st.sampled_from(("put", "delete", "set", "drop")), KEYS, st.binary(max_size=9)),
    max_size=30,
)


def size_of(space: PluginSpace) -> int:
    """Return the number of bytes that a space is expected to use."""
    values = sum(len(key.encode()) + len(value) for key, value in space.values.items())
    return values + sum(len(key.encode()) + len(one.data) for key, one in space.timers.items())


@given(CHANGES)
def test_the_size_is_that_of_all_keys_and_values(changes: list[tuple[str, str, bytes]]) -> None:
    space = PluginSpace("p")
    kept: dict[str, bytes] = {}
    for number, (what, key, value) in enumerate(changes):
        before = (dict(space.values), {k: t.data for k, t in space.timers.items()})
        try:
            if what == "put":
                space.put(key, value, BOUNDS)
                kept[key] = value
            elif what == "delete":
                assert space.delete(key) is (kept.pop(key, None) is not None)
            elif what == "set":
                space.set_timer(key, float(number), value, BOUNDS)
            else:
                space.drop_timer(key)
        except PluginError:
            assert before == (dict(space.values), {k: t.data for k, t in space.timers.items()})
        assert space.size == size_of(space) <= 20
        assert space.keys == len(space.values) + len(space.timers) <= 3
        assert space.values == kept
        assert space.page("", None, 100) == (sorted(kept), False)


def test_an_error_names_the_bound() -> None:
    space = PluginSpace("p")
    with pytest.raises(PluginError, match=r"'p'.*21 bytes: broker.plugin_state_bytes allows 20"):
        space.put("k", b"x" * 20, BOUNDS)
    for key in "abc":
        space.set_timer(key, 1.0, b"", BOUNDS)
    says = r"4 keys and timers: broker.plugin_state_keys allows 3"
    with pytest.raises(PluginError, match=says):
        space.put("a", b"", BOUNDS)
    with pytest.raises(PluginError, match=says):
        space.set_timer("d", 1.0, b"", BOUNDS)
    space.set_timer("a", 2.0, b"", BOUNDS)  # an existing timer


def test_a_value_above_a_lowered_bound_may_shrink() -> None:
    space = PluginSpace("p")
    space.put("a", b"x" * 100, None)
    space.put("a", b"x" * 50, BOUNDS)
    with pytest.raises(PluginError):
        space.put("a", b"x" * 51, BOUNDS)
    assert space.size == 51


@given(st.sets(st.text(max_size=3)), st.text(max_size=2), st.integers(1, 5))
def test_pages_have_every_key_with_the_prefix_once(keys: set[str], prefix: str, limit: int) -> None:
    space = PluginSpace("p")
    for key in keys:
        space.put(key, b"", None)
    found: list[str] = []
    after: str | None = None
    more = True
    while more:
        page, more = space.page(prefix, after, limit)
        assert len(page) <= limit
        found += page
        after = page[-1] if page else None
    assert found == sorted(key for key in keys if key.startswith(prefix))


def test_timers_are_due_in_the_order_of_their_times_and_then_of_their_setting() -> None:
    space = PluginSpace("p")
    for key, at in (("c", 2.0), ("b", 1.0), ("a", 1.0), ("never", inf), ("c", 0.5)):
        space.set_timer(key, at, b"", None)
    space.drop_timer("never")
    order = []
    while (timer := space.next_timer()) is not None:
        space.take(timer)
        order.append(timer.key)
    assert order == ["c", "b", "a"]


def test_timers_that_are_replaced_often_leave_nothing_behind() -> None:
    space = PluginSpace("p")
    for number in range(10_000):
        space.set_timer("k", float(number), b"", None)
    assert len(space._heap) < 100
    timer = space.next_timer()
    assert timer is not None
    assert timer.when == 9999.0


def test_every_change_is_recorded() -> None:
    records: list[Record] = []
    states = PluginStates(records.append)
    space = states.space("p")
    bounds = BrokerSettings()
    states.put(space, "k", b"v", bounds)
    states.set_timer(space, "k", 5.0, b"d", bounds)
    assert states.delete(space, "k")
    assert not states.delete(space, "k")
    assert states.drop_timer(space, "k")
    assert not states.drop_timer(space, "k")
    assert records == [
        PutState("s/p", "k", b"v"),
        PutState("t/p", "k", b"d", 5.0),
        DropState("s/p", "k"),
        DropState("t/p", "k"),
    ]
    other = PluginStates(records.append)
    for record in records[:2]:
        assert isinstance(record, PutState)
        other.load(record)
    assert len(records) == 4
    assert other.space("p").values == {"k": b"v"}
    assert (other.space("p").timers["k"].at, other.space("p").size) == (5.0, 4)


def test_a_refused_change_of_plugin_state_is_not_recorded() -> None:
    records: list[Record] = []
    states = PluginStates(records.append)
    with pytest.raises(PluginError):
        states.put(states.space("p"), "k", b"x" * 20, BOUNDS)
    with pytest.raises(PluginError):
        states.set_timer(states.space("p"), "k", 1.0, b"x" * 20, BOUNDS)
    assert records == []
