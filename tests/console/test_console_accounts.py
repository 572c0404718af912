"""Test the pages of users and groups in a real browser: what they change applies to clients at once."""

from pathlib import Path
from urllib.error import HTTPError

import pytest
from admin_browser import Open, Operated

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]
REFUSED = r"status of 4\d\d"
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
