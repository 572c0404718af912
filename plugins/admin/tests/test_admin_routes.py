"""Test every route. Each response matches its schema in the OpenAPI document, and no request succeeds without the right
token.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from admin_cluster import TwoNodes
from admin_site import CHANGE, DOCUMENT, Site, validate
from hookmq.plugin import ConfigCheck, ReloadReport
from hookmq_admin import system
from hookmq_admin.openapi import ROUTES
from hookmq_admin.services import Route
from hookmq_admin.tokens import Role
from hookmq_queues.plugin import QueuesPlugin
from hookmq_sinks.plugin import SinksPlugin
from hookmq_testing import make_plugin
from hookmq_webhook.plugin import WebhookPlugin

RULE = {"allow": ["publish"], "topic": ["a/%u/#"], "qos": 1, "retain": False}
COMMITTED = Path(__file__).parents[1] / "openapi.json"


class Sample(NamedTuple):
    """A request that succeeds: its path, its query and its body."""

    path: str
    query: dict[str, str] = {}
    body: dict[str, Any] | None = None


SAMPLES = {
    "getHealth": Sample("/health"),
    "getOverview": Sample("/overview"),
    "getCounters": Sample("/counters"),
    "getHistory": Sample("/history", {"series": "connections,loop_lag", "since": "0", "limit": "5"}),
    "listListeners": Sample("/listeners"),
    "listPlugins": Sample("/plugins"),
    "listStreams": Sample("/streams"),
    "getConfiguration": Sample("/configuration"),
    "reloadConfiguration": Sample("/configuration/reload"),
    "listQueues": Sample("/queues"),
    "createQueue": Sample("/queues", {}, {"name": "made", "settings": {"prefetch": 5, "groups": ["a", "b"]}}),
    "getQueue": Sample("/queues/jobs"),
    "changeQueue": Sample("/queues/stored", {}, {"settings": {"max_messages": 7, "bindings": None}}),
    "deleteQueue": Sample("/queues/doomed", {"force": "true"}),
    "peekQueue": Sample("/queues/jobs/messages", {"group": "default", "limit": "1"}),
    "purgeQueueMessages": Sample("/queues/purged/messages", {"group": "default"}),
    "pauseQueue": Sample("/queues/stored/pause", {}, {"group": "default"}),
    "resumeQueue": Sample("/queues/stored/resume", {}, {}),
    "seekQueue": Sample("/queues/events/seek", {}, {"group": "default", "position": "first"}),
    "listSinks": Sample("/sinks"),
    "getSink": Sample("/sinks/plant"),
    "testSink": Sample("/sinks/plant/test", {}, {}),
    "pauseSink": Sample("/sinks/plant/pause", {}, {}),
    "resumeSink": Sample("/sinks/plant/resume", {}, {}),
    "seekSink": Sample("/sinks/plant/seek", {}, {"position": "first"}),
    "listDeadLetters": Sample("/sinks/plant/dead-letters", {"limit": "1"}),
    "listDeliveries": Sample("/sinks/hook/deliveries", {"limit": "1"}),
    "replayDeadLetters": Sample("/sinks/plant/dead-letters/replay", {}, {}),
    "purgeDeadLetters": Sample("/sinks/plant/dead-letters"),
    "listSources": Sample("/sources"),
    "getSource": Sample("/sources/inlet"),
    "pauseSource": Sample("/sources/inlet/pause", {}, {}),
    "resumeSource": Sample("/sources/inlet/resume", {}, {}),
    "listSourceDeadLetters": Sample("/sources/inlet/dead-letters", {"limit": "1"}),
    "testSource": Sample("/sources/inlet/test", {}, {}),
    "replaySourceDeadLetters": Sample("/sources/inlet/dead-letters/replay", {}, {}),
    "purgeSourceDeadLetters": Sample("/sources/inlet/dead-letters"),
    "getCluster": Sample("/cluster"),
    "moveLane": Sample("/cluster/lanes/c/move", {}, {"node": "b"}),
    "drainNode": Sample("/cluster/nodes/a/drain", {}, {"seconds": 0}),
    "undrainNode": Sample("/cluster/nodes/a/undrain"),
    "getRedrive": Sample("/queues/jobs/redrive"),
    "startRedrive": Sample("/queues/jobs/redrive", {}, {"topic": "none/#", "rate": 10}),
    "stopRedrive": Sample("/queues/slow/redrive"),
    "getBackup": Sample("/backup"),
    "startBackup": Sample("/backup"),
    "getDrain": Sample("/drain"),
    "startDrain": Sample("/drain", {}, {"seconds": 3600}),
    "cancelDrain": Sample("/drain"),
    "getLogLevel": Sample("/log/level"),
    "setLogLevel": Sample("/log/level", {}, {"level": "info"}),
    "tailLog": Sample("/log/tail", {"level": "info", "event": "client.", "recent": "5"}),
    "checkConfiguration": Sample("/configuration/check", {}, {"yaml": "version: 1"}),
    "listClients": Sample("/clients", {"client_id": "lamp", "connected": "true", "limit": "1"}),
    "getClient": Sample("/clients/lamp"),
    "listClientSubscriptions": Sample("/clients/lamp/subscriptions"),
    "listQueue": Sample("/clients/away/queue"),
    "listInflight": Sample("/clients/lamp/inflight"),
    "disconnectClient": Sample("/clients/away/disconnect", {}, {"reason": "test"}),
    "endSession": Sample("/clients/doomed/session", {"reason": "test"}),
    "subscribeClient": Sample("/clients/lamp/subscriptions", {}, {"filter": "made/#", "qos": 1}),
    "unsubscribeClient": Sample("/clients/lamp/subscriptions", {"filter": "made/#"}),
    "purgeQueue": Sample("/clients/lamp/queue"),
    "banClient": Sample("/clients/nobody/ban", {}, {"seconds": 1}),
    "unbanClient": Sample("/clients/nobody/ban"),
    "listSubscriptions": Sample("/subscriptions", {"filter": "light/#"}),
    "listSubscribers": Sample("/subscribers", {"topic": "light/1"}),
    "listSharedSubscriptions": Sample("/shared-subscriptions"),
    "listRetained": Sample("/retained", {"filter": "state/#"}),
    "getRetained": Sample("/retained/message", {"topic": "state/lamp"}),
    "clearRetained": Sample("/retained", {"filter": "nothing/#"}),
    "publish": Sample("/publish", {}, {"topic": "light/1", "payload": "on", "user_properties": {"a": "b"}}),
    "tail": Sample("/tail", {"filter": "tail/#"}),
    "trace": Sample("/trace", {"client_id": "lamp"}),
    "listSlowClients": Sample("/slow-clients", {"by": "inflight", "limit": "5"}),
    "getHotTopics": Sample("/hot-topics", {"limit": "5"}),
    "startHotTopics": Sample("/hot-topics", {}, {"filter": "light/#", "seconds": 60}),
    "stopHotTopics": Sample("/hot-topics"),
    "getDrops": Sample("/drops", {"limit": "5"}),
    "startDrops": Sample("/drops", {}, {"seconds": 60}),
    "stopDrops": Sample("/drops"),
    "getMe": Sample("/me"),
    "listTokens": Sample("/tokens"),
    "createToken": Sample("/tokens", {}, {"name": "made", "role": "viewer", "expires_in": 60}),
    "revokeToken": Sample("/tokens/unknown"),
    "listAudit": Sample("/audit"),
    "listUsers": Sample("/users", {"search": "zo", "group": "staff", "enabled": "true"}),
    "createUser": Sample("/users", {}, {"name": "made", "password": "correct horse", "rules": [RULE]}),
    "getUser": Sample("/users/zoe"),
    "changeUser": Sample("/users/zoe", {}, {"note": "changed", "rules": [{**RULE, "id": 1}]}),
    "deleteUser": Sample("/users/doomed"),
    "addUserRule": Sample("/users/zoe/rules", {}, {**RULE, "position": 0}),
    "deleteUserRule": Sample("/users/bob/rules/1"),
    "setPassword": Sample("/users/zoe/password", {}, {"password": "another horse"}),
    "listGroups": Sample("/groups"),
    "createGroup": Sample("/groups", {}, {"name": "made"}),
    "getGroup": Sample("/groups/staff"),
    "changeGroup": Sample("/groups/staff", {}, {"rules": [RULE]}),
    "deleteGroup": Sample("/groups/doomed"),
    "addGroupRule": Sample("/groups/staff/rules", {}, {"deny": ["subscribe"], "topic": ["secret/#"]}),
    "deleteGroupRule": Sample("/groups/other/rules/1"),
    "exportAccounts": Sample("/accounts", {"hashes": "true"}),
    "importAccounts": Sample("/accounts", {}, {"groups": [{"name": "staff"}], "check": True}),
    "checkAccess": Sample("/access", {}, {"user": "zoe", "action": "publish", "topic": "a", "claims": {"a": "b"}}),
    "checkCredentials": Sample("/credentials", {}, {"username": "zoe", "password": "wrong"}),
    "getOpenapi": Sample("/openapi.json"),
}  # fmt: skip
CASES = [pytest.param(route, id=route.name) for route in ROUTES]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a broker with queues, a sink and a cluster."""
    folder = tmp_path_factory.mktemp("admin")
    queues = [{"name": "jobs"}, {"name": "events", "type": "stream"}]
    sink = {
        "name": "plant", "topics": ["sunk/#"], "decode": "json", "driver": "file",
        "target": {"path": str(folder / "out")},
    }  # fmt: skip
    hook = {"url": "http://127.0.0.1:1/", "mode": "best_effort", "process": False, "drain": 0.0}
    token = {"token": "0123456789abcdef", "identity": "erp"}
    source = {
        "name": "inlet",
        "driver": "http",
        "origin": {"bind": "127.0.0.1:0", "tokens": [token]},
    }
    made = Site(
        folder,
        (
            make_plugin(QueuesPlugin, {"path": folder / "queues", "queues": queues, "sync": False}, "queues"),
            make_plugin(
                SinksPlugin, {"path": folder / "sinks", "sinks": [sink], "sources": [source], "sync": False}, "sinks"
            ),
            make_plugin(WebhookPlugin, hook, "hook"),
            make_plugin(TwoNodes, None, "cluster"),
        ),
    )  # fmt: skip
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def sinks(site: Site) -> None:
    """Create a sink that has written one message and has one dead letter."""
    publisher = site.client("sinker")
    for payload in (b"{}", b"\xff"):
        site.run(publisher.publish("sunk/a", payload, 1, expect=0))
    while site.ask("GET", "/sinks/plant").json["dead_letters"] < 1:
        pass


@pytest.fixture(scope="module", autouse=True)
def clients(site: Site) -> None:
    """Connect a client with subscriptions and messages in flight, and create offline clients with queues."""
    lamp = site.client("lamp", username="ann", auto_ack=False)
    site.run(lamp.subscribe(["light/#", "$share/team/work/+"], 1))
    for name in ("away", "doomed"):
        away = site.client(name, session_expiry_interval=60)
        site.run(away.subscribe("light/#", 1))
        site.thread.call(away.disconnect)
        site.run(away.wait_closed())
    publisher = site.client("publisher")
    site.run(publisher.publish("light/1", b"\xff\x00", 1, expect=0, content_type="x/y"))
    site.run(publisher.publish("state/lamp", "ä".encode() * 300, 1, True, expect=0x10))


@pytest.fixture(scope="module", autouse=True)
def accounts(site: Site) -> None:
    """Create users and groups with rules."""
    groups = [{"name": name, "rules": [RULE]} for name in ("staff", "other", "doomed")]
    users = [
        {"name": name, "rules": [RULE], "groups": ["staff"]} for name in ("zoe", "bob", "doomed")
    ]
    body = {"groups": groups, "users": users}
    assert site.ask("POST", "/accounts", json=body).json["created"] == 6


@pytest.fixture(scope="module", autouse=True)
def queues(site: Site) -> None:
    """Create queues with messages, and start a long redrive."""
    for name in ("stored", "doomed", "purged", "slow", "work"):
        settings = {"delivery_limit": 1, "dead_letter": "slow"} if name == "work" else {}
        body = {"name": name, "settings": settings}
        assert site.ask("POST", "/queues", json=body).status == 200
    publisher = site.client("filler")
    for topic in (
        "$queue/jobs/a",
        "$queue/jobs/b",
        "$queue/purged",
        "$queue/doomed",
        "$queue/slow",
    ):
        site.run(publisher.publish(topic, b"\xff\x00", 1, expect=0))


def test_each_route_has_a_sample() -> None:
    assert SAMPLES.keys() == {route.name for route in ROUTES}


def start_endless(site: Site) -> None:
    """Start a redrive with such a low rate that it never ends during a test."""
    consumer = site.client("once", receive_maximum=5, auto_ack=False)
    site.run(consumer.subscribe("$queue/work", 1))
    publisher = site.client("worker")
    for _ in range(3):
        site.run(publisher.publish("$queue/work", b"", 1, expect=0))
    for _ in range(3):
        site.run(consumer.message())
    site.thread.call(consumer.drop)
    site.run(consumer.wait_closed())
    while site.ask("GET", "/queues/slow").json["messages"] < 4:
        pass
    body = {"queue": "work", "rate": 0.01}
    assert site.ask("POST", "/queues/slow/redrive", json=body).json["state"] == "running"


@pytest.mark.parametrize("route", CASES)
def test_each_route_answers_as_the_document_says(site: Site, route: Route) -> None:
    sample = SAMPLES[route.name]
    if route.streams or route.name in ("startDrain", "getBackup", "startBackup"):
        return  # see test_admin_backup.py, _drain.py, _log.py, _tail.py and _tracing.py
    path = sample.path
    if route.name == "reloadConfiguration":
        site.reloads.append(ReloadReport(applied=(CHANGE,)))
    if route.name == "checkConfiguration":
        site.checks["version: 1"] = ConfigCheck(changes=ReloadReport(applied=(CHANGE,)))
    if route.name == "revokeToken":
        made = site.ask("POST", "/tokens", json={"name": "doomed", "role": "viewer"})
        path = f"/tokens/{made.json['id']}"
    if route.name == "stopRedrive":
        start_endless(site)
    answer = site.ask(route.method, path, route.role.label, params=sample.query, json=sample.body)
    assert answer.status == 200, answer.text
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    validate(answer.json, operation["responses"]["200"]["content"]["application/json"]["schema"])
    assert answer.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("route", CASES)
def test_nobody_gets_in_without_the_right_token(site: Site, route: Route) -> None:
    sample = SAMPLES[route.name]
    request = {"params": sample.query, "json": sample.body}
    answer = site.ask(route.method, sample.path, "", **request)
    assert (answer.status, answer.json["detail"]) == (401, "a valid token is required")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    if route.role > Role.VIEWER:
        role = Role(route.role - 1).label
        answer = site.ask(route.method, sample.path, role, **request)
        assert answer.status == 403
        assert route.role.label in answer.json["detail"]
        if route.change:
            entry = site.audit()[0]
            assert (entry["action"], entry["status"], entry["name"]) == (route.name, 403, role)
    else:
        assert not route.change


@pytest.mark.parametrize("route", CASES)
def test_unknown_fields_are_refused(site: Site, route: Route) -> None:
    sample = SAMPLES[route.name]
    role = route.role.label
    answer = site.ask(route.method, sample.path, role, params={**sample.query, "bad": "1"}, json=sample.body)  # fmt: skip
    assert (answer.status, answer.json["field"]) == (400, "bad")
    body = {**(sample.body or {}), "bad": 1}
    answer = site.ask(route.method, sample.path, role, params=sample.query, json=body)
    assert answer.status == 400
    if route.body is not None:
        assert answer.json["field"] == "bad"


def test_the_committed_document_is_up_to_date(site: Site) -> None:
    served = site.ask("GET", "/openapi.json", "viewer").json
    assert json.loads(COMMITTED.read_text()) == served, "run python -m hookmq_admin.openapi"


def test_the_document_is_complete() -> None:
    """Every reference can be resolved, every schema is used, and every operation has its own id."""
    text = json.dumps(DOCUMENT)
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert f'"#/components/schemas/{name}"' in text
        assert schema["type"] == "object"
    ids = [op["operationId"] for path in DOCUMENT["paths"].values() for op in path.values()]
    assert len(set(ids)) == len(ids) == len(ROUTES)


def test_the_version_is_read_only_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def version(name: str) -> str:
        calls.append(name)
        return "1"

    monkeypatch.setattr(system, "version", version)
    system.broker_version.cache_clear()
    site.ask("GET", "/overview")
    site.ask("GET", "/overview")
    system.broker_version.cache_clear()
    assert calls == ["hookmq"]
