"""Test what operators can do with an instance, through the API and with ``hookmq sinks``."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_site import Site
from hookmq_sinks.plugin import SinksPlugin
from hookmq_testing import make_plugin, run_command
from hookmq_webhook.plugin import WebhookPlugin

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a broker with two instances whose service does not exist, and a sink with the same name as the second
    instance.
    """
    folder = tmp_path_factory.mktemp("site")
    hook = {
        "url": "http://127.0.0.1:1/", "mode": "best_effort", "process": False, "drain": 0.0,
        "events": ("message.published",),
    }  # fmt: skip
    sink = {
        "name": "twice", "topics": ["none/#"], "driver": "file", "target": {"path": str(folder / "out")},
    }  # fmt: skip
    made = Site(
        folder,
        (
            make_plugin(WebhookPlugin, hook, "hook"),
            make_plugin(WebhookPlugin, hook, "twice", use="webhook"),
            make_plugin(SinksPlugin, {"path": folder / "sinks", "sinks": [sink], "sync": False}, "sinks"),
        ),
    )  # fmt: skip
    publisher = made.client("publisher")
    made.run(publisher.publish("a", b"1", 1, expect=0x10))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _options(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])


def test_instances_are_listed_with_the_sinks(site: Site, capsys: Output) -> None:
    assert run_command(["sinks", "list"]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert sorted(rows) == [["hook", "webhook"], ["twice", "file"], ["twice", "webhook"]]


def test_the_attempts_for_an_event_are_listed(site: Site, capsys: Output) -> None:
    while not (found := site.ask("GET", "/sinks/hook/deliveries").json["items"]):
        pass
    first = found[-1]
    assert (first["event"], first["attempt"], first["result"]) == ("message.published", 1, "again")
    assert first["reason"]
    assert run_command(["sinks", "deliveries", "hook", "--event", first["id"]]) == 0
    assert first["id"] in capsys.readouterr().out
    assert run_command(["sinks", "deliveries", "hook", "--event", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run_command(["sinks", "deliveries", "missing"]) == 1
    assert "there is no sink 'missing'" in capsys.readouterr().err


def test_an_instance_is_paused_purged_and_resumed(site: Site, capsys: Output) -> None:
    assert run_command(["sinks", "pause", "hook"]) == 0
    found = site.ask("GET", "/sinks/hook").json
    assert (found["state"], found["lag"]) == ("paused", 1)
    assert run_command(["sinks", "purge", "hook"]) == 0
    assert run_command(["sinks", "resume", "hook"]) == 0
    found = site.ask("GET", "/sinks/hook").json
    assert (found["state"], found["lag"]) == ("active", 0)
    assert run_command(["sinks", "dead-letters", "hook"]) == 1
    assert "no file of dead letters" in capsys.readouterr().err


def test_a_name_of_two_sinks_is_refused(site: Site) -> None:
    for method, path in (("GET", ""), ("POST", "/pause")):
        answer = site.ask(method, f"/sinks/twice{path}", json={} if path else None)
        assert answer.status == 409
        assert "several plugins have a sink 'twice'" in answer.text


def test_other_sinks_keep_no_deliveries(tmp_path: Path) -> None:
    sink = {
        "name": "plant",
        "topics": ["none/#"],
        "driver": "file",
        "target": {"path": str(tmp_path)},
    }
    config = {"path": tmp_path / "sinks", "sinks": [sink], "sync": False}
    site = Site(tmp_path, (make_plugin(SinksPlugin, config, "sinks"),))
    try:
        answer = site.ask("GET", "/sinks/plant/deliveries")
        assert (answer.status, "webhooks do" in answer.text) == (409, True)
    finally:
        site.close()
