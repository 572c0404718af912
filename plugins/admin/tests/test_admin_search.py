"""Test searching for clients when there are more sessions than the broker examines at a time."""

from collections.abc import Iterator

import pytest
from admin_site import Site
from crowd import crowd

SESSIONS = 2500


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("crowd"), (crowd(SESSIONS),))
    yield made
    made.close()


def ids(site: Site, **query: str) -> tuple[list[str], str]:
    found = site.ask("GET", "/clients", params=query).json
    return [one["client_id"] for one in found["items"]], found["cursor"]


def test_a_search_finds_the_last_client_in_one_request(site: Site) -> None:
    assert ids(site, client_id="meter-02499") == (["meter-02499"], "")
    assert ids(site, client_id="nobody") == ([], "")


def test_the_pages_of_a_search_have_every_client_once(site: Site) -> None:
    found: list[str] = []
    cursor = ""
    while True:
        page, cursor = ids(site, client_id="meter-0", connected="false", limit="400", cursor=cursor)
        found += page
        if not cursor:
            break
        assert len(page) == 400
    assert found == [f"meter-{number:05}" for number in range(SESSIONS)]


def test_an_address_is_searched_in_many_parts(site: Site) -> None:
    assert len(ids(site, address="192.0.2.", limit="500")[0]) == 500
    page, cursor = ids(site, address="198.51.100.", limit="100")
    assert page == []
    assert cursor  # one request examines a limited number of sessions
    page, cursor = ids(site, address="198.51.100.", limit="100", cursor=cursor)
    assert (page, cursor) == ([], "")
