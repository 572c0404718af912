"""Test a drain through the API and on the command line."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from admin_site import DOCUMENT, Site, refuses, validate
from hookmq_admin.api_client import RequestRefused
from hookmq_admin.drain_cli import _drain
from hookmq_testing import run_command


def test_a_drain_over_the_api(site: Site) -> None:
    lamp = site.client("lamp")
    assert site.ask("POST", "/drain", "operator").status == 403
    wrong = site.ask("POST", "/drain", json={"moved": True})
    assert (wrong.status, wrong.json["detail"]) == (
        409,
        "cannot drain: moved needs a server reference",
    )
    wrong = site.ask("POST", "/drain", json={"server_reference": "a\n"})
    assert (wrong.status, wrong.json["field"]) == (400, "server_reference")
    begun = site.ask("POST", "/drain", json={"seconds": 0, "server_reference": "b:1"})
    validate(begun.json, DOCUMENT["components"]["schemas"]["Drain"])
    assert (begun.status, begun.json["draining"], begun.json["waiting"]) == (200, True, 0)
    site.run(lamp.wait_closed())
    assert refuses(site)
    assert site.ask("POST", "/drain").status == 409
    assert site.ask("GET", "/drain", "viewer").json["draining"] is True
    entry = site.audit()[1]
    assert (entry["action"], entry["arguments"]["server_reference"]) == ("startDrain", "b:1")
    assert site.ask("DELETE", "/drain").json == {"cancelled": True}
    assert site.ask("DELETE", "/drain").json == {"cancelled": False}
    site.client("lamp")


def test_a_tail_survives_a_drain(site: Site) -> None:
    assert site.ask("POST", "/hot-topics", json={"filter": "#", "seconds": 60}).status == 200
    assert site.ask("POST", "/drain", json={"seconds": 0}).status == 200
    assert site.ask("GET", "/hot-topics").json["running"] is True
    assert site.ask("DELETE", "/drain").json == {"cancelled": True}
    site.ask("DELETE", "/hot-topics")


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    monkeypatch.setattr("hookmq_admin.drain_cli.INTERVAL", 0.0)

    def run(*words: str) -> Any:
        assert run_command(["admin", "drain", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    lamp = site.client("lamp")
    assert run("--over", "0s") == {"draining": True, "waiting": 0, "connections": 0}
    site.run(lamp.wait_closed())
    assert run_command(["admin", "drain"]) == 1
    assert "the broker is draining (409)" in capsys.readouterr().err
    assert run("--cancel") == {"cancelled": True}
    for name in ("lamp", "bulb"):
        site.client(name)
    assert run("--over", "1h", "--no-wait")["waiting"] == 1
    assert run("--status")["draining"] is True
    assert run("--cancel") == {"cancelled": True}
    assert run("--status")["draining"] is False
    site.close()


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"draining": True, "waiting": 0, "connections": 2}, "2 connections are still open"),
        ({"draining": False, "waiting": 0, "connections": 2}, "2 clients: the drain was cancelled"),
    ],
)
def test_a_drain_that_did_not_succeed(
    monkeypatch: pytest.MonkeyPatch, end: dict[str, Any], why: str
) -> None:
    class Api:
        def ask(self, method: str, path: str, body: Any = None) -> Any:
            return end if method == "GET" else {**end, "draining": True}

    monkeypatch.setattr("hookmq_admin.drain_cli.INTERVAL", 0.0)
    monkeypatch.setattr("hookmq_admin.drain_cli.PATIENCE", 0.0)
    given = Namespace(
        cancel=False, status=False, no_wait=False, seconds=0.05, reference="", moved=False
    )
    api: Any = Api()
    with pytest.raises(RequestRefused, match=why):
        _drain(api, given)
