"""Test the command ``hookmq passwd``."""

import getpass
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hookmq_auth_password.book import load
from hookmq_testing import run_command
from hookmq_toolkit.passwords.hashes import verify
from passwords import ALICE, MOSQUITTO

QUICK = ["--memory", "1", "--passes", "1", "--lanes", "1"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that tests fill with answers to password prompts, in order."""
    answers: list[str] = []
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: answers.pop(0))
    return answers


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_add_asks_twice(
    tmp_path: Path, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "users.yaml"
    typed[:] = ["pässword", "pässword"]
    assert run_command(["passwd", "add", str(path), "alice", "-g", "a", "-g", "b", *QUICK]) == 0
    assert "alice added" in capsys.readouterr().out
    [alice] = load(path, "yaml").users
    assert alice.groups == ("a", "b")
    assert alice.hash is not None
    assert alice.hash.cost == (1024, 1, 1)
    assert verify(alice.hash, "pässword".encode())
    typed[:] = ["one", "two"]
    assert run_command(["passwd", "add", str(path), "alice", *QUICK]) == 1
    assert "the passwords differ" in capsys.readouterr().err
    typed[:] = ["", ""]
    assert run_command(["passwd", "add", str(path), "alice", *QUICK]) == 1
    assert "password is empty" in capsys.readouterr().err
    typed[:] = ["new", "new"]
    assert run_command(["passwd", "add", str(path), "alice", *QUICK]) == 0
    assert "alice changed" in capsys.readouterr().out
    assert load(path, "yaml").users[0].groups == ("a", "b")


def test_add_from_standard_input_and_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users.yaml"
    secret = tmp_path / "secret"
    for data, password in (
        (b"one\n", b"one"),
        (b"two", b"two"),
        (b"three\r\nmore", b"three"),
        (b" x \xff\n", b" x \xff"),
    ):
        given(monkeypatch, data)
        assert run_command(["passwd", "add", str(path), "stdin", "--stdin", *QUICK]) == 0
        secret.write_bytes(data)
        assert (
            run_command(
                ["passwd", "add", str(path), "file", "--password-file", str(secret), *QUICK]
            )
            == 0
        )
        for user in load(path, "yaml").users:
            assert user.hash is not None
            assert verify(user.hash, password)
    given(monkeypatch, b"x" * 1025)
    assert run_command(["passwd", "add", str(path), "stdin", "--stdin", *QUICK]) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add", "F", "alice"], "no terminal"),
        (["add", "F", "alice", "secret"], "unknown argument"),
        (["add", "F", "alice", "--password", "secret"], "unknown argument"),
        (["add", "F", "alice", "--stdin", "--password-file", "x"], "not allowed with"),
        (["add", "F", "alice", "--no-password", "--stdin"], "--no-password"),
        (["add", "F", "", "--no-password"], "user name is empty"),
        (["add", "F", "a\nb", "--no-password"], "control characters"),
        (["add", "F", "a:b", "--stdin", "--format", "mosquitto"], "colon"),
        (["add", "F", "a", "--no-password", "--format", "mosquitto"], "without a password"),
        (["add", "F", "a", "-g", "x", "--stdin", "--format", "mosquitto"], "no groups"),
        (["add", "F", "a", "--stdin", "--memory", "100000"], "--memory must be 1 to 256"),
        (["add", "F", "a", "--stdin", "--memory", "256", "--passes", "16"], "memory times passes"),
        (["add", "F", "a", "--stdin", "--lanes", "0"], "--lanes must be 1 to 16"),
        (["check", "F", "--stdin"], "USER is missing"),
        (["delete", "F"], "required: user"),
        ([], "a command is required"),
    ],
)  # fmt: skip
def test_wrong_usage(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    says: str,
) -> None:
    given(monkeypatch, b"x\n")
    path = tmp_path / "users.yaml"
    path.write_text(f"version: 1\nusers: {{alice: {{hash: '{ALICE}'}}}}\n")
    before = path.read_text()
    assert run_command(["passwd", *(str(path) if word == "F" else word for word in words)]) == 2
    assert says in capsys.readouterr().err
    assert path.read_text() == before


@pytest.mark.parametrize("command", ["add", "delete", "check", "list", "import"])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run_command(["passwd", command, "--help"]) == 0
    assert "FILE" in capsys.readouterr().out.upper()
    assert run_command(["passwd", "--help"]) == 0
    assert f"hookmq passwd {command} " in capsys.readouterr().out


def test_delete_check_and_list(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["passwd", "check", str(file)]) == 0
    told = capsys.readouterr().out
    assert "valid, 4 users (3 argon2id, 1 no password)" in told
    assert "3 have a hash weaker" in told
    for user, password, code, says in (
        ("alice", b"secret", 0, "right"),
        ("alice", b"wrong", 1, "wrong"),
        ("carol", b"secret", 1, "right (the user is disabled)"),
        ("door", b"x", 1, "door has no password"),
    ):
        given(monkeypatch, password)
        assert run_command(["passwd", "check", str(file), user, "--stdin"]) == code
        assert capsys.readouterr().out.strip() == says
    assert run_command(["passwd", "check", str(file), "nobody", "--stdin"]) == 1
    assert "no user 'nobody'" in capsys.readouterr().err
    assert run_command(["passwd", "list", str(file)]) == 0
    told = capsys.readouterr().out
    assert "alice  argon2id (weak); groups meters, admins; claims level, tenant\n" in told
    assert "carol  argon2id (weak); disabled\n" in told
    assert "door   none; groups doors\n" in told
    assert run_command(["passwd", "list", str(file), "--json"]) == 0
    told = capsys.readouterr().out
    assert [row["user"] for row in json.loads(told)] == ["alice", "bob", "carol", "door"]
    assert "$" not in told
    assert run_command(["passwd", "delete", str(file), "alice"]) == 0
    assert run_command(["passwd", "delete", str(file), "alice"]) == 1
    assert "no user 'alice'" in capsys.readouterr().err


def test_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = tmp_path / "passwd", tmp_path / "users.yaml"
    source.write_text(MOSQUITTO)
    assert run_command(["passwd", "import", str(source), str(path)]) == 0
    assert "2 users added, 0 changed" in capsys.readouterr().out
    assert path.stat().st_mode & 0o777 == 0o600
    for user, password in (("alice", b"secret"), ("bob", b"hunter2")):
        given(monkeypatch, password)
        assert run_command(["passwd", "check", str(path), user, "--stdin"]) == 0
    before = path.read_text()
    assert run_command(["passwd", "import", str(source), str(path)]) == 2
    assert "users that exist" in capsys.readouterr().err
    assert path.read_text() == before
    assert run_command(["passwd", "import", str(source), str(path), "--replace"]) == 0
    source.write_text(MOSQUITTO + "carol:plain\n")
    assert run_command(["passwd", "import", str(source), str(path)]) == 2
    told = capsys.readouterr().err
    assert "passwd:3:7: this is not a hash" in told
    assert "plain" not in told


def test_a_file_of_mosquitto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "passwd"
    path.write_text(MOSQUITTO)
    given(monkeypatch, b"new")
    assert (
        run_command(["passwd", "add", str(path), "carol", "--stdin", "--format", "mosquitto"]) == 0
    )
    given(monkeypatch, b"new")
    assert (
        run_command(["passwd", "check", str(path), "carol", "--stdin", "--format", "mosquitto"])
        == 0
    )
    assert run_command(["passwd", "delete", str(path), "bob", "--format", "mosquitto"]) == 0
    assert [user.name for user in load(path, "mosquitto").users] == ["alice", "carol"]
    assert run_command(["passwd", "check", str(path)]) == 2


def test_permissions_are_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.chmod(0o644)
    assert run_command(["passwd", "check", str(file)]) == 0
    assert "all users may access it" in capsys.readouterr().err
    file.chmod(0o600)
    assert run_command(["passwd", "check", str(file)]) == 0
    assert capsys.readouterr().err == ""


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["check"], ["list"], ["delete"]):
        assert run_command(
            ["passwd", *words, str(tmp_path / "none"), *(["x"] if words == ["delete"] else [])]
        ) in (1, 2)
        assert "No such file" in capsys.readouterr().err


def test_the_password_is_not_in_the_arguments(tmp_path: Path) -> None:
    """The password does not appear in the command's arguments. The command runs in a separate process, as it would in
    an operator's script.
    """
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "hookmq.cli",
        "passwd",
        "add",
        "users.yaml",
        "alice",
        "--stdin",
        *QUICK,
    ]
    done = subprocess.run(
        command, cwd=tmp_path, input=b"secret\n", capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    [alice] = load(tmp_path / "users.yaml", "yaml").users
    assert alice.hash is not None
    assert verify(alice.hash, b"secret")
