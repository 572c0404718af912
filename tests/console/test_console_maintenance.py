"""Test the log and maintenance pages in a real browser, with their own broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_browser import Open, Operated, operated

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]

RECORD = """() => {
  window.seen = [];
  const bars = () => [...document.querySelectorAll('main .card:has(progress:not([hidden]))')];
  const read = () => seen.push(bars().map(one => one.innerText).join());
  const what = { subtree: true, childList: true, attributes: true };
  new MutationObserver(read).observe(document.querySelector('main'), what);
}"""
"""A script that records the text next to each progress bar. Draining a few clients is too quick to observe
otherwise."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Run a broker that a test may drain."""
    folder: Path = tmp_path_factory.mktemp("maintenance")
    with operated(folder) as found:
        found.token("operator")
        yield found


def test_the_log_and_its_level(tab: Open, own: Operated) -> None:
    view = tab(at=own).sign_in()
    view.go("log", "Log")
    view.sees(view.page.get_by_text("info and above. The configuration says the same."))
    view.page.get_by_label("Level of the log").get_by_label("Level").select_option("debug")
    view.press("Set the level")
    view.says("The level is debug.")
    view.sees(view.page.get_by_text("The configuration says info"))
    view.submit("Live log", "Follow", Event_begins_with="admin.change")
    view.says("Following the log.")
    view.sees(view.rows("Log").filter(has_text="setLogLevel").first)  # logged before
    own.token("viewer", name="new")
    view.sees(view.rows("Log").filter(has_text="createToken").nth(1))
    view.press("Stop")
    view.says("The tail is closed.")
    view.go("overview", "Overview")
    view = tab(at=own).sign_in("operator")
    view.go("log", "Log")
    view.sees(view.page.get_by_text("debug and above"))
    assert view.page.get_by_role("button", name="Set the level").count() == 0


def test_draining_and_accepting_connections_again(tab: Open, own: Operated) -> None:
    clients = [own.client(f"drained-{number}") for number in range(3)]
    view = tab(at=own).sign_in()
    view.go("maintenance", "Maintenance")
    view.sees(view.page.get_by_text("The broker accepts connections. 3 connections are open."))
    view.page.evaluate(RECORD)
    view.press("Drain")
    view.confirm("Drain", **{"Over how many seconds": "1"})
    view.until("() => seen.some(text => text.includes('2 clients are still to be disconnected'))")
    view.sees(view.page.get_by_text("Drained: the broker refuses connections"))
    for client in clients:
        packet = own.thread.run(client.expect_disconnect(0x8B))
        assert packet is not None
    view.go("overview", "Overview")
    view.sees(view.page.get_by_text("The broker is draining"))
    view.go("maintenance", "Maintenance")
    view.press("Accept connections again")
    view.confirm("Accept")
    view.says("The broker accepts connections again.")
    own.client("afterwards")


def test_backing_up_the_store(tab: Open, own: Operated) -> None:
    view = tab(at=own).sign_in()
    view.go("maintenance", "Maintenance")
    view.sees(view.page.get_by_text("No backup has been made"))
    view.press("Back up now")
    view.sees(view.page.get_by_text("Done: "))
    assert len(list((own.folder / "backups").iterdir())) == 1


def test_checking_a_configuration(tab: Open, own: Operated) -> None:
    view = tab(at=own).sign_in()
    view.go("configuration", "Configuration")
    view.submit("Check a document", "Check", Configuration="version: 1\nlisteners: 5\n")
    view.count("Mistakes", 1)
    assert view.rows("Mistakes").first.inner_text().startswith("2\t")
    text = (own.folder / "hookmq.yaml").read_text().replace("level: info", "level: warning")
    view.submit("Check a document", "Check", Configuration=text)
    view.count("Changes that a reload would make", 1)
    assert own.ask("GET", "/log/level")["configured"] == "info"


def test_a_broker_without_accounts_says_what_to_configure(tab: Open, own: Operated) -> None:
    view = tab("status of 409", at=own).sign_in()
    view.go("accounts", "Users and groups")
    view.sees(view.page.get_by_text("need the plugin accounts"))
    view.sees(view.page.get_by_text("- use: accounts"))
