"""Test the cache: expiry, limits, eviction and distinct keys."""

import pytest
from hookmq_toolkit.ttl_cache import KeyDigest, TtlCache
from hypothesis import given
from hypothesis import strategies as st


def test_a_value_expires() -> None:
    cache = TtlCache[str, int](10)
    cache.put("a", 1, 5, now=100)
    assert cache.get("a", 104.9) == 1
    assert cache.get("a", 105) is None
    assert len(cache) == 0
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_new_value_replaces_the_old_one() -> None:
    cache = TtlCache[str, int](10)
    cache.put("a", 1, 5, now=0)
    cache.put("a", 2, 1, now=0)
    assert cache.get("a", 0.5) == 2
    assert cache.get("a", 2) is None
    cache.put("a", 3, 5, now=2)
    cache.put("a", 4, 0, now=2)
    assert cache.get("a", 2) is None


def test_the_least_recently_used_value_is_dropped() -> None:
    cache = TtlCache[str, int](2)
    cache.put("a", 1, 9, 0)
    cache.put("b", 2, 9, 0)
    cache.get("a", 1)
    cache.put("c", 3, 9, 1)
    assert [cache.get(key, 1) for key in "abc"] == [1, None, 3]


@pytest.mark.parametrize(("size", "seconds"), [(0, 5), (5, 0), (5, -1), (-1, 5)])
def test_nothing_is_kept(size: int, seconds: float) -> None:
    cache = TtlCache[str, int](size)
    cache.put("a", 1, seconds, 0)
    assert len(cache) == 0


def test_discard_and_clear() -> None:
    cache = TtlCache[str, int](9)
    for number, key in enumerate("abcd"):
        cache.put(key, number, 9, 0)
    cache.discard(lambda value: value % 2 == 0)
    assert [cache.get(key, 0) for key in "abcd"] == [None, 1, None, 3]
    cache.clear()
    assert len(cache) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 10)), max_size=50), st.integers(0, 4))
def test_it_never_holds_more_than_its_size(puts: list[tuple[int, float]], size: int) -> None:
    cache = TtlCache[int, int](size)
    for key, seconds in puts:
        cache.put(key, key, seconds, 0)
        assert len(cache) <= size
        assert cache.get(key, 0) == (key if seconds and size else None)


PARTS = st.lists(st.binary(max_size=3), max_size=3)
digest = KeyDigest()


@given(PARTS, PARTS)
def test_keys_are_equal_only_for_equal_parts(one: list[bytes], other: list[bytes]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_keys_of_two_objects_differ_and_hold_nothing_of_the_parts() -> None:
    assert KeyDigest()(b"secret") != KeyDigest()(b"secret")
    assert b"secret" not in KeyDigest()(b"secret")
