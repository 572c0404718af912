"""Test in a real browser that every console page shows the broker's state and has no accessibility violations."""

import re
from typing import Any

import pytest
from admin_browser import AXE, Open, Operated, View
from sink_broker import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]

PAGES = {
    "overview": "Overview",
    "clients": "Clients",
    "client/meter-0": "meter-0",
    "subscriptions?topic=alarm%2F1": "Subscriptions",
    "topics": "Topics",
    "mqtt": "MQTT client",
    "diagnosis": "Diagnosis",
    "log": "Log",
    "plugins": "Plugins",
    "streams": "Streams",
    "queues": "Queues",
    "queue/jobs": "jobs",
    "sinks": "Sinks",
    "sink/plant": "plant",
    "access": "Access",
    "accounts": "Users and groups",
    "user/nora": "nora",
    "configuration": "Configuration",
    "maintenance": "Maintenance",
    "tokens": "Tokens",
    "audit": "Audit log",
}
"""The pages' titles, by address. test_console_cluster.py has the page of the cluster."""
ASIDE = 4
"""How many of these pages are not in the menu."""
LOADED = "() => document.querySelectorAll('main td, main pre').length > 0 || /mqtt|access|log|maint/.test(location.hash)"
REFUSED = r"status of 4\d\d"
PHONE = {"width": 360, "height": 740}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": PHONE},
}
RULES: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"runOnly": ["color-contrast"]},
    "phone": {"rules": {"color-contrast": {"enabled": False}}},
}
"""The axe rules to check. In dark mode, only colors are checked, because nothing else differs. On a phone, the colors
are the same."""


@pytest.mark.parametrize("look", LOOKS)
def test_no_page_has_a_serious_accessibility_violation(
    tab: Open, site: Operated, look: str
) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed (npm ci --prefix tests/console/js)")
    view = tab(**LOOKS[look])
    view.page.goto(site.url)
    found = {"sign in": view.violations(RULES[look])}
    view.sign_in()
    for name, title in PAGES.items():
        view.go(name, title)
        view.until(LOADED)
        found[name] = view.violations(RULES[look])
        wide = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not view.page.evaluate(wide), f"{name} is wider than the window"
    assert not {name: all for name, all in found.items() if all}


def test_the_overview_shows_figures_and_draws_them(tab: Open, site: Operated) -> None:
    view = tab().sign_in()
    tiles = view.page.locator(".tile")
    view.until("() => document.querySelectorAll('.tile').length === 10")
    assert int(tiles.nth(0).locator("dd").first.inner_text()) >= 130
    assert view.page.locator("figure svg").count() == 9
    view.until("() => document.querySelector('figure polyline')?.points.length > 2")
    view.count("Listeners", 3)
    site.burst("light/1/set", 50)  # the next samples contain them
    view.until(
        "() => /in: now .*highest [1-9]/.test(document.querySelector('figure svg').getAttribute('aria-label'))"
    )
    site.publish("light/1/set", b"x")  # a commit, for the latencies
    view.sees(view.page.get_by_label(re.compile(r"^Commits: latency in ms\. p50: .*highest \d")))
    view.page.locator("figure svg").first.hover()
    view.until("() => /:/.test(document.querySelector('.moment').textContent)")


def test_clients_come_in_pages_and_can_be_searched_and_sorted(tab: Open) -> None:
    view = tab().sign_in()
    view.go("clients", "Clients")
    view.count("Clients", 50)
    first = view.rows("Clients").first.inner_text()
    view.press("Next")
    view.until("() => /Page 2/.test(document.querySelector('.pager').textContent)")
    assert view.rows("Clients").first.inner_text() != first
    view.press("Previous")
    view.until("() => /Page 1/.test(document.querySelector('.pager').textContent)")
    assert view.rows("Clients").first.inner_text() == first
    view.page.keyboard.press("/")
    view.page.keyboard.type("meter-")
    view.page.keyboard.press("Enter")
    view.count("Clients", 6)
    view.press("Client id")
    view.press("Client id")
    assert view.rows("Clients").first.inner_text().startswith("meter-5")
    assert (
        view.page.get_by_role("columnheader", name="Client id").get_attribute("aria-sort")
        == "descending"
    )
    view.page.reload()  # the address has the search
    view.count("Clients", 6)
    view.page.get_by_label("State").select_option("online")
    view.sees(view.page.get_by_text("No client matches. Search for something shorter"))
    view.go("clients?client_id=lamp-007", "Clients")
    view.page.get_by_role("link", name="lamp-007").click()
    view.count("Subscriptions", 2)


def test_a_table_scrolls_inside_its_box_on_a_phone(tab: Open) -> None:
    view = tab(viewport={"width": 375, "height": 740}).sign_in()
    view.go("clients", "Clients")
    view.count("Clients", 50)
    box = view.page.get_by_role("region", name="Clients", exact=True)
    box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    assert box.evaluate("box => box.scrollLeft > 100 && box.scrollWidth > box.clientWidth")
    assert not view.page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
    place = view.page.get_by_role("link", name="lamp-007").bounding_box()
    assert place is not None
    assert 0 <= place["x"] < 100  # the first column stays


def test_subscriptions_say_who_gets_a_topic_and_why(tab: Open) -> None:
    view = tab().sign_in("viewer")
    view.go("subscriptions", "Subscriptions")
    view.submit("Who gets a topic?", "Find", Topic="light/3/set")
    view.count("Who gets light/3/set", 1)
    row = view.rows("Who gets light/3/set").inner_text()
    assert "lamp-003" in row
    assert "matches the topic" in row
    view.submit("Who gets a topic?", "Find", Topic="work/1")
    view.count("Who gets work/1", 5)
    assert "one member gets the message" in view.rows("Who gets work/1").first.inner_text()
    view.submit("Who gets a topic?", "Find", Topic="nowhere")
    view.sees(view.page.get_by_text("Nobody"))
    view.count("Shared subscriptions", 1)
    view.submit("All subscriptions", "Search", Overlaps_the_filter="meter/#")
    view.count("Subscriptions", 6)


def test_a_client_shows_its_session_and_queue(tab: Open) -> None:
    view = tab("status of 404").sign_in()
    view.go("client/meter-1", "meter-1")
    view.count("Queue", 25)
    view.page.get_by_label("Queue", exact=True).first.get_by_role("button", name="Next").click()
    view.count("Queue", 5)
    view.sees(view.page.get_by_text("30 messages"))
    view.sees(view.page.locator(".badge", has_text="offline"))
    view.go("client/nobody", "nobody")
    view.sees(view.page.get_by_text("no session"))


def test_diagnosis_finds_slow_clients_hot_topics_and_drops(tab: Open, site: Operated) -> None:
    site.offline("slowest", "slow/#")
    for _ in range(40):
        site.ask("POST", "/publish", {"topic": "slow/1", "qos": 1})
    view = tab().sign_in("operator")
    view.go("diagnosis", "Diagnosis")
    view.until("() => /slowest/.test(document.querySelector('tbody tr')?.textContent)")
    view.submit("Hot topics", "Measure", Filter="hot/#")
    view.says("Started.")
    view.submit("Dropped messages", "Record")
    view.sees(view.page.get_by_text("Recording since"))
    site.burst("hot/1", 500)
    view.until(
        "() => /500/.test(document.querySelector('[aria-label=\"Hot topics\"] tbody tr')?.textContent)"
    )
    for path in ("/hot-topics", "/drops"):
        site.ask("DELETE", path)
    view.sees(view.page.get_by_text("Measured hot/#"))
    view.sees(view.page.get_by_text("No message was dropped during the recording."))


def test_the_access_tester_says_who_decides(tab: Open) -> None:
    view = tab().sign_in("operator")
    view.go("access", "Access")
    form = view.page.locator("main form")
    form.get_by_label("User name").fill("ann")
    form.get_by_label("Topic or filter").fill("light/1")
    view.press("Test")
    view.sees(view.page.locator(".badge.on", has_text="allowed"))
    view.sees(view.page.get_by_text("publish light/1"))


def test_plugins_and_the_configuration(tab: Open) -> None:
    view = tab().sign_in()
    view.go("plugins", "Plugins")
    for name in ("storage", "ratelimit", "admin"):
        view.sees(view.page.get_by_role("heading", name=name, exact=True))
    view.go("configuration", "Configuration")
    view.until("() => document.querySelector('pre').textContent.startsWith('version: 1')")


def test_streams_show_their_size_and_the_lag_of_their_consumers(tab: Open) -> None:
    view = tab().sign_in("viewer")
    view.go("streams", "Streams")
    card = view.page.get_by_role("region", name="meters", exact=True)
    view.sees(
        card.get_by_text(re.compile(r"^60 messages; .* of 10\.\d GB; .* per message; oldest: "))
    )
    view.sees(card.get_by_text(re.compile(r"messages by partition: \d+, \d+")))
    view.sees(card.locator(".badge.warn", has_text="check the consumers"))
    row = card.get_by_role("row", name=re.compile("^plant.bronze 60"))
    view.sees(row.get_by_text("has never committed: all messages are kept for it"))


def test_queues_show_their_depth_and_their_consumers(tab: Open) -> None:
    view = tab().sign_in("viewer")
    view.go("queues", "Queues")
    view.count("Queues", 2)
    view.page.get_by_role("link", name="jobs", exact=True).click()
    view.count("Groups", 2)
    view.sees(view.page.get_by_role("link", name="worker-1", exact=True))
    assert view.page.get_by_role("button", name="Purge").count() == 0
    assert view.page.get_by_role("region", name="Messages").count() == 0


def test_a_dead_letter_shows_its_reason(tab: Open, site: Operated) -> None:
    while not site.ask("GET", "/queues/failed/messages")["items"]:
        pass  # worker-2 lost its messages, and the delivery limit is 1
    view = tab().sign_in()
    view.go("queue/failed", "failed")
    cells = view.rows("Messages").first.locator("td")
    view.sees(view.page.get_by_role("columnheader", name="Reason"))
    titles = [one.get_attribute("data-title") for one in cells.all()]
    assert cells.nth(titles.index("From")).inner_text().startswith("jobs:")
    assert cells.nth(titles.index("Reason")).inner_text() == "delivery-limit"


def test_an_administrator_manages_a_queue(tab: Open, site: Operated) -> None:
    view = tab().sign_in()
    view.go("queues", "Queues")
    view.press("Create a queue")
    view.confirm("Create", Name="made", **{"Settings (optional)": '{"groups": ["a"]}'})
    view.says("The queue made was created.")
    site.publish("$queue/made", b"hello")
    view.go("queue/made", "made")
    view.count("Messages", 1)
    view.sees(view.page.get_by_role("cell", name="hello"))
    view.press("Pause the deliveries")
    view.confirm("Pause the queue")
    view.sees(view.page.get_by_role("button", name="Resume the deliveries"))
    assert site.ask("GET", "/queues/made")["paused"]
    assert view.page.get_by_role("button", name="Stop the redrive").count() == 0
    view.press("Redrive")
    view.confirm("Move them")
    view.sees(view.page.get_by_text("0 moved, 1 skipped, 1 of 1 examined."))
    view.press("Purge")
    view.confirm("Purge the queue")
    view.says("Done: Purge the queue.")
    assert site.ask("GET", "/queues/made")["messages"] == 0
    view.press("Delete")
    view.confirm("Delete the queue")
    view.count("Queues", 2)


def test_sinks_show_their_state_and_their_lanes(tab: Open) -> None:
    view = tab().sign_in("viewer")
    view.go("sinks", "Sinks")
    view.count("Sinks", 2)
    row = view.page.get_by_role("row", name=re.compile(r"^plant file active 0 0 s "))
    view.sees(row)
    view.sees(view.page.get_by_text("There is no source."))
    row.get_by_role("link", name="plant").click()
    view.count("Lanes", 2)
    view.sees(view.page.get_by_text("exactly once", exact=True))
    assert view.page.get_by_role("button", name="Pause").count() == 0
    assert view.page.get_by_role("region", name="Dead letters").count() == 0


def test_a_webhook_is_a_sink_with_deliveries(tab: Open, site: Operated) -> None:
    site.publish("hook/a", b"x")
    view = tab().sign_in()
    view.go("sinks", "Sinks")
    view.page.get_by_role("link", name="erp").click()
    view.sees(view.rows("Latest deliveries").first.get_by_role("cell", name="again"))
    view.sees(view.page.locator("p.bad", has_text="refused"))
    view.sees(view.page.get_by_text("This kind of sink has no lanes."))
    view.press("Pause")
    view.confirm("Pause the sink")
    view.sees(view.page.get_by_role("button", name="Resume"))


def test_an_administrator_manages_a_sink(tab: Open, site: Operated) -> None:
    site.publish("line/press", b'{"celsius": 21}')
    site.publish("line/press", b"broken")
    until(lambda: not site.ask("GET", "/sinks/plant")["lag"], "writing")
    view = tab(REFUSED).sign_in()
    view.go("sink/plant", "plant")
    view.count("Dead letters", 1)
    view.sees(view.rows("Dead letters").get_by_role("cell", name="broken"))
    view.sees(view.rows("Dead letters").get_by_role("cell", name=re.compile("not JSON")))
    view.press("Test the connection")
    view.says("The target is ready.")
    view.press("Write them again")
    view.confirm("Write the dead letters again")
    view.says("0 were written, and 1 are dead letters again.")
    view.press("Pause")
    view.confirm("Pause the sink")
    view.sees(view.page.get_by_role("button", name="Resume"))
    site.publish("line/press", b'{"celsius": 22}')
    assert site.ask("GET", "/sinks/plant")["state"] == "paused"
    view.sees(view.page.get_by_text("1 messages", exact=True))
    view.press("Resume")
    view.confirm("Resume the sink")
    view.sees(view.page.get_by_role("button", name="Pause"))
    view.sees(view.page.get_by_text("0 messages", exact=True))
    written = site.ask("GET", "/sinks/plant")["counts"]["written"]
    view.press("Move the cursor")
    view.confirm("Move", Position="somewhere")
    view.says("position: ")
    view.press("Move the cursor")
    view.confirm("Move", Position="first")
    view.says("Done: Move the cursor.")

    def written_again() -> bool:
        sink = site.ask("GET", "/sinks/plant")
        return sink["counts"]["written"] >= written + 2 and not sink["lag"]

    until(written_again, "writing from the first message on")
    view.press("Delete them")
    view.confirm("Delete the dead letters")
    view.says("Done: Delete the dead letters.")
    view.sees(view.page.get_by_text("The target has taken every message."))
    until(lambda: not site.ask("GET", "/sinks/plant")["dead_letters"], "the report of the process")


@pytest.mark.parametrize(("role", "hidden"), [("viewer", 7), ("operator", 4), ("admin", 0)])
def test_a_role_sees_only_its_pages(tab: Open, role: str, hidden: int) -> None:
    view = tab().sign_in(role)
    assert view.page.locator("#nav a").count() == len(PAGES) + 1 - ASIDE - hidden
    view.go("tokens", "Tokens" if role == "admin" else "Overview")
    view.go("client/lamp-001", "lamp-001")
    view.count("Subscriptions", 2)
    assert view.page.get_by_role("button", name="Disconnect").count() == (
        0 if role == "viewer" else 1
    )


def test_the_keyboard_is_enough(tab: Open) -> None:
    view = tab()
    view.page.goto(view.site.url)
    view.page.get_by_label("Token").press_sequentially(view.site.tokens["admin"][:4])
    view.page.get_by_label("Token").fill(view.site.tokens["admin"])
    view.page.keyboard.press("Enter")
    view.sees(view.page.locator("h2", has_text="Overview"))
    view.page.keyboard.press("2")
    view.sees(view.page.locator("h2", has_text="Clients"))
    view.page.keyboard.press("/")
    assert view.page.evaluate("() => document.activeElement.name") == "client_id"


def test_the_theme_follows_the_system_or_a_choice(tab: Open) -> None:
    view: View = tab(color_scheme="dark").sign_in()
    color = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark = view.page.evaluate(color)
    view.press("Theme: auto")
    assert view.page.evaluate(color) != dark
    view.press("Theme: light")
    assert view.page.evaluate(color) == dark
