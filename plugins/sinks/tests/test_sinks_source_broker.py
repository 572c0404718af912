"""Test sources in a broker process: HTTP requests, Redis entries, a kill, and commands from operators."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import redis
from hookmq_testing import run_command
from ports import free_port
from redis_server import RedisServer
from sink_broker import SinkBroker, sink_broker, until

pytestmark = pytest.mark.slow
TOKEN = "0123456789abcdef"
RULES = """rules:
  - {deny: publish, topic: t/secret}
  - {allow: all, topic: "#"}
"""


def post(port: int, body: Any, path: str = "/publish") -> tuple[int, Any]:
    """Publish over HTTP."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=30) as found:
            return found.status, json.load(found)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def rows(broker: SinkBroker) -> list[Any]:
    """Return the payloads that the sink has written."""
    found: list[Any] = []
    for path in sorted((broker.folder / "out").glob("*.jsonl*")):
        data = path.read_bytes()
        found += [
            json.loads(line)["payload"] for line in data[: data.rfind(b"\n") + 1].splitlines()
        ]
    return found


def source_pid(broker: SinkBroker) -> int:
    """Return the process id of the broker's only source."""
    for task in Path(f"/proc/{broker.served.process.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"source_runner" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("there is no source")


def test_http_passes_the_pipeline(tmp_path: Path) -> None:
    port = free_port()
    origin = {"bind": f"127.0.0.1:{port}", "tokens": [{"token": TOKEN, "identity": "erp"}]}
    one = {"name": "api", "driver": "http", "origin": origin}
    with sink_broker(tmp_path, sources=[one], rules=RULES) as broker:
        until(lambda: broker.ask("GET", "/sources/api")["state"] == "active")
        assert post(port, {"topic": "t/a", "payload": {"n": 1}, "qos": 1})[0] == 200
        assert post(port, {"topic": "t/secret", "payload": {}, "qos": 1})[0] == 403
        assert post(port, {"topic": "other", "payload": {}, "qos": 1})[0] == 202
        assert (
            post(port, [{"topic": "t/a", "payload": {"n": 2}, "qos": 1}] * 2, "/publish/bulk")[0]
            == 200
        )
        until(lambda: len(rows(broker)) == 3)
        assert rows(broker) == [{"n": 1}, {"n": 2}, {"n": 2}]
        broker.ask("POST", "/sources/api/pause", {})
        until(lambda: not answers(port))
        assert broker.ask("GET", "/sources/api")["state"] == "paused"
        broker.ask("POST", "/sources/api/resume", {})
        until(lambda: answers(port))
        until(lambda: broker.ask("GET", "/sources/api")["counts"]["received"] >= 4)
        assert broker.ask("GET", "/sources/api")["dead_letters"] == 0


def answers(port: int) -> bool:
    """Return whether the source is listening."""
    try:
        return post(port, {"topic": "other"})[0] == 202
    except OSError:
        return False


@pytest.fixture
def server() -> Iterator[RedisServer]:
    found = RedisServer()
    yield found
    found.close()


def test_entries_are_published_once_and_poison_is_kept(
    tmp_path: Path,
    server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = redis.Redis(port=server.port)
    origin = {
        "url": server.url, "streams": ["orders"],
        "publish": {"topic": "t/${property.to}", "content_type": "application/json"},
    }  # fmt: skip
    one = {
        "name": "orders",
        "driver": "redis",
        "retry_first": "10ms",
        "retry_longest": "100ms",
        "origin": origin,
    }
    with sink_broker(tmp_path, sources=[one], rules=RULES) as broker:
        monkeypatch.setenv("HOOKMQ_ADMIN_URL", broker.base.removesuffix("/api/v1"))
        monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", broker.token)
        for at in range(500):
            client.xadd("orders", {"to": "a", "payload": f'{{"n": {at}}}'})
            if at == 250:
                client.xadd("orders", {"to": "a/+", "payload": "x"})
                client.xadd("orders", {"to": "secret", "payload": "x"})
                until(lambda: rows(broker))
                os.kill(source_pid(broker), signal.SIGKILL)
        until(lambda: len(rows(broker)) >= 500)
        assert [found["n"] for found in rows(broker)] == list(range(500))
        until(lambda: not client.xpending("orders", "hookmq")["pending"])
        until(lambda: broker.ask("GET", "/sources/orders")["state"] == "active")
        assert run_command(["sinks", "list"]) == 0
        assert re.search(r"^orders +redis +active ", capsys.readouterr().out, re.MULTILINE)
        assert run_command(["sinks", "status", "orders"]) == 0
        assert "source:orders" in capsys.readouterr().out
        assert run_command(["sinks", "dead-letters", "orders", "--json"]) == 0
        reasons = {found["topic"]: found["reason"] for found in json.loads(capsys.readouterr().out)}
        assert "not one level" in reasons["orders"]
        assert "not authorized" in reasons["t/secret"]
        assert run_command(["sinks", "pause", "orders"]) == 0
        until(lambda: broker.ask("GET", "/sources/orders")["state"] == "paused")
        assert run_command(["sinks", "pause", "nothing"]) == 1
        assert "there is no sink or source 'nothing'" in capsys.readouterr().err
        broker.accept_errors("sources.process_ended")
    with sink_broker(tmp_path, sources=[one], rules=RULES) as broker:
        until(lambda: broker.ask("GET", "/sources/orders")["state"] == "paused")
    client.close()


def test_dead_letters_of_a_source_are_replayed_and_purged(
    tmp_path: Path, server: RedisServer, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    client = redis.Redis(port=server.port)
    origin = {
        "url": server.url, "streams": ["orders"],
        "publish": {"topic": "t/${property.to}", "content_type": "application/json"},
    }  # fmt: skip
    one = {"name": "orders", "driver": "redis", "retry_first": "10ms", "origin": origin}
    with sink_broker(tmp_path, sources=[one], rules=RULES) as broker:
        monkeypatch.setenv("HOOKMQ_ADMIN_URL", broker.base.removesuffix("/api/v1"))
        monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", broker.token)

        def command(*words: str) -> tuple[int, str]:
            code = run_command(["sinks", *words])
            out, err = capsys.readouterr()
            return code, out + err

        for number, place in enumerate(("secret", "a/+", "secret")):
            client.xadd("orders", {"to": place, "payload": f'{{"n": {number}}}'})
        until(lambda: broker.ask("GET", "/sources/orders")["dead_letters"] == 3)
        code, text = command("dead-letters", "orders", "--replay")
        assert (code, "0 written, 3 are dead letters again" in text) == (1, True)
        letters = broker.ask("GET", "/sources/orders/dead-letters")["items"]
        assert "not authorized" in letters[0]["reason"]
        assert letters[0]["topic"] == "t/secret"

        (tmp_path / "rules.yaml").write_text('rules: [{allow: all, topic: "#"}]\n')
        broker.served.signal(signal.SIGHUP)
        broker.served.wait_for("node.reloaded")
        assert broker.ask("POST", "/sources/orders/dead-letters/replay", {}) == {
            "written": 2, "failed": 1
        }  # fmt: skip
        until(lambda: rows(broker) == [{"n": 0}, {"n": 2}])
        until(lambda: broker.ask("GET", "/sources/orders")["dead_letters"] == 1)
        assert command("dead-letters", "orders", "--purge")[0] == 0
        assert broker.ask("GET", "/sources/orders/dead-letters")["items"] == []

        assert command("test", "orders") == (0, "the origin is ready\n")
        assert command("pause", "orders")[0] == 0
        until(lambda: broker.ask("GET", "/sources/orders")["state"] == "paused")
        assert command("test", "orders") == (0, "the origin is ready\n")
        server.close()
        code, text = command("test", "orders")
        assert (code, "Connection refused" in text) == (1, True)
        assert command("test", "none")[0] == 1
