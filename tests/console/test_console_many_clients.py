"""Test the console's client list in a real browser, with 100,000 sessions: the page must not use much memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from admin_browser import Open, View
from admin_site import Site
from crowd import crowd

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]

SESSIONS = 100_000
MAX_HEAP = 15_000_000
"""Maximum number of bytes that the page may hold."""
MAX_NODES = 10_000


@dataclass
class Crowd:
    """A console's address and its tokens."""

    url: str
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Run a broker with many offline sessions."""
    site = Site(tmp_path_factory.mktemp("crowd"), (crowd(SESSIONS),))
    yield Crowd(f"{site.url}/", site.tokens)
    site.close()


def test_the_page_stays_small_with_100_000_clients(tab: Open, crowded: Crowd) -> None:
    view = tab(at=crowded).sign_in()
    view.go("clients", "Clients")
    view.page.get_by_label("Rows").select_option("100")
    view.count("Clients", 100)
    for number in range(2, 6):
        view.press("Next")
        view.sees(view.page.get_by_text(f"Page {number}, 100 rows"))
    view.page.get_by_label("Client id begins with").fill("meter-9999")
    view.press("Search")
    view.count("Clients", 10)
    view.press("Client id")
    view.press("Client id")
    assert view.rows("Clients").first.inner_text().startswith("meter-99999")
    view.page.get_by_label("Client id begins with").fill("nobody")
    view.press("Search")
    view.sees(view.page.get_by_text("No client matches"))
    view.page.get_by_label("Client id begins with").fill("")
    view.press("Search")
    view.count("Clients", 100)
    heap, nodes = held(view)
    assert (heap < MAX_HEAP, nodes < MAX_NODES) == (True, True), (heap, nodes)


def held(view: View) -> tuple[float, float]:
    """Return the size of the page's JavaScript objects and its number of DOM nodes, after garbage collection."""
    chrome = view.context.new_cdp_session(view.page)
    chrome.send("HeapProfiler.collectGarbage")
    chrome.send("Performance.enable")
    found = {one["name"]: one["value"] for one in chrome.send("Performance.getMetrics")["metrics"]}
    return found["JSHeapUsedSize"], found["Nodes"]
