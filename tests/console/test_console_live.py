"""Test live messages and lost connections in a real browser: many messages, the MQTT client, and broker restarts."""

from pathlib import Path

import pytest
from admin_browser import Open, Operated, operated

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]

MANY = 5000
LOST = r"ERR_|Failed to load|WebSocket connection"
"""The messages that Chromium writes to the console when a connection is refused or lost."""
ALL = """count => {
  const { total, skipped } = document.querySelector('.count').dataset;
  return Number(total) + Number(skipped) === count;
}"""
RECORD = """() => {
  window.rated = new Set();
  const tree = document.querySelector('.tree');
  new MutationObserver(() => {
    for (const one of tree.querySelectorAll('[data-topic]')) {
      if (/ · [\\d,.]+\\/s/.test(one.textContent)) rated.add(one.dataset.topic);
    }
  }).observe(tree, { subtree: true, childList: true });
}"""
"""A script that records the topics in the tree that have had a rate, because a rate is shown for only a few seconds."""
SOME = "count => Number(document.querySelector('.count').dataset.total) >= count"


def test_a_tail_with_many_messages_stays_small_and_reacts(tab: Open, site: Operated) -> None:
    view = tab().sign_in("operator")
    view.go("topics", "Topics")
    view.submit("Live messages", "Follow", Filter="load/#")
    view.says("Following load/#.")
    view.page.evaluate(RECORD)
    sent = site.thread.start(site.sending("load/1", MANY))
    view.press("Pause")
    view.press("Continue")
    sent.result(120)
    view.until(
        SOME, 100
    )  # the rest may be skipped, and the number of skipped messages is an estimate
    assert view.page.locator(".live tbody tr").count() <= 200
    assert view.page.evaluate("() => document.querySelectorAll('*').length") < 4000
    view.until("() => rated.has('load/1') || rated.has('load')")
    view.page.locator("[data-topic=load]").click()
    view.page.locator("[data-topic='load/1']").click()
    view.sees(view.page.locator("pre.message", has_text='"number":'))
    view.press("Stop")
    view.says("The tail is closed.")
    view.submit("Live messages", "Follow", Filter="state/#")  # begins with retained messages
    view.until(ALL, 8)
    site.burst("state/live", 1)
    view.until("() => rated.has('state')")
    view.page.locator("[data-topic=state]").click()
    site.burst("state/live", 1)
    view.until("() => rated.has('state/live')")
    assert not view.page.evaluate("() => rated.has('state/room-1')")  # retained before that
    view.page.get_by_role("link", name="Who gets it, and why").first.click()
    view.sees(view.page.locator("h2", has_text="Subscriptions"))


def test_the_tail_ends_when_its_token_is_revoked(tab: Open, site: Operated) -> None:
    token = site.token("operator", name="follower")
    view = tab(r"status of 401").sign_in("follower")
    view.go("topics", "Topics")
    view.submit("Live messages", "Follow", Filter="load/#")
    view.says("Following load/#.")
    site.ask("DELETE", f"/tokens/{token['id']}")
    view.says("The tail has ended: the token is not valid any more.")


def test_the_mqtt_client_publishes_and_receives(tab: Open, site: Operated) -> None:
    view = tab().sign_in("viewer")
    view.go("mqtt", "MQTT client")
    view.until("() => document.querySelector('[name=url]').value.startsWith('ws://')")
    view.submit("Connect", "Connect", Client_id="page", User_name="ann", Password="secret")
    view.says("Connected.")
    assert site.ask("GET", "/clients/page")["username"] == "ann"
    subscriptions = view.page.get_by_label("Subscriptions", exact=True).first
    subscriptions.get_by_label("QoS").select_option("2")
    view.submit("Subscriptions", "Subscribe", Filter="talk/#")
    view.says("Subscribed to talk/# at QoS 2.")
    form = view.page.get_by_label("Publish", exact=True).first
    form.locator("summary").click()
    form.get_by_label("User properties").fill("unit=°C")
    for qos, said in (
        ("0", "Sent at QoS 0."),
        ("1", "acknowledged at QoS 1"),
        ("2", "acknowledged at QoS 2"),
    ):
        form.get_by_label("QoS").select_option(qos)
        view.submit("Publish", "Publish", Topic=f"talk/{qos}", Payload=f"at {qos}")
        view.says(said)
    view.until(ALL, 3)
    view.page.get_by_role("button", name="talk/2", exact=True).click()
    view.sees(view.page.locator(".detail", has_text="User property unit"))
    view.sees(view.page.locator("pre.message", has_text="at 2"))
    site.publish("talk/binary", bytes(range(256)))
    site.publish("talk/large", b"x" * 300_000)
    view.until(ALL, 5)
    site.burst("talk/many", MANY)
    view.until(ALL, MANY + 5)
    assert view.page.locator(".live tbody tr").count() <= 200
    view.submit("Subscriptions", "Subscribe", Filter="bad/#/filter")
    view.says("Refused: ")
    view.press("Unsubscribe from talk/#")
    view.says("Unsubscribed from talk/#.")
    view.submit("Connect", "Disconnect")
    view.says("Disconnected.")
    view.submit("Publish", "Publish", Topic="talk/late")
    view.says("the client is not connected")


def test_the_mqtt_client_reports_a_refused_connection_and_a_takeover(
    tab: Open, site: Operated
) -> None:
    view = tab(LOST).sign_in("viewer")
    view.go("mqtt", "MQTT client")
    view.until("() => document.querySelector('[name=url]').value.startsWith('ws://')")
    port = site.served.ports["ws"]
    view.submit("Connect", "Connect", Address=f"ws://127.0.0.1:{port}/other")
    view.says("could not be opened")
    view.submit("Connect", "Connect", Address=f"ws://127.0.0.1:{port}/mqtt", Client_id="twin")
    view.says("Connected.")
    site.client("twin")
    view.says("session taken over")
    view.submit("Connect", "Disconnect")


def test_a_long_client_id_does_not_widen_the_page(tab: Open, site: Operated) -> None:
    site.client("long-" + "x" * 60_000)
    view = tab().sign_in()
    view.go("clients?client_id=long-", "Clients")
    view.count("Clients", 1)
    assert len(view.rows("Clients").inner_text()) < 400
    assert not view.page.evaluate("() => document.documentElement.scrollWidth > innerWidth")


def test_a_broker_that_is_starting_is_asked_again(tab: Open) -> None:
    view = tab(LOST).sign_in("viewer")
    view.sees(view.page.locator(".tile").first)
    view.page.route("**/api/v1/**", lambda route: route.fulfill(status=503, body="starting\n"))
    view.says("The broker is starting. Trying again…")
    view.page.unroute("**/api/v1/**")
    view.says("The broker answers again.")


def test_the_page_outlives_a_restart_of_the_broker(tab: Open, tmp_path: Path) -> None:
    with operated(tmp_path) as first:
        ports = dict(first.served.ports)
        figures = tab(LOST, at=first).sign_in()
        figures.sees(figures.page.locator(".tile").first)
        client = tab(LOST, at=first).sign_in()
        client.go("mqtt", "MQTT client")
        client.until("() => document.querySelector('[name=url]').value.startsWith('ws://')")
        client.press("Connect")
        client.says("Connected.")
        client.submit("Subscriptions", "Subscribe", Filter="back/#")
        client.says("Subscribed")
        tail = tab(LOST, at=first).sign_in()
        tail.go("topics", "Topics")
        tail.submit("Live messages", "Follow", Filter="#")
        tail.says("Following #.")
    figures.says("The broker does not answer. Trying again…")
    client.says("Trying again in")
    tail.says("The tail has ended")
    figures.sees(figures.page.locator(".tile").first)  # the last figures stay
    with operated(tmp_path, ports=ports) as again:
        figures.says("The broker answers again.")
        client.sees(client.page.locator(".badge.on"))
        client.says("Subscribed to back/#")
        again.publish("back/1", b"hello")
        client.sees(client.page.get_by_role("button", name="back/1", exact=True))
        for view in (figures, client, tail):
            view.page.goto("about:blank")
