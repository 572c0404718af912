"""Test the routes for users, groups and rules, and those that explain decisions."""

import asyncio
import json
from typing import Any

import pytest
from admin_site import Site
from hookmq_admin import api
from hookmq_admin.accounts import USER
from hookmq_admin.audit import recorded
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import Field, parse_body

SECRET = "correct horse"
ALLOW = {"allow": ["publish"], "topic": ["own/%u"]}


@pytest.fixture(autouse=True)
def empty(site: Site) -> None:
    """Start each test without users and groups."""
    body = {"replace": True}
    assert site.ask("POST", "/accounts", json=body).status == 200


def add(site: Site, name: str, *rules: dict[str, Any], **fields: Any) -> Any:
    body = {"name": name, "password": SECRET, "rules": list(rules), **fields}
    answer = site.ask("POST", "/users", json=body)
    assert answer.status == 200, answer.text
    return answer.json


def test_a_user_from_its_creation_to_its_deletion(site: Site) -> None:
    """Every change takes effect for the connected client."""
    made = add(site, "zoe", ALLOW)
    assert (made["enabled"], made["has_password"], made["rules"][0]["id"]) == (True, True, 1)
    zoe = site.client("c1", username="zoe", password=SECRET.encode())
    site.run(zoe.publish("own/zoe", b"", 1, expect=0x10))
    site.run(zoe.publish("other", b"", 1, expect=0x87))
    rule = {"allow": ["publish"], "topic": ["other"], "position": 0}
    found = site.ask("POST", "/users/zoe/rules", json=rule).json
    assert [one["topic"] for one in found["rules"]] == [["other"], ["own/%u"]]
    site.run(zoe.publish("other", b"", 1, expect=0x10))
    assert site.ask("DELETE", "/users/zoe/rules/2").status == 200
    site.run(zoe.publish("other", b"", 1, expect=0x87))
    assert site.ask("PUT", "/users/zoe/password", json={"password": "another horse"}).status == 200
    site.run(zoe.expect_disconnect(0x87))
    zoe = site.client("c1", username="zoe", password=b"another horse")
    assert site.ask("DELETE", "/users/zoe").json == {"deleted": True}
    site.run(zoe.expect_disconnect(0x87))
    assert site.ask("GET", "/users/zoe").status == 404


def test_passwords_and_hashes_are_never_shown(site: Site) -> None:
    """Neither responses nor the audit log nor the log contain passwords or hashes. They do not even reveal a length."""
    add(site, "zoe")
    site.ask("PUT", "/users/zoe/password", json={"password": "short"})
    document = site.ask("GET", "/accounts", params={"hashes": "true"}).json
    assert document["users"][0]["hash"].startswith("$argon2id$")
    assert "hash" not in site.ask("GET", "/accounts").json["users"][0]
    site.ask("POST", "/accounts", json=document)
    site.ask("POST", "/credentials", json={"username": "zoe", "password": "guess what"})
    site.ask("POST", "/users", json={"name": "x", "hash": "$argon2id$broken"})
    others = [site.ask("GET", path).text for path in ("/users", "/users/zoe", "/audit")]
    for text in (*others, repr(site.logs)):
        for secret in ("correct horse", "short", "guess what", "$argon2id$", "characters"):
            assert secret not in text
    (entry,) = [
        one for one in site.audit() if one["action"] == "createUser" and one["status"] == 200
    ][:1]
    assert (entry["arguments"]["name"], entry["arguments"]["password"]) == ("zoe", "***")
    assert any(one["action"] == "exportAccounts" for one in site.audit())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "rules": [ALLOW, {"allow": ["publish"]}]}, "rules[1].topic"),
        ({"name": "x", "rules": [{**ALLOW, "who": "y"}]}, "rules[0].who"),
        ({"name": "x", "rules": [{**ALLOW, "allow": ["read"]}]}, "rules[0].allow[0]"),
        ({"name": "x", "rules": [{**ALLOW, "topic": ["a/#/b"]}]}, "rules[0].topic[0]"),
        ({"name": "x", "rules": [{**ALLOW, "topic": "a"}]}, "rules[0].topic"),
        ({"name": "x", "rules": [{**ALLOW, "topic": []}]}, "rules[0].topic"),
        ({"name": "x", "rules": [5]}, "rules[0]"),
        ({"name": "x", "groups": ["unknown"]}, "groups[0]"),
        ({"name": "x", "groups": [str(n) for n in range(33)]}, "groups"),
        ({"name": "x", "password": "short"}, "password"),
        ({"name": "x", "password": SECRET, "hash": "x"}, "hash"),
        ({"name": "\n"}, "name"),
        ({"name": "x" * 513}, "name"),
        ({"password": SECRET}, "name"),
    ],
)  # fmt: skip
def test_an_invalid_user_is_refused_with_the_field(
    site: Site, body: dict[str, Any], field: str
) -> None:
    answer = site.ask("POST", "/users", json=body)
    assert (answer.status, answer.json["field"]) == (400, field)
    assert site.ask("GET", "/users").json["items"] == []
    if "password" not in body:
        answer = site.ask("POST", "/accounts", json={"users": [{"name": "ok"}, body]})
        assert answer.status == 400
        assert answer.json["field"] in (f"users[1].{field}", "groups")
        assert site.ask("GET", "/users").json["items"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("POST", "/users", {"name": "zoe"}, 409, "name"),
        ("POST", "/users/zoe/rules", {**ALLOW, "position": 7}, 400, "position"),
        ("POST", "/users/zoe/rules", {**ALLOW, "topic": ["#a"]}, 400, "topic[0]"),
        ("DELETE", "/users/zoe/rules/x", None, 400, "rule_id"),
        ("DELETE", "/users/zoe/rules/99", None, 404, "rule_id"),
        ("PATCH", "/users/nobody", {"note": "x"}, 404, "user"),
        ("PUT", "/users/nobody/password", {"password": SECRET}, 404, "user"),
        ("DELETE", "/groups/staff", None, 409, None),
        ("GET", "/groups/nothing", None, 404, "group"),
        ("GET", "/users?cursor=" + "x" * 600, None, 400, "cursor"),
        ("POST", "/accounts", {"replace": True, "users": [{"name": "a", "groups": ["staff"]}]}, 400, "groups"),
    ],
)  # fmt: skip
def test_other_requests_are_refused(
    site: Site, method: str, path: str, body: Any, status: int, field: str | None
) -> None:
    assert site.ask("POST", "/groups", json={"name": "staff"}).status == 200
    add(site, "zoe", groups=["staff"])
    before = site.ask("GET", "/accounts").json
    answer = site.ask(method, path, json=body) if body else site.ask(method, path)
    assert (answer.status, answer.json.get("field")) == (status, field), answer.text
    assert site.ask("GET", "/accounts").json == before


@pytest.mark.parametrize(("at_once", "in_thread"), [(20, True), (2000, False)])
def test_a_large_document_is_parsed_in_a_thread(
    site: Site, monkeypatch: pytest.MonkeyPatch, at_once: int, in_thread: bool
) -> None:
    threads: list[bool] = []

    def parsed(*args: Any) -> Any:
        threads.append(asyncio._get_running_loop() is None)
        return parse_body(*args)

    monkeypatch.setattr(api, "parse_body", parsed)
    monkeypatch.setattr(api, "AT_ONCE", at_once)
    assert site.ask("POST", "/accounts", json={"users": [{"name": "zoe"}]}).json["created"] == 1
    answer = site.ask("POST", "/accounts", json={"users": [{"name": "a"}, {"name": 5}]})
    assert (answer.status, answer.json["field"]) == (400, "users[1].name")
    answer = site.ask(
        "POST", "/accounts", data="{" * 30, headers={"Content-Type": "application/json"}
    )
    assert (answer.status, "valid JSON" in answer.text) == (400, True)
    assert threads == [in_thread] * 2
    assert [one["name"] for one in site.ask("GET", "/users").json["items"]] == ["zoe"]


def test_a_change_for_an_earlier_state_is_refused(site: Site) -> None:
    add(site, "zoe", ALLOW)
    tag = site.ask("GET", "/users/zoe").headers["ETag"]
    assert (
        site.ask("PATCH", "/users/zoe", headers={"If-Match": tag}, json={"note": "a"}).status == 200
    )
    for method, path in (("DELETE", "/users/zoe"), ("DELETE", "/users/zoe/rules/1")):
        assert site.ask(method, path, headers={"If-Match": tag}).status == 412
    assert site.ask("GET", "/users/zoe").json["note"] == "a"
    new = site.ask("GET", "/users/zoe").headers["ETag"]
    assert site.ask("DELETE", "/users/zoe", headers={"If-Match": new}).status == 200
    assert site.ask("DELETE", "/users/zoe", headers={"If-Match": new}).status == 404


def test_users_are_paged_and_searched(site: Site) -> None:
    users = [{"name": name} for name in ("a", "b", "bc", "d")]
    assert site.ask("POST", "/accounts", json={"users": users}).json["created"] == 4
    page = site.ask("GET", "/users?limit=3").json
    assert ([one["name"] for one in page["items"]], page["cursor"]) == (["a", "b", "bc"], "bc")
    page = site.ask("GET", "/users", params={"limit": "3", "cursor": "bc"}).json
    assert ([one["name"] for one in page["items"]], page["cursor"]) == (["d"], "")
    found = site.ask("GET", "/users?search=b").json["items"]
    assert [one["name"] for one in found] == ["b", "bc"]


def test_an_export_is_imported_whole(site: Site) -> None:
    site.ask("POST", "/groups", json={"name": "staff", "rules": [ALLOW]})
    add(site, "zoe", ALLOW, groups=["staff"], note="n")
    document = site.ask("GET", "/accounts", params={"hashes": "true"}).json
    site.ask("POST", "/accounts", json={"replace": True})
    answer = site.ask("POST", "/accounts", json={**document, "check": True})
    assert answer.json == {"created": 2, "changed": 0, "deleted": 0}
    assert site.ask("GET", "/users").json["items"] == []
    assert site.ask("POST", "/accounts", json=document).json["created"] == 2
    assert site.ask("GET", "/accounts", params={"hashes": "true"}).json == document
    site.thread.call(site.client("c1", username="zoe", password=SECRET.encode()).drop)


# decisions -----------------------------------------------------------------------------------------------------------


def access(site: Site, **body: Any) -> Any:
    answer = site.ask("POST", "/access", "operator", json=body)
    assert answer.status == 200, answer.text
    return answer.json


def test_access_names_the_plugin_and_the_rule(site: Site) -> None:
    add(site, "zoe", {"deny": ["publish"], "topic": ["own/zoe"], "qos": 0}, ALLOW)
    found = access(site, user="zoe", action="publish", topic="own/zoe")
    assert (found["allowed"], found["plugin"], found["rule"]) == (
        False,
        "accounts",
        "user zoe rule 1",
    )
    assert found["why"] == "denied by accounts (user zoe rule 1)"
    assert found["client"]["vouched_by"] == "plugin:accounts"
    verdicts = {one["plugin"]: one["verdict"] for one in found["plugins"]}
    assert verdicts == {"accounts": "deny", "doors": "abstain"}
    found = access(site, user="zoe", action="publish", topic="own/zoe", qos=1)
    assert (found["allowed"], found["why"]) == (True, "allowed by accounts (user zoe rule 2)")
    found = access(site, user="zoe", action="subscribe", topic="own/#")
    assert (found["allowed"], found["rule"]) == (False, "no rule")


def test_access_of_a_client_and_by_the_default(site: Site) -> None:
    lamp = site.client("lamp", username="ann", session_expiry_interval=60)
    found = access(site, client_id="lamp", action="publish", topic="secret/1")
    assert (found["allowed"], found["plugin"], found["client"]["online"]) == (False, "doors", True)
    assert found["plugins"][-1]["reason"] == "not for ann"
    found = access(site, client_id="lamp", action="subscribe", topic="$share/g/a/#")
    assert (found["allowed"], found["why"]) == (True, "allowed by authz.default")
    found = access(site, client_id="lamp", action="publish", topic="$SYS/x")
    assert (found["allowed"], "reserved" in found["why"]) == (False, True)
    found = access(site, client_id="lamp", action="deliver", topic="a")
    assert (found["allowed"], found["why"]) == (True, "allowed by the broker: no plugin denies it")
    site.thread.call(lamp.drop)
    site.run(lamp.wait_closed())
    found = access(site, client_id="lamp", action="publish", topic="secret/1")
    assert (found["allowed"], found["client"]["identity"]) == (False, "ann")
    assert site.ask("DELETE", "/clients/lamp/session").status == 200


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"action": "publish", "topic": "a"}, 400, "client_id"),
        ({"client_id": "nobody", "action": "publish", "topic": "a"}, 404, "client_id"),
        ({"user": "zoe", "action": "publish", "topic": "a/#"}, 400, "topic"),
        ({"user": "zoe", "action": "subscribe", "topic": "a/#/b"}, 400, "topic"),
        ({"user": "zoe", "action": "read", "topic": "a"}, 400, "action"),
    ],
)
def test_questions_that_make_no_sense(
    site: Site, body: dict[str, Any], status: int, field: str
) -> None:
    answer = site.ask("POST", "/access", "operator", json=body)
    assert (answer.status, answer.json["field"]) == (status, field)


def test_a_subscriber_that_a_rule_would_deny_is_named(site: Site) -> None:
    add(
        site,
        "zoe",
        {"deny": ["deliver"], "topic": ["a/secret"]},
        {"allow": ["subscribe"], "topic": ["a/#"]},
    )
    zoe = site.client("c1", username="zoe", password=SECRET.encode())
    site.run(zoe.subscribe("a/#", 1))
    (found,) = site.ask("GET", "/subscribers?topic=a/secret").json["items"]
    assert (found["client_id"], found["denied_by"]) == ("c1", "accounts: user zoe rule 1")
    (found,) = site.ask("GET", "/subscribers?topic=a/open").json["items"]
    assert found["denied_by"] is None
    site.thread.call(zoe.drop)


def test_credentials_are_tested_without_a_connection(site: Site) -> None:
    add(site, "zoe")

    def credentials(**body: Any) -> Any:
        return site.ask("POST", "/credentials", json=body).json

    found = credentials(username="zoe", password=SECRET, listener="tcp", client_id="c9")
    # The plugin `doors` accepts only clients of listeners, and this request is not one.
    assert (found["accepted"], found["plugin"]) == (False, "doors")
    verdicts = {one["plugin"]: one["verdict"] for one in found["plugins"]}
    assert verdicts == {"rl": "abstain", "accounts": "accept", "doors": "deny"}
    found = credentials(username="zoe", password="wrong")
    assert (found["accepted"], found["why"]) == (False, "denied by accounts")
    assert found["plugins"][1]["code"] == 0x86
    assert site.ask("GET", "/clients/c9").status == 404


# parts ---------------------------------------------------------------------------------------------------------------


def test_the_audit_log_shows_short_values_only() -> None:
    assert recorded("text", False, False) == "text"
    assert recorded("text", True, False) == "<4 characters>"
    assert recorded("text", True, True) == "***"
    assert recorded(["a"], False, False) == ["a"]
    assert recorded(["a"], True, False) == "<1 items>"
    assert recorded(["a" * 600], False, False) == "<1 items>"


def test_fields_of_lists_and_objects() -> None:
    many = Field("list", "", minimum=1, maximum=2, items=Field("integer", ""))
    assert many.parse("n", [1, 2]) == [1, 2]
    for value, place in (([], "n"), ([1, 2, 3], "n"), ([1, "2"], "n[1]"), ("1", "n"), ({}, "n")):
        with pytest.raises(ApiError) as caught:
            many.parse("n", value)
        assert caught.value.field == place
    schema = many.schema()
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 2)
    user = Field("object", "a user", fields=USER).schema()
    assert (user["required"], user["additionalProperties"]) == (["name"], False)
    assert json.dumps(user)
