"""Test tokens, roles, wrong tokens, bad input and the audit log."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from admin_site import CHANGE, Answer, Site
from hookmq.plugin import ReloadReport
from hookmq_admin.audit import AuditLog
from hookmq_admin.failures import MAX_ADDRESSES, FailureLimit
from hookmq_admin.plugin import AdminPlugin
from hookmq_admin.tokens import Tokens
from hookmq_testing import DurableStore, Harness, make_plugin
from hookmq_testing.contracts import PluginContract


class TestContract(PluginContract):
    kind = AdminPlugin
    use = "admin"
    configs = ({}, {"history_interval": "1s"})
    bad_configs = ({"history_interval": "0s"}, {"tail_timeout": -1}, {"failures": 0}, {"x": 1})


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json.get("field", "")


def make(site: Site, name: str, **options: Any) -> Any:
    """Create a token with the viewer role. Tests can then pass its name to `Site.ask`."""
    answer = site.ask("POST", "/tokens", json={"name": name, "role": "viewer", **options})
    assert answer.status == 200, answer.text
    site.tokens[name] = answer.json["token"]
    return answer.json


# tokens ----------------------------------------------------------------------------------------------------------


def test_the_first_token_is_made_once_and_only_its_hash_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = DurableStore()
    with Harness([make_plugin(AdminPlugin, id="admin")], store=store) as harness:
        harness.settle()
        text = capsys.readouterr().err.strip().rpartition(" ")[2]
        state = harness.handle("admin").state
        (token,) = Tokens(state)
        assert Tokens(state).find(text, harness.clock.time()) == token
        assert (token.name, token.role, token.expires_at) == ("first", "admin", None)
        kept = b"".join(value for _, value in state.items().items)
        assert text.encode() not in kept
        assert text.rpartition("_")[2].encode() not in kept
    with Harness([make_plugin(AdminPlugin, id="admin")], store=store) as harness:
        harness.settle()
        assert "token" not in capsys.readouterr().err
        assert [one.id for one in Tokens(harness.handle("admin").state)] == [token.id]


def test_the_first_token_is_not_kept_if_its_file_exists(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("precious")
    plugin = make_plugin(AdminPlugin, {"first_token_file": str(file)}, "admin")
    with Harness([plugin]) as harness:
        harness.settle()
        assert harness.logged("admin.first_token_failed")
        assert not list(Tokens(harness.handle("admin").state))
    assert file.read_text() == "precious"


def test_a_first_token_that_is_lost_is_replaced(tmp_path: Path) -> None:
    """Without a durable store, each startup creates a new token, which must replace the old one in the file."""
    file = tmp_path / "token"
    texts = set()
    for _ in range(2):
        plugin = make_plugin(AdminPlugin, {"first_token_file": str(file)}, "admin")
        with Harness([plugin]) as harness:
            harness.settle()
            texts.add(file.read_text())
            assert Tokens(harness.handle("admin").state).find(file.read_text().strip(), 0.0)
        assert file.stat().st_mode & 0o777 == 0o600
    assert len(texts) == 2


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_a_link_to_a_token_is_not_followed(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    other, file = tmp_path / "other", tmp_path / "token"
    other.write_text("hmq_00000000_" + "x" * 43 + "\n")
    make(file, other)
    plugin = make_plugin(AdminPlugin, {"first_token_file": str(file)}, "admin")
    with Harness([plugin]) as harness:
        harness.settle()
    assert other.read_text() == "hmq_00000000_" + "x" * 43 + "\n"


def test_the_file_of_the_first_token_is_private(tmp_path: Path) -> None:
    file = tmp_path / "token"
    plugin = make_plugin(AdminPlugin, {"first_token_file": str(file)}, "admin")
    with Harness([plugin]) as harness:
        harness.settle()
        assert Tokens(harness.handle("admin").state).find(file.read_text().strip(), 0.0)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_revoked_token_is_refused_at_once(site: Site) -> None:
    token = make(site, "short")
    assert site.ask("GET", "/me", "short").json["name"] == "short"
    assert site.ask("DELETE", f"/tokens/{token['id']}").status == 200
    assert site.ask("GET", "/me", "short").status == 401
    assert site.ask("DELETE", f"/tokens/{token['id']}").status == 404


def test_two_instances_share_tokens_and_the_audit_log() -> None:
    with Harness([make_plugin(AdminPlugin, id="admin")]) as harness:
        harness.settle()
        state = harness.handle("admin").state
        (token,) = Tokens(state)
        old, new = Tokens(state), Tokens(state)
        log, later = AuditLog(state, 20), AuditLog(state, 20)
        revoking = new.revoke(token.id)
        with suppress(StopIteration):
            revoking.send(None)
        assert old.get(token.id) is None
        log.add({"n": "reload"})
        assert [one["n"] for one in later.entries(None, 9)[0]] == ["reload"]
        later.add({"n": "next"})
        assert [one["n"] for one in log.entries(None, 9)[0]] == ["next", "reload"]


def test_an_expired_token_is_refused(site: Site) -> None:
    token = make(site, "brief", expires_in=3600)
    plugin = site.admin.plugin
    assert isinstance(plugin, AdminPlugin)
    found = plugin.services.tokens
    expires = token["expires_at"]

    async def valid(now: float) -> bool:
        return found.find(token["token"], now) is not None

    assert site.run(valid(expires - 1))
    assert not site.run(valid(expires))


def test_the_last_admin_token_stays(site: Site) -> None:
    mine = site.ask("GET", "/me").json["id"]
    make(site, "leaving", role="admin", expires_in=60)
    assert site.ask("DELETE", f"/tokens/{mine}").status == 409
    other = make(site, "lasting", role="admin")
    assert site.ask("DELETE", f"/tokens/{other['id']}", "lasting").status == 200


@pytest.mark.parametrize(
    ("body", "field", "status"),
    [
        ({"name": "x"}, "role", 400),
        ({"name": "x", "role": "king"}, "role", 400),
        ({"name": "", "role": "viewer"}, "name", 400),
        ({"name": "a\nb", "role": "viewer"}, "name", 400),
        ({"name": "x" * 65, "role": "viewer"}, "name", 400),
        ({"name": "x", "role": "viewer", "expires_in": 0}, "expires_in", 400),
        ({"name": "x", "role": "viewer", "expires_in": True}, "expires_in", 400),
        ({"name": "viewer", "role": "viewer"}, "name", 409),
    ],
)
def test_invalid_tokens_are_refused(
    site: Site, body: dict[str, Any], field: str, status: int
) -> None:
    assert refused(site.ask("POST", "/tokens", json=body)) == (status, field)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text + "x",
        lambda text: text.replace("hmq_", "xxx_"),
        lambda text: "hmq_00000000_" + text.split("_", 2)[2],
        lambda text: "",
        lambda text: "ü",
    ],
)
def test_a_wrong_token_is_refused(site: Site, change: Any) -> None:
    text = change(site.tokens["admin"])
    headers = {"Authorization": f"Bearer {text}", "X-Forwarded-For": f"192.0.2.{len(text)}"}
    answer = site.ask("GET", "/me", "", headers)
    assert answer.status == 401
    assert "admin" not in answer.json["detail"]


def test_the_token_of_the_listener_is_not_one_of_the_api(site: Site) -> None:
    headers = {"Authorization": "Bearer of the listener", "X-Forwarded-For": "192.0.2.200"}
    assert site.ask("GET", "/me", "", headers).status == 401


def test_wrong_tokens_are_limited_by_address(site: Site) -> None:
    wrong = {"Authorization": "Bearer hmq_1_2", "X-Forwarded-For": "198.51.100.1"}
    assert [site.ask("GET", "/me", "", wrong).status for _ in range(4)] == [401, 401, 401, 429]
    answer = site.ask("GET", "/me", "admin", {"X-Forwarded-For": "198.51.100.1"})
    assert answer.status == 429
    assert 0 < int(answer.headers["Retry-After"]) <= 6
    assert site.ask("GET", "/me", "admin", {"X-Forwarded-For": "198.51.100.2"}).status == 200
    assert [e for e in site.logs if e[1] == "admin.refused"][-1][2]["address"] == "198.51.100.1"


def test_the_limit_recovers_and_is_bounded() -> None:
    now = 0.0
    limit = FailureLimit(3, lambda: now)
    for _ in range(3):
        assert limit.wait("2001:db8::1") == 0
        limit.failed("2001:db8::1")
    assert limit.wait("2001:db8::ffff") == 6
    assert limit.wait("2001:db8:0:1::1") == 0
    now = 6.0
    assert limit.wait("2001:db8::1") == 0
    limit.failed("2001:db8::1")
    assert limit.wait("2001:db8::1") == 6
    now = 100.0
    for _ in range(3):
        limit.failed("::ffff:192.0.2.1")
    assert limit.wait("192.0.2.1") == 6
    for number in range(2 * MAX_ADDRESSES):
        limit.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(limit._full) == MAX_ADDRESSES
    assert limit.wait("192.0.2.1") == 0


def test_pages_of_other_sites_are_refused(site: Site) -> None:
    assert site.ask("GET", "/me", "admin", {"Sec-Fetch-Site": "cross-site"}).status == 403
    assert site.ask("OPTIONS", "/me", "admin", {"Origin": "https://evil"}).status in (401, 405)


# bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b"{", 400, "not valid JSON"),
        (b"[]", 400, "expected a JSON object, found array"),
        (b'{"topic": "a", "topic": "b"}', 400, "repeated"),
        (b'{"topic": "a", "qos": NaN}', 400, "NaN"),
        (b"[" * 1900, 400, "JSON"),
        (b"\xff", 400, "JSON"),
        (b'{"topic": "\\ud800"}', 400, "Unicode"),
    ],
)
def test_a_body_that_is_not_an_object(site: Site, data: bytes, status: int, text: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = site.ask("POST", "/publish", "operator", headers, data=data)
    assert answer.status == status
    assert text in answer.json["detail"]


def test_other_bodies_are_refused(site: Site) -> None:
    assert site.ask("POST", "/publish", "operator", data=b"topic=a").status == 415
    assert site.ask("POST", "/publish", "operator", data=b"x" * 3000).status == 413
    assert site.ask("GET", "/me", "viewer", data=b"x").status == 400


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("connected=yes", "connected"),
        ("cursor=nonsense", ""),
        ("client_id=" + "x" * 65_536, "client_id"),
        ("client_id=" + "x" * 330_000, ""),
    ],
)
def test_invalid_queries_are_refused(site: Site, query: str, field: str) -> None:
    answer = site.ask("GET", f"/clients?{query}")
    if len(query) > 320_000:
        assert answer.status == 400  # by the listener, before the plugin
    else:
        assert refused(answer) == (400, field)


@pytest.mark.parametrize(
    "body",
    [
        {"topic": "a/#"},
        {"topic": ""},
        {"topic": "a", "qos": 3},
        {"topic": "a", "qos": 1.0},
        {"topic": "a", "retain": 1},
        {"topic": "a", "payload_base64": "?"},
        {"topic": "a", "payload": "x", "payload_base64": "eA=="},
        {"topic": "a", "user_properties": {"a": 1}},
        {"topic": "a", "message_expiry_interval": -1},
        {"payload": "x"},
    ],
)
def test_invalid_messages_are_refused(site: Site, body: dict[str, Any]) -> None:
    answer = site.ask("POST", "/publish", "operator", json=body)
    wanted = next((name for name in reversed(body) if name != "payload"), "topic")
    assert refused(answer) == (400, wanted)


@pytest.mark.parametrize("client_id", ["a{b}", "{client_id}", "a/%2F?#", "ü" * 15_000])
def test_any_client_can_be_disconnected(site: Site, client_id: str) -> None:
    site.client(client_id)
    path = f"/clients/{quote(client_id, safe='')}"
    assert site.ask("GET", path).json["client_id"] == client_id
    assert site.ask("POST", f"{path}/disconnect").json == {"disconnected": True}


def test_unknown_clients(site: Site) -> None:
    for path in ("", "/subscriptions", "/queue", "/inflight"):
        assert site.ask("GET", f"/clients/unknown{path}").status == 404
    assert site.ask("POST", "/clients/unknown/disconnect").status == 404
    assert site.ask("DELETE", "/clients/unknown/session").status == 404


# the audit log ---------------------------------------------------------------------------------------------------


def test_each_change_is_in_the_audit_log(site: Site) -> None:
    site.ask("POST", "/publish", "operator", json={"topic": "a", "payload": "private"})
    site.ask("POST", "/publish", "viewer", json={"topic": "a"})
    site.reloads.append(ReloadReport(applied=(CHANGE,)))
    site.ask("POST", "/configuration/reload")
    reload, denied, published = site.audit()[:3]
    assert (published["action"], published["name"], published["role"]) == ("publish", "operator", "operator")  # fmt: skip
    assert (published["address"], published["status"], published["result"]) == ("192.0.2.1", 200, "ok")  # fmt: skip
    assert published["arguments"]["payload"] == "<7 characters>"
    assert (denied["name"], denied["status"]) == ("viewer", 403)
    assert (reload["action"], reload["name"]) == ("reloadConfiguration", "first")
    assert "private" not in json.dumps(site.audit())
    assert [e[2]["action"] for e in site.logs if e[1] == "admin.change"][-1] == "reloadConfiguration"  # fmt: skip


def test_a_change_that_fails_is_in_the_audit_log(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make(site, "failing")
    monkeypatch.setattr(Tokens, "revoke", None)
    assert site.ask("DELETE", f"/tokens/{token['id']}").status == 500
    assert [entry.pop() for entry in [site.logs] if entry[-1][1] == "http.plugin_failed"]
    entry = site.audit()[0]
    assert (entry["action"], entry["status"]) == ("revokeToken", 500)


def test_reading_is_not_in_the_audit_log(site: Site) -> None:
    before = site.audit()[0]["number"]
    site.ask("GET", "/clients")
    assert site.audit()[0]["number"] == before


def test_refused_changes_do_not_displace_those_that_were_made() -> None:
    with Harness([make_plugin(AdminPlugin, id="admin")]) as harness:
        state = harness.handle("admin").state
        log = AuditLog(state, 20)
        log.add({"n": "made", "status": 200})
        log.add({"n": "failed", "status": 500})  # it may have changed something
        for number in range(50):
            log.add({"n": number, "status": 403})
        harness.settle()
        for found in (log, AuditLog(state, 20)):
            first, cursor = found.entries(None, 10)
            rest, end = found.entries(cursor, 50)
            assert [one["n"] for one in first + rest] == [*range(49, 29, -1), "failed", "made"]
            assert end is None


def test_the_audit_log_is_paged_bounded_and_durable() -> None:
    store = DurableStore()
    for begin in (0, 30):
        with Harness([make_plugin(AdminPlugin, id="admin")], store=store) as harness:
            log = AuditLog(harness.handle("admin").state, 20)
            for number in range(begin, begin + 30):
                log.add({"n": number, "long": "x" * 1000})
            harness.settle()
            first, cursor = log.entries(None, 15)
            rest, end = log.entries(cursor, 15)
            assert [one["n"] for one in first + rest] == list(range(begin + 29, begin + 9, -1))
            assert end is None
            assert len(first[0]["long"]) == 512
            keys = harness.handle("admin").state.items("audit/", limit=1000).items
            assert len(keys) == 20
