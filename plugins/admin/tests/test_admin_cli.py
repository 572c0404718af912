"""Test the commands against a running broker."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from admin_site import CHANGE, Site
from hookmq.plugin import HookMQError, PluginError, ReloadReport
from hookmq_admin.cli import add_arguments
from hookmq_admin.tables import shown
from hookmq_testing import run_command

Run = Callable[..., str]
PARSER = argparse.ArgumentParser()
add_arguments(PARSER)


@pytest.fixture
def run(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs ``hookmq admin`` with the admin's token, checks its exit code, and returns its
    output.
    """
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])

    def command(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        arguments = PARSER.parse_args(words)
        if not code:
            assert arguments.run(arguments) == 0
            return capsys.readouterr().out
        with pytest.raises(HookMQError) as caught:
            arguments.run(arguments)
        assert caught.value.exit_code == code
        return str(caught.value)

    return command


def test_it_is_a_command_of_hookmq(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", "hmq_1_2")
    assert run_command(["admin", "overview", "--url", site.url]) == 1
    assert capsys.readouterr().err == (
        "hookmq: a valid token is required (401); "
        "check --token-file or $HOOKMQ_ADMIN_TOKEN: the token may be expired, revoked, or of another broker\n"
    )


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table, without its header."""
    return [line.split() for line in text.splitlines()[1:]]


def test_clients_are_listed_shown_and_kicked(site: Site, run: Run) -> None:
    lamp = site.client("lamp/7", username="ann", session_expiry_interval=60)
    site.run(lamp.subscribe("light/#", 1))
    assert rows(run("clients", "lamp", "--online"))[0][:3] == ["lamp/7", "ann", "yes"]
    assert rows(run("clients", "lamp", "--offline")) == []
    assert [one["client_id"] for one in json.loads(run("clients", "lamp", "--json"))] == ["lamp/7"]
    assert "filters                light/#" in run("client", "lamp/7")
    assert json.loads(run("client", "lamp/7", "--json"))["filters"] == ["light/#"]
    assert rows(run("subs", "--client", "lamp/7")) == [["lamp/7", "light/#", "1"]]
    assert rows(run("subs", "--filter", "light/1")) == [["lamp/7", "light/#", "1"]]
    assert rows(run("subs", "--topic", "light/1"))[0][:2] == ["lamp/7", "yes"]
    assert run("kick", "lamp/7", "--reason", "service") == "disconnected  yes\n"
    site.run(lamp.wait_closed())
    assert run("publish", "light/1", "on") == "matched  1\n"
    assert rows(run("queue", "lamp/7"))[0][:3] == ["light/1", "1", "2"]
    assert run("queue", "lamp/7", "--purge") == "dropped  1\n"
    assert run("kick", "lamp/7", "--end-session") == "ended  yes\n"
    assert "no client has this id (404)" in run("client", "lamp/7", code=1)


def test_bans(run: Run) -> None:
    assert run("ban", "bad", "--for", "10m", "--reason", "noise") == "requested  yes\n"
    assert run("unban", "bad") == "requested  yes\n"


def test_retained_messages(run: Run) -> None:
    run("publish", "kept/1", "on", "--retain", "--qos", "0")
    assert rows(run("retained", "kept/#")) == [["kept/1", "0", "2", "on"]]
    assert run("retained", "kept/#", "--clear") == "cleared  1\n"
    assert run("retained", "kept/#", "--json") == "[]\n"


def test_the_tail(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("publish", "shown/1", "one\x1b[2J", "--retain")
    text = run("tail", "shown/#", "--retained", "-C", "1")
    assert text == "shown/1 one\\x1b[2J\n"
    found = json.loads(run("tail", "shown/#", "--retained", "-C", "1", "--json"))
    assert (found["event"], found["payload"]["text"]) == ("message", "one\x1b[2J")
    run("retained", "shown/#", "--clear")


def test_the_broker(site: Site, run: Run) -> None:
    overview = run("overview").splitlines()
    assert overview[0].split()[0] == "version"
    assert any(line.startswith("rates.messages_received ") for line in overview)
    assert "rates" not in {line.split()[0] for line in overview}
    assert [row[0] for row in rows(run("listeners"))] == ["tcp", "http"]
    assert [row[0] for row in rows(run("plugins"))] == [
        "rl", "admin", "accounts", "doors", "queues",
    ]  # fmt: skip
    assert run("config") == "version: 1\n"
    site.reloads.append(ReloadReport(applied=(CHANGE,)))
    assert rows(run("reload")) == [["log.level", "info", "debug", "now"]]
    site.reloads.append(ReloadReport())
    assert run("reload") == "no changes\n"
    site.reloads.append(PluginError("x", "line 3 is wrong"))
    assert "line 3 is wrong (409)" in run("reload", code=1)
    site.logs.clear()
    assert any("reloadConfiguration" in row for row in rows(run("audit", "-n", "5")))


def test_tokens(site: Site, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(run("tokens", "create", "grafana", "--role", "viewer", "--expires-in", "30d"))
    (row,) = [row for row in rows(run("tokens", "list")) if row[1] == "grafana"]
    assert row[2:5] == ["viewer", "admin:grafana", "first"]
    viewer = ("--token-file", str(file))
    assert "needs a token with the role admin (403)" in run("tokens", "list", *viewer, code=1)
    assert run("tokens", "revoke", row[0]) == "revoked  yes\n"
    assert "a valid token is required (401)" in run("overview", *viewer, code=1)


def test_a_token_is_written_to_a_new_file_that_others_cannot_read(
    site: Site, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    create = ("tokens", "create", "written", "--role", "viewer", "-o", str(file))
    before = os.umask(0)
    try:
        assert run(*create) == ""
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    assert "connections" in run("overview", "--token-file", str(file))
    text = file.read_text()
    assert f"cannot write {file}: File exists" in run(*create, code=1)
    assert file.read_text() == text
    assert [row[1] for row in rows(run("tokens", "list"))].count("written") == 1
    other = tmp_path / "other"
    found = json.loads(run("tokens", "create", "second", *create[3:-1], str(other), "--json"))
    assert (found["name"], "token" in found) == ("second", False)
    refused = tmp_path / "refused"
    run(*create[:-1], str(refused), "--token-file", str(file), code=1)  # a viewer
    assert not refused.exists()


def test_where_and_with_which_token(
    site: Site, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "clear text" in run(
        "overview", "--url", "http://broker.example.com/plugins/admin", code=2
    )
    assert "expected http" in run("overview", "--url", "broker:9090", code=2)
    unreachable = run("overview", "--url", "http://127.0.0.1:1/plugins/admin", code=1)
    assert "cannot be reached: Connection refused; check that the broker runs" in unreachable
    assert "Unauthorized (401)" in run("overview", "--url", site.url + "s", code=1)
    missing = str(tmp_path / "missing")
    assert "option --token-file" in run("overview", "--token-file", missing, code=2)
    assert "option --ca-file" in run(
        "overview", "--url", "https://127.0.0.1:1", "--ca-file", missing, code=2
    )
    monkeypatch.delenv("HOOKMQ_ADMIN_TOKEN")
    assert "no token" in run("overview", code=2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (1.5, "1.5"),
        ("a\n\x1b[", "a\\x0a\\x1b["),
        (["a", {"b": 1}], "a, b=1"),
    ],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert shown(value) == text


def test_bash_completes_the_subcommands(tmp_path: Path) -> None:
    hookmq = tmp_path / "hookmq"
    hookmq.write_text(f'#!/bin/sh\nexec {sys.executable} -m hookmq.cli "$@"\n')
    hookmq.chmod(0o755)
    script = (
        "source <(hookmq completion bash); COMP_WORDS=(hookmq admin to); COMP_CWORD=2; _hookmq;"
        ' echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "tokens\n"


def test_commands_start_without_a_web_server() -> None:
    program = "import sys, hookmq_admin.plugin, hookmq_admin.cli, hookmq_admin.top; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
