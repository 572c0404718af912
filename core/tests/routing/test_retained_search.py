"""Test open searches. Each page can be continued once. If there are too many searches, the oldest one ends."""

from hookmq.routing.retained_search import MAX_SEARCHES, RetainedSearch, RetainedSearches


def begin(searches: RetainedSearches[int]) -> RetainedSearch[int]:
    search = searches.begin(iter([("a", 1)]))
    searches.keep(search)
    return search


def test_a_page_continues_once() -> None:
    searches: RetainedSearches[int] = RetainedSearches()
    search = begin(searches)
    assert searches.take(search.number, 0) is None
    assert searches.take(search.number + 1, 1) is None
    assert searches.take(search.number, 1) is search
    assert searches.take(search.number, 1) is None
    searches.keep(search)
    assert searches.take(search.number, 1) is None
    assert searches.take(search.number, 2) is search
    assert len(searches) == 0


def test_a_search_that_is_not_kept_is_not_open() -> None:
    searches: RetainedSearches[int] = RetainedSearches()
    search = searches.begin(iter(()))
    assert searches.take(search.number, 0) is None
    assert len(searches) == 0


def test_the_search_that_was_not_used_for_longest_ends() -> None:
    searches: RetainedSearches[int] = RetainedSearches()
    found = [begin(searches) for _ in range(MAX_SEARCHES)]
    assert searches.take(found[0].number, 1) is found[0]
    searches.keep(found[0])
    begin(searches)
    assert len(searches) == MAX_SEARCHES
    assert searches.take(found[1].number, 1) is None
    assert searches.take(found[0].number, 2) is found[0]
