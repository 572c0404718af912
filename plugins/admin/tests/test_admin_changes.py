"""Test what the routes show and change: clients, subscriptions, queues, retained messages, plugins and the history."""

from collections.abc import Iterator
from typing import Any

import pytest
from admin_site import CHANGE, Site
from hookmq.plugin import PluginError, Properties, ReloadReport
from hookmq_admin.history import History, dropped
from hookmq_admin.shown import MAX_PAIRS, masked, payload, properties
from hookmq_testing import AsyncioClient, Harness, HookRecorder


@pytest.fixture
def lamp(site: Site) -> Iterator[AsyncioClient]:
    client = site.client("lamp/1 ä%2F", username="ann", session_expiry_interval=60)
    yield client
    site.thread.call(client.drop)


LAMP = "/clients/lamp%2F1%20%C3%A4%252F"


def test_one_client_with_its_claims(site: Site, lamp: AsyncioClient) -> None:
    found = site.ask("GET", LAMP, "viewer").json
    assert (found["client_id"], found["identity"], found["connected"]) == ("lamp/1 ä%2F", "ann", True)  # fmt: skip
    assert found["claims"] == {"groups": ["a"], "api_token": "***"}
    assert found["vouched_by"] == "plugin:doors"


def test_clients_are_searched_and_paged(site: Site) -> None:
    clients = [site.client(f"many-{n}", username=f"u{n % 2}") for n in range(5)]
    page = site.ask("GET", "/clients?client_id=many-&limit=2").json
    names = [one["client_id"] for one in page["items"]]
    while page["cursor"]:
        query = {"client_id": "many-", "limit": "2", "cursor": page["cursor"]}
        page = site.ask("GET", "/clients", params=query).json
        names += [one["client_id"] for one in page["items"]]
    assert names == [f"many-{n}" for n in range(5)]
    found = site.ask("GET", "/clients?client_id=many-&username=u1").json["items"]
    assert [one["client_id"] for one in found] == ["many-1", "many-3"]
    assert site.ask("GET", "/clients?client_id=many-&address=127.").json["items"]
    assert not site.ask("GET", "/clients?client_id=many-&address=10.").json["items"]
    other = {"client_id": "other", "limit": "2"}
    cursor = site.ask("GET", "/clients?client_id=many-&limit=2").json["cursor"]
    assert site.ask("GET", "/clients", params={**other, "cursor": cursor}).status == 400
    for client in clients:
        site.thread.call(client.drop)


def test_a_cursor_of_an_earlier_process_or_session_is_gone(site: Site) -> None:
    site.thread.call(site.client("rich", session_expiry_interval=9).drop)
    for number in range(3):
        body = {"filter": f"r/{number}"}
        assert site.ask("POST", "/clients/rich/subscriptions", "operator", json=body).status == 200
    cursor = site.ask("GET", "/clients/rich/subscriptions?limit=1").json["cursor"]
    other = cursor.split(".")
    other[1] = "x" * len(other[1])
    old = site.ask("GET", "/clients/rich/subscriptions", params={"cursor": ".".join(other)})
    assert (old.status, old.json["field"]) == (410, "cursor")
    assert site.ask("DELETE", "/clients/rich/session", "operator").json == {"ended": True}
    assert site.ask("GET", "/clients/rich").status == 404


def test_a_client_is_disconnected(site: Site, lamp: AsyncioClient) -> None:
    answer = site.ask("POST", LAMP + "/disconnect", "operator", json={"reason": "service"})
    assert answer.json == {"disconnected": True}
    found = site.run(lamp.expect_disconnect(0x98))
    assert found is not None
    assert found.properties.reason_string == "service"
    assert site.ask("POST", LAMP + "/disconnect", "operator").json == {"disconnected": False}


def test_subscriptions_are_made_and_removed(site: Site, lamp: AsyncioClient) -> None:
    path = LAMP + "/subscriptions"
    assert site.ask("POST", path, "operator", json={"filter": "x/#", "qos": 1}).json == {"qos": 1}
    assert [one["filter"] for one in site.ask("GET", path).json["items"]] == ["x/#"]
    (found,) = site.ask("GET", "/subscribers?topic=x/1").json["items"]
    assert (found["client_id"], found["connected"]) == ("lamp/1 ä%2F", True)
    assert "matches" in found["why"]
    body = {"topic": "x/1", "payload": "on"}
    assert site.ask("POST", "/publish", "operator", json=body).json == {"matched": 1}
    assert site.run(lamp.message()).payload == b"on"
    assert site.ask("DELETE", path, "operator", params={"filter": "x/#"}).status == 200
    assert site.ask("DELETE", path, "operator", params={"filter": "x/#"}).status == 404
    answer = site.ask("POST", path, "operator", json={"filter": "x/#y"})
    assert (answer.status, answer.json["field"]) == (400, "filter")


def test_members_of_a_shared_subscription(site: Site, lamp: AsyncioClient) -> None:
    site.run(lamp.subscribe("$share/team/jobs/+", 1))
    (found,) = site.ask("GET", "/subscribers?topic=jobs/1").json["items"]
    assert "member of the shared subscription $share/team/jobs/+" in found["why"]
    (group,) = site.ask("GET", "/shared-subscriptions").json["items"]
    assert (group["filter"], group["members"], group["online"]) == ("$share/team/jobs/+", 1, 1)
    site.run(lamp.unsubscribe("$share/team/jobs/+"))


def test_a_queue_is_read_and_purged(site: Site) -> None:
    away = site.client("away", session_expiry_interval=60)
    site.run(away.subscribe("news", 1))
    site.thread.call(away.drop)
    site.run(away.wait_closed())
    for text in ("one", "two"):
        body = {"topic": "news", "payload": text, "qos": 1, "content_type": "text/plain"}
        assert site.ask("POST", "/publish", "operator", json=body).json == {"matched": 1}
    items = site.ask("GET", "/clients/away/queue", "operator").json["items"]
    assert [one["payload"]["text"] for one in items] == ["one", "two"]
    assert items[0]["properties"] == {"content_type": "text/plain"}
    assert items[0]["origin"] == "plugin:admin"
    items = site.ask("GET", "/clients/away/queue", "viewer").json["items"]
    assert [one["bytes"] for one in items] == [3, 3]
    assert not any("payload" in one or "properties" in one for one in items)
    assert site.ask("DELETE", "/clients/away/queue", "operator").json == {"dropped": 2}
    assert not site.ask("GET", "/clients/away/queue").json["items"]


def test_access_rules_apply_to_the_identity_of_a_token(site: Site) -> None:
    answer = site.ask("POST", "/publish", "operator", json={"topic": "secret/1"})
    assert answer.status == 403
    assert "refused" in answer.json["detail"]
    body = {"name": "robot", "role": "operator", "identity": "robot-7"}
    site.tokens["robot"] = site.ask("POST", "/tokens", json=body).json["token"]
    site.logs.clear()
    assert site.ask("POST", "/publish", "robot", json={"topic": "secret/1"}).status == 403
    assert site.ask("POST", "/publish", "robot", json={"topic": "$SYS/x"}).status == 403


def test_retained_messages_are_read_and_cleared(site: Site) -> None:
    body = {"topic": "kept/1", "payload_base64": "/w==", "retain": True, "qos": 1}
    assert site.ask("POST", "/publish", "operator", json=body).json == {"matched": 0}
    (found,) = site.ask("GET", "/retained?filter=kept/%23", "operator").json["items"]
    assert (found["topic"], found["payload"]["base64"]) == ("kept/1", "/w==")
    one = site.ask("GET", "/retained/message?topic=kept/1", "viewer").json
    assert (one["bytes"], "payload" in one) == (1, False)
    assert site.ask("GET", "/retained/message?topic=kept/2").status == 404
    answer = site.ask("GET", "/retained", params={"filter": "$share/a/b"})
    assert (answer.status, answer.json["field"]) == (400, "filter")
    query = {"filter": "kept/#"}
    assert site.ask("DELETE", "/retained", "operator", params=query).json == {"cleared": 1}
    assert not site.ask("GET", "/retained", params=query).json["items"]


def test_a_client_id_is_banned_and_unbanned(site: Site) -> None:
    bad = site.client("bad")
    body = {"seconds": 60, "reason": "noise"}
    assert site.ask("POST", "/clients/bad/ban", "operator", json=body).status == 200
    site.run(bad.wait_closed())
    refused = AsyncioClient("bad")
    site.run(refused.connect(site.port, expect=0x8A))
    assert site.ask("DELETE", "/clients/bad/ban", "operator").status == 200

    async def welcome() -> None:
        while True:  # observers are called in a later turn
            again = await AsyncioClient("bad").connect(site.port, expect=None)
            if again.connack is not None and not again.connack.code:
                return again.drop()

    site.run(welcome())


def test_a_reload_reports_its_changes_or_its_error(site: Site) -> None:
    site.reloads.append(ReloadReport(applied=(CHANGE,), restart=(CHANGE,)))
    change = {"path": "log.level", "old": "info", "new": "debug"}
    found = site.ask("POST", "/configuration/reload").json
    assert found == {"applied": [change], "needs_restart": [change]}
    site.reloads.append(PluginError("x", "line 3 is wrong"))
    site.thread.call(site.logs.clear)
    answer = site.ask("POST", "/configuration/reload")
    assert answer.status == 409
    assert "line 3 is wrong" in answer.json["detail"]
    site.logs.clear()


def test_the_state_of_the_broker(site: Site) -> None:
    site.client("somebody")
    assert site.ask("GET", "/configuration").json == {"yaml": "version: 1\n"}
    listeners = site.ask("GET", "/listeners").json["items"]
    assert [(one["name"], one["type"]) for one in listeners] == [("tcp", "tcp"), ("http", "http")]
    plugins = {one["id"]: one for one in site.ask("GET", "/plugins").json["items"]}
    assert set(plugins) == {"rl", "admin", "accounts", "doors", "queues"}
    hooks = {hook["name"]: hook for hook in plugins["doors"]["hooks"]}
    assert hooks["on_connect"]["outcomes"]["accept"] > 0
    overview = site.ask("GET", "/overview").json
    assert overview["version"]
    assert overview["rates"].keys() >= {"messages_received", "bytes_sent"}
    counters = site.ask("GET", "/counters").json["counters"]
    assert counters["sessions_created_total"] > 0
    history = site.ask("GET", "/history", params={"series": "sessions"}).json
    assert (len(history["times"]), list(history["series"])) == (1, ["sessions"])
    answer = site.ask("GET", "/history", params={"series": "nothing"})
    assert (answer.status, answer.json["field"]) == (400, "series")


def test_metrics_of_the_api(site: Site) -> None:
    async def read() -> str:
        headers = {"Authorization": "Bearer of the listener"}
        url = f"http://{site.server.addresses()['http']}/metrics"
        async with site.http.get(url, headers=headers) as answer:
            return await answer.text()

    site.ask("GET", "/health")
    site.ask("GET", "/health", "", {"Authorization": "Bearer x"})
    lines = dict(line.rsplit(" ", 1) for line in site.run(read()).splitlines() if line[0] != "#")
    name = 'hookmq_admin_requests_total{plugin="admin",route="getHealth",status="200"}'
    assert int(lines[name]) == 1
    for kind in ("wrong_tokens_total", "tokens"):
        assert int(lines[f'hookmq_admin_{kind}{{plugin="admin"}}']) > 0
    for kind in ("limited_total", "tail_skipped_total", "tail_dropped_total", "tails"):
        assert f'hookmq_admin_{kind}{{plugin="admin"}}' in lines


# parts -----------------------------------------------------------------------------------------------------------


def test_the_history_is_bounded() -> None:
    with Harness([HookRecorder("on_connect", id="x")]) as harness:
        history = History(harness.handle("x"), 10.0, 16)
        history.start()
        harness.connect("a", keep_alive=0)
        harness.advance(10)
        assert history.rates()["connections_accepted"] == pytest.approx(0.1)
        harness.advance(1000)
        times, series = history.samples(0.0, 1000, ("connections", "loop_lag"))
        assert len(times) == 16
        assert times[1] - times[0] == pytest.approx(10)
        assert set(series["connections"]) == {1.0}
        assert set(series["loop_lag"]) == {0.0}
        assert history.samples(times[-2], 1000, ())[0] == times[-1:]
        history.stop()
        harness.advance(100)
        assert history.samples(0.0, 1000, ())[0] == times


def test_dropped_messages_by_direction_and_reason() -> None:
    counters = {'messages_dropped_total{direction="out",reason="queue_full"}': 2.0, "sessions": 1.0}
    assert dropped(counters) == {"out:queue_full": 2.0}


@pytest.mark.parametrize(
    ("data", "most", "wanted"),
    [
        (b"ab", 9, {"text": "ab", "truncated": False}),
        ("aä".encode(), 2, {"text": "a", "truncated": True}),
        (b"\xff", 9, {"base64": "/w==", "truncated": False}),
        (b"a\xc3", 9, {"base64": "YcM=", "truncated": False}),
        (b"", 9, {"text": "", "truncated": False}),
    ],
)
def test_payloads(data: bytes, most: int, wanted: dict[str, Any]) -> None:
    assert payload(data, most) == wanted


def test_the_properties_of_a_listed_message_are_bounded() -> None:
    long = Properties(
        content_type="x" * 9, correlation_data=b"y" * 9, user_property=(("n" * 9, "v" * 9),) * 99
    )
    found = properties(long, 2)
    pairs = found.pop("user_properties")
    assert found == {"content_type": "xx", "correlation_data": "eXk="}
    assert pairs == [["nn", "vv"]] * MAX_PAIRS


def test_secrets_in_claims_are_masked() -> None:
    found = masked({"sub": "a", "deep": [{"API_Key": "x", "groups": ["g"]}], "password": {"a": 1}})
    assert found == {"sub": "a", "deep": [{"API_Key": "***", "groups": ["g"]}], "password": "***"}
