"""Test the commands for users, groups and rules against a running broker."""

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from admin_site import Site
from hookmq.plugin import HookMQError
from hookmq_admin import decisions
from hookmq_admin.accounts_cli import ACTIONS, TESTED
from hookmq_admin.cli import add_arguments
from hookmq_toolkit import rules

Run = Callable[..., str]
PARSER = argparse.ArgumentParser()
add_arguments(PARSER)


@pytest.fixture
def run(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Remove all users and groups. Return a function that runs ``hookmq admin``, checks its exit code, and returns its
    output or error.
    """
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    site.ask("POST", "/accounts", json={"replace": True})

    def command(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        arguments = PARSER.parse_args(words)
        try:
            found, told = arguments.run(arguments), ""
        except HookMQError as error:
            found, told = error.exit_code, str(error)
        assert found == code
        return told or capsys.readouterr().out

    return command


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.write_text("correct horse\n")
    return str(file)


def table_of(text: str) -> list[list[str]]:
    """Return the cells of a table, without its header."""
    return [line.split() for line in text.splitlines()[1:]]


def test_users_and_groups(site: Site, run: Run, secret: str) -> None:
    assert run("groups", "add", "staff", "--note", "day shift") == "staff added\n"
    add = ("users", "add", "zoe", "--group", "staff", "--password-file", secret)
    assert run(*add) == "zoe added\n"
    assert "a user has this name (409)" in run(*add, code=1)
    assert table_of(run("users", "list")) == [["zoe", "yes", "yes", "staff", "0"]]
    assert table_of(run("groups", "list", "sta")) == [["staff", "0", "day", "shift"]]
    zoe = site.client("c1", username="zoe", password=b"correct horse")
    assert run("users", "disable", "zoe") == "zoe disabled\n"
    site.run(zoe.expect_disconnect(0x87))
    assert table_of(run("users", "list", "--enabled")) == []
    assert run("users", "enable", "zoe") == "zoe enabled\n"
    assert run("users", "change", "zoe", "--no-groups", "--note", "x") == "zoe changed\n"
    assert json.loads(run("users", "show", "zoe", "--json"))["groups"] == []
    assert "has_password  yes" in run("users", "show", "zoe")
    assert run("groups", "delete", "staff") == "staff deleted\n"
    assert "group: no group has this name (404)" in run("groups", "show", "staff", code=1)
    assert run("users", "delete", "zoe") == "zoe deleted\n"


def test_a_password_comes_from_a_file_or_standard_input_only(
    site: Site, run: Run, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no terminal" in run("users", "add", "zoe", code=2)
    assert run("users", "add", "zoe", "--no-password") == "zoe added\n"
    assert "excludes" in run("users", "add", "x", "--no-password", "--stdin", code=2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"another horse\r\n")))
    assert run("users", "password", "zoe", "--stdin") == "zoe changed\n"
    site.thread.call(site.client("c1", username="zoe", password=b"another horse").drop)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff" * 9)))
    assert "UTF-8" in run("users", "password", "zoe", "--stdin", code=1)
    with pytest.raises(SystemExit):
        PARSER.parse_args(["users", "password", "zoe", "a password"])


def test_rules(site: Site, run: Run) -> None:
    run("users", "add", "zoe", "--no-password")
    rule = ("rules", "add", "--user", "zoe")
    run(*rule, "allow", "publish,subscribe", "a/#", "b", "--qos", "1")
    table = table_of(run(*rule, "deny", "publish", "a/x", "--retain", "--first"))
    assert table == [
        ["2", "deny", "publish", "a/x", "-", "yes"], ["1", "allow", "publish,", "subscribe", "a/#,", "b", "1", "-"]
    ]  # fmt: skip
    assert "allow[0]" in run(*rule, "allow", "read", "a", code=1)
    (left,) = json.loads(run("rules", "delete", "--user", "zoe", "2", "--json"))
    assert left["topic"] == ["a/#", "b"]
    run("groups", "add", "staff")
    assert table_of(run("rules", "add", "--group", "staff", "allow", "all", "#")) == [
        ["1", "allow", "all", "#", "-", "-"]
    ]
    assert len(table_of(run("rules", "list", "--group", "staff"))) == 1


def test_an_export_is_imported(site: Site, run: Run, secret: str, tmp_path: Path) -> None:
    run("users", "add", "zoe", "--password-file", secret)
    file = tmp_path / "accounts.json"
    run("accounts", "export", "--hashes", "-o", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert "cannot write" in run("accounts", "export", "-o", str(file), code=1)
    assert "hash" not in json.loads(run("accounts", "export"))["users"][0]
    run("users", "add", "bob", "--no-password")
    found = json.loads(run("accounts", "import", str(file), "--replace", "--check", "--json"))
    assert found == {"created": 0, "changed": 1, "deleted": 1}
    assert len(table_of(run("users", "list"))) == 2
    run("accounts", "import", str(file), "--replace")
    assert len(table_of(run("users", "list"))) == 1
    site.thread.call(site.client("c1", username="zoe", password=b"correct horse").drop)
    file.write_text("[]")
    assert "expected a JSON object" in run("accounts", "import", str(file), code=2)
    file.write_text('{"users": [{"name": ""}]}')
    assert "users[0].name" in run("accounts", "import", str(file), code=1)


def test_access_and_credentials(run: Run, secret: str) -> None:
    run("users", "add", "zoe", "--password-file", secret)
    run("rules", "add", "--user", "zoe", "allow", "publish", "a/%c")
    told = run("access", "zoe", "publish", "a/c1", "--client", "c1")
    assert told.startswith("allowed by accounts (user zoe rule 1)\n")
    assert ["accounts", "allow", "user", "zoe", "rule", "1"] in table_of(told)
    told = run("access", "zoe", "publish", "a/c2", "--client", "c1", code=1)
    assert told.startswith("denied by accounts (no rule)\n")
    assert "client_id" in run("access", "-", "publish", "a", code=1)
    told = run("credentials", "zoe", "--password-file", secret, code=1)
    assert told.startswith("denied by doors")  # it accepts nobody but clients of listeners
    assert ["accounts", "accept"] in table_of(told)


def test_the_commands_know_the_actions_of_the_api() -> None:
    assert TESTED == decisions.ACTIONS
    assert tuple(rules.ACTIONS) == ACTIONS


def test_the_commands_do_not_import_the_server() -> None:
    """Every ``hookmq`` command imports this module, so it must load quickly."""
    code = "import sys, hookmq_admin.accounts_cli; print('aiohttp' in sys.modules, 'passlib' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False False\n"
