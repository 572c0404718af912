"""Test queues through the API and with ``hookmq queues``, against a broker with the `queues` plugin."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from admin_site import Site
from hookmq_admin import queues_cli
from hookmq_testing import run_command

Cli = Callable[..., Any]


@pytest.fixture
def cli(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a function that runs ``hookmq queues`` and returns the output."""
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    monkeypatch.setattr(queues_cli, "INTERVAL", 0.01)

    def run(*arguments: str, code: int = 0) -> str:
        assert run_command(["queues", *arguments]) == code
        out: str = capsys.readouterr().out
        return out

    return run


@pytest.fixture
def queue(site: Site, request: pytest.FixtureRequest) -> str:
    """Create a queue named after the test, and return its name."""
    name: str = request.node.name.partition("[")[0].removeprefix("test_")
    assert (
        site.ask("POST", "/queues", json={"name": name, "settings": {"groups": ["a", "b"]}}).status
        == 200
    )
    return name


def publish(site: Site, topic: str, *payloads: bytes) -> None:
    client = site.client("publisher")
    for one in payloads:
        site.run(client.publish(topic, one, 1, expect=0))


def fails(cli: Cli, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused. Return the reason for the refusal."""
    assert run_command(["queues", *arguments]) in (1, 2)
    return capsys.readouterr().err


def test_a_queue_from_its_creation_to_its_end(
    site: Site, cli: Cli, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "queue.yaml"
    file.write_text("groups: [a, b]\nmax_bytes: 1MiB\nprefetch: 3\n")
    out = cli(
        "create", "whole", "--file", str(file), "--set", "prefetch=7", "--set", "bindings=[in/#]"
    )
    assert "prefetch" in out
    publish(site, "$queue/whole", b"one", b"two \x1b[31m")
    publish(site, "in/1", b"\xff")
    (row,) = (one for one in json.loads(cli("list", "--json")) if one["name"] == "whole")
    assert (row["messages"], row["made_by"], row["max_bytes"]) == (3, "operator", 1 << 20)
    line = next(one for one in cli("list").splitlines() if one.startswith("whole"))
    assert line.split()[:5] == ["whole", "classic", "operator", "3", "0"]
    shown = cli("show", "whole")
    assert "settings.prefetch" in shown
    assert [one.split()[0] for one in shown.splitlines()[-2:]] == ["a", "b"]
    assert [one["name"] for one in json.loads(cli("groups", "whole", "--json"))] == ["a", "b"]
    peeked = cli("peek", "whole", "--limit", "2")
    assert "\x1b" not in peeked
    assert [one.split()[0] for one in peeked.splitlines()] == ["offset", "0", "1"]
    items = json.loads(cli("peek", "whole", "--after", "1", "--json"))
    assert [(one["offset"], one["payload"]["base64"]) for one in items] == [(2, "/w==")]
    assert "yes" in cli("pause", "whole", "--group", "a")
    assert "a paused" in cli("list")
    assert "no" in cli("resume", "whole", "--group", "a")
    assert "has 3 unsettled messages" in fails(cli, capsys, "delete", "whole")
    refused = fails(cli, capsys, "purge", "whole")
    assert "--force" in refused
    assert "--url" not in refused  # the broker was reached
    assert json.loads(cli("purge", "whole", "--group", "a", "--force", "--json")) == {"purged": 3}
    assert run_command(["queues", "peek", "whole"]) == 0
    assert "none in the first group" in capsys.readouterr().err
    assert len(cli("peek", "whole", "--group", "b").splitlines()) == 4
    cli("change", "whole", "--set", "prefetch=null", "--set", "on_full=drop_oldest")
    assert json.loads(cli("show", "whole", "--json"))["settings"]["prefetch"] == 100
    assert json.loads(cli("delete", "whole", "--force", "--json")) == {"messages": 3}
    assert "there is no queue 'whole'" in fails(cli, capsys, "show", "whole")


def test_consumers_of_a_group(
    site: Site, cli: Cli, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer = site.client("worker-1", auto_ack=False)
    site.run(consumer.subscribe(f"$queue/{queue}", 1))
    publish(site, f"$queue/{queue}", b"1")
    site.run(consumer.message())
    (row,) = json.loads(cli("groups", queue, "--group", "a", "--json"))
    assert (row["client_id"], row["unacknowledged"], row["stalled"]) == ("worker-1", 1, False)
    assert "worker-1" in cli("groups", queue, "--group", "a")
    assert "no group 'x', only: a, b" in fails(cli, capsys, "groups", queue, "--group", "x")


def test_redrive_shows_what_it_did(
    site: Site, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    cli("create", "graves")
    cli("create", "risky", "--set", "delivery_limit=1", "--set", "dead_letter=graves")
    consumer = site.client("victim", auto_ack=False)
    site.run(consumer.subscribe("$queue/risky", 1))
    publish(site, "$queue/risky", b"1", b"2")
    for _ in range(2):
        site.run(consumer.message())
    site.thread.call(consumer.drop)
    site.run(consumer.wait_closed())
    while json.loads(cli("show", "graves", "--json"))["messages"] < 2:
        pass
    header, first, _ = cli("peek", "graves").splitlines()
    assert header.split()[4:6] == ["from", "reason"]
    assert first.split()[4:6] == ["risky:0", "delivery-limit"]
    publish(site, "$queue/graves", b"not a dead letter")
    found = json.loads(cli("redrive", "graves", "--rate", "1000", "--json"))
    assert (found["state"], found["moved"], found["skipped"], found["examined"]) == (
        "done",
        2,
        1,
        3,
    )
    assert found["note"] == "the message 2 is not a dead letter"
    assert json.loads(cli("redrive", "graves", "--status", "--json")) == found
    assert json.loads(cli("show", "risky", "--json"))["messages"] == 2
    assert "no redrive of graves is running" in fails(cli, capsys, "redrive", "graves", "--stop")
    assert "is not the whole last level" in fails(cli, capsys, "redrive", "graves", "--topic", "a#")


def test_seek_of_a_stream(site: Site, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    publish(site, "$queue/events", b"1", b"2")
    assert json.loads(cli("seek", "events", "--group", "default", "next", "--json"))["offset"] >= 2
    assert "is not a stream" in fails(cli, capsys, "seek", "jobs", "--group", "default", "first")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("create", "a/b"), "name: 'a/b' is not a name"),
        (("create", "bad", "--set", "prefetch=0"), "settings: prefetch"),
        (("create", "bad", "--set", "other=1"), "unknown key"),
        (("create", "bad", "--set", "bindings={$file: /etc/passwd}"), "$env and $file are only allowed"),
        (("change", "jobs", "--set", "prefetch=1"), "is in the configuration"),
        (("delete", "jobs", "--force"), "is in the configuration"),
        (("peek", "none"), "there is no queue 'none'"),
        (("pause", "jobs", "--group", "x"), "no group 'x', only: default"),
        (("create", "bad", "--file", "/nowhere"), "No such file"),
    ],
)  # fmt: skip
def test_what_is_refused(
    cli: Cli, capsys: pytest.CaptureFixture[str], arguments: Any, text: str
) -> None:
    assert text in fails(cli, capsys, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "x", "--set", "prefetch"),
        ("create", "x", "--set", "a: b=1"),
        ("create", "x", "--set", "groups=[a"),
        ("peek", "x", "--after", "-1"),
        ("peek", "x", "--limit", "some"),
        ("redrive", "x", "--rate", "0"),
        ("redrive", "x", "--stop", "--status"),
        ("seek", "x", "first"),
        ("show",),
    ],
)
def test_usage_errors(cli: Cli, arguments: Any) -> None:
    assert run_command(["queues", *arguments]) == 2


def test_changes_are_in_the_audit_log(site: Site, queue: str) -> None:
    assert site.ask("POST", f"/queues/{queue}/pause", "operator", json={}).status == 200
    entry = site.audit()[0]
    assert (entry["action"], entry["status"], entry["arguments"]["queue"]) == (
        "pauseQueue",
        200,
        queue,
    )
    assert site.ask("DELETE", f"/queues/{queue}/messages", "operator").status == 403
    assert site.ask("GET", f"/queues/{queue}/messages", "viewer").status == 403


def test_without_the_plugin(tmp_path: Path) -> None:
    site = Site(tmp_path)
    try:
        answer = site.ask("GET", "/queues")
        assert (answer.status, answer.json["detail"]) == (
            409, "the broker has no queues: the plugin queues is not configured",
        )  # fmt: skip
    finally:
        site.close()
