"""Test in a real browser that every console action does what the page reports."""

from pathlib import Path
from urllib.error import HTTPError

import pytest
from admin_browser import Open, Operated

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]

GONE = r"status of 404"
REFUSED = r"status of 4\d\d"
"""The message that Chromium writes to the console for each response with an error status."""


def test_disconnecting_a_client(tab: Open, site: Operated) -> None:
    client = site.client("kicked")
    view = tab(GONE).sign_in("operator")
    view.go("client/kicked", "kicked")
    view.sees(view.page.locator(".badge", has_text="online"))
    view.press("Disconnect")
    view.page.keyboard.press("Escape")  # a cancelled dialog changes nothing
    assert not client.closed
    view.press("Disconnect")
    view.confirm("Disconnect the client", Reason="service")
    view.says("Done: Disconnect the client.")
    packet = site.thread.run(client.expect_disconnect(0x98))
    assert packet is not None
    assert packet.properties.reason_string == "service"


def test_banning_a_client_and_lifting_the_ban(tab: Open, site: Operated) -> None:
    client = site.client("banned", session_expiry_interval=600)
    view = tab().sign_in("operator")
    view.go("client/banned", "banned")
    view.press("Ban")
    view.confirm("Ban the client id")
    view.says("Done: Ban the client id.")
    site.thread.run(client.wait_closed())
    with pytest.raises(AssertionError, match=r"BANNED|0x8a|138"):
        site.client("banned")
    view.press("Lift the ban")
    view.confirm("Lift the ban")
    view.says("Done: Lift the ban.")
    site.client("banned")


def test_changing_the_subscriptions_queue_and_session_of_a_client(
    tab: Open, site: Operated
) -> None:
    site.offline("store", "store/#")
    site.publish("store/1", b"one")
    view = tab(REFUSED).sign_in("operator")
    view.go("client/store", "store")
    view.count("Queue", 1)
    view.submit("Subscriptions", "Subscribe", Filter="more/+")
    view.count("Subscriptions", 2)
    view.submit("Subscriptions", "Subscribe", Filter="more/#/bad")
    view.says("filter: ")
    view.press("Remove the subscription more/+")
    view.confirm("Remove the subscription more/+")
    view.count("Subscriptions", 1)
    view.press("Clear the queue")
    view.confirm("Clear the queue")
    view.count("Queue", 0)
    view.press("End the session")
    view.confirm("End the session")
    view.sees(view.page.get_by_text("no session"))
    with pytest.raises(HTTPError, match="404"):
        site.ask("GET", "/clients/store")


def test_publishing_with_properties(tab: Open, site: Operated) -> None:
    client = site.client("reader")
    site.thread.run(client.subscribe("said/#", 1))
    view = tab(REFUSED).sign_in("operator")
    view.go("topics", "Topics")
    form = view.page.get_by_label("Publish", exact=True).first
    form.locator("summary").click()
    form.get_by_label("QoS").select_option("1")
    form.get_by_label("User properties").fill("unit=C\nnote=a=b")
    view.submit("Publish", "Publish", Topic="said/1", Payload="häß <b>", Content_type="text/plain")
    view.says("Published: 1 subscriptions match.")
    message = site.thread.run(client.message())
    assert (message.payload.decode(), message.qos) == ("häß <b>", 1)
    assert message.properties.content_type == "text/plain"
    assert message.properties.user_property == (("unit", "C"), ("note", "a=b"))
    view.submit("Publish", "Publish", Topic="said/#")
    view.says("topic: ")


def test_clearing_retained_messages(tab: Open, site: Operated) -> None:
    for number in range(3):
        site.publish(f"old/{number}", b"x", retain=True)
    view = tab().sign_in("operator")
    view.go("topics", "Topics")
    view.submit("Retained messages", "Show", Filter="old/#")
    view.count("Retained messages", 3)
    view.page.get_by_role("button", name="old/1", exact=True).click()
    view.sees(view.page.locator("pre.message", has_text="x"))
    view.press("Clear those that match")
    view.confirm("Clear")
    view.says("3 retained messages were cleared.")
    view.count("Retained messages", 0)
    assert site.ask("GET", "/retained?filter=old/%23")["items"] == []


def test_creating_and_revoking_a_token(tab: Open, site: Operated) -> None:
    view = tab(REFUSED).sign_in()
    view.go("tokens", "Tokens")
    view.submit("New token", "Create", Name="grafana")
    site.tokens["grafana"] = view.page.get_by_label("The new token").input_value()
    view.press("Close")
    assert site.ask("GET", "/me", role="grafana")["role"] == "viewer"
    view.submit("New token", "Create", Name="grafana")
    view.says("a token has this name")
    view.press("Revoke grafana")
    view.confirm("Revoke")
    view.says("The token grafana is revoked.")
    with pytest.raises(HTTPError, match="401"):
        site.ask("GET", "/me", role="grafana")
    view.press("Revoke first")
    view.confirm("Revoke")
    view.says("last admin token")
    view.go("audit", "Audit log")
    view.sees(view.rows("Changes, the newest first").first.get_by_text("409"))


def test_reloading_the_configuration(tab: Open, site: Operated) -> None:
    view = tab(REFUSED).sign_in()
    view.go("configuration", "Configuration")
    view.until("() => document.querySelector('pre').textContent.includes('level: info')")
    file = site.folder / "hookmq.yaml"
    text = file.read_text()
    view.press("Reload the file")
    view.confirm("Reload")
    view.says("was reloaded")
    view.sees(view.page.get_by_text("Nothing has changed."))
    file.write_text(text.replace("level: info", "level: warning"))
    view.press("Reload the file")
    view.confirm("Reload")
    view.count("Applied changes", 1)
    view.until("() => document.querySelector('pre').textContent.includes('level: warning')")
    file.write_text(text)
    site.ask("POST", "/configuration/reload")


def test_wrong_expired_and_revoked_tokens(tab: Open, site: Operated) -> None:
    view = tab(REFUSED)
    site.tokens["wrong"] = "hmq_00000000_wrong"
    view.page.goto(site.url)
    view.page.get_by_label("Token").fill(site.tokens["wrong"])
    view.press("Sign in")
    view.says("wrong, expired or revoked")
    assert (
        view.page.evaluate("() => Object.values(sessionStorage).includes('hmq_00000000_wrong')")
        is False
    )
    revoked = site.token("viewer", name="brief")
    view.sign_in("brief")
    view.sees(view.page.locator(".tile").first)
    site.ask("DELETE", f"/tokens/{revoked['id']}")
    view.page.keyboard.press("2")
    view.says("wrong, expired or revoked")
    view.sees(view.page.get_by_label("Token"))
    assert view.page.locator(".tile").count() == 0
    view.sign_in("viewer")
    view.press("Sign out")
    view.sees(view.page.get_by_label("Token"))
    view.page.reload()
    view.sees(view.page.get_by_label("Token"))
    site.token("viewer", name="short", expires_in=1)
    view.page.get_by_label("Token").fill(site.tokens["short"])
    view.press("Sign in")
    view.says("wrong, expired or revoked")  # at once, or with the figures of the first page


TOPICS = "Topic filters, one per line; %u is the user name, %c the client id"


def test_a_user_with_a_group_and_rules(tab: Open, site: Operated) -> None:
    view = tab(REFUSED).sign_in()
    view.go("accounts", "Users and groups")
    view.submit("Groups", "Add the group", New_group="drivers", Note="trams")
    view.says("drivers was added.")
    view.submit("Users", "Add the user", New_user="kim", Password="short")
    view.says("password: ")
    view.submit("Users", "Add the user", New_user="kim", Password="correct horse", Group="drivers")
    view.says("kim was added.")
    view.submit("Users", "Search", Name_contains="ki")
    view.count("Users", 1)
    view.page.get_by_role("link", name="kim", exact=True).click()
    rule = view.page.get_by_label("New rule")
    for action, topic in (("publish", "a/#"), ("subscribe", "b/#\nc/%u")):
        rule.get_by_label(action, exact=True).check()
        view.submit("New rule", "Add the rule", **{TOPICS: topic})
        view.says("Done: Add the rule.")
    view.count("Rules", 2)
    view.press("Up rule 2")
    view.says("Done: Move the rule 2.")
    view.sees(view.rows("Rules").nth(0).get_by_text("b/#, c/%u"))
    assert [one["topic"] for one in site.ask("GET", "/users/kim")["rules"]] == [
        ["b/#", "c/%u"],
        ["a/#"],
    ]
    client = site.client("tram", username="kim", password=b"correct horse")
    site.ask("PATCH", "/users/kim", {"note": "changed by somebody else"})
    last = view.page.locator("[aria-label='Rules'] button.danger").last
    last.click()
    view.says("Someone else has changed this user meanwhile.")
    last.click()
    view.says("Done: Delete the rule")
    view.count("Rules", 1)
    view.press("Remove the group drivers")
    view.sees(view.page.get_by_text("The user is in no group"))
    view.submit("Groups", "Add to the group", Group="staff")
    view.says("Done: Add to the group staff.")
    view.press("Disable")
    view.confirm("Disable the user")
    view.sees(view.page.locator(".badge", has_text="disabled"))
    site.thread.run(client.wait_closed())
    view.press("Set the password")
    view.confirm(
        "Set the password", **{"New password": "battery staple", "The same again": "battery"}
    )
    view.says("The two passwords differ")
    view.press("Enable")
    view.confirm("Enable the user")
    view.sees(view.page.locator(".badge", has_text="enabled"))
    site.client("tram", username="kim", password=b"correct horse")
    view.press("Delete the user")
    view.confirm("Delete the user")
    view.sees(view.page.get_by_text("no such user"))
    with pytest.raises(HTTPError, match="404"):
        site.ask("GET", "/users/kim")


def test_export_and_import_with_a_check_first(tab: Open, site: Operated, tmp_path: Path) -> None:
    view = tab(REFUSED).sign_in()
    view.go("accounts", "Users and groups")
    file = tmp_path / "accounts.json"
    with view.page.expect_download() as found:
        view.press("Export")
    found.value.save_as(file)
    assert '"nora"' in file.read_text()
    file.write_text(file.read_text().replace('"nora"', '"olga"'))
    view.page.get_by_label("File of an export").set_input_files(file)
    view.press("Check and import")
    view.sees(view.page.get_by_text("1 are created"))
    view.page.keyboard.press("Escape")
    with pytest.raises(HTTPError, match="404"):
        site.ask("GET", "/users/olga")
    view.press("Check and import")
    view.confirm("Import")
    view.says("accounts.json was imported.")
    site.ask("DELETE", "/users/olga")
    file.write_text("{")
    view.page.get_by_label("File of an export").set_input_files(file)
    view.press("Check and import")
    view.says("accounts.json is not a JSON document")
