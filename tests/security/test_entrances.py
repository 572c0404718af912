"""Test that `hookmq check` correctly reports who can connect, with the real plugins."""

import json
from pathlib import Path
from typing import Any

import pytest
from hookmq.cli import main
from serving import serving

PASSWORDS: dict[str, Any] = {"use": "auth_password", "config": {"path": "users.yaml"}}
SHARED: dict[str, Any] = {
    "use": "auth_password",
    "config": {"path": "users.yaml", "unknown": "ignore", "anonymous": "ignore"},
}
TOKENS: dict[str, Any] = {"use": "auth_jwt", "config": {"secret": "s" * 40}}
OPTIONAL: dict[str, Any] = {"use": "auth_jwt", "config": {"secret": "s" * 40, "optional": True}}
LIMITS: dict[str, Any] = {"use": "ratelimit", "config": {"limits": [{"rate": "10/s"}]}}
ANYBODY = {"use": "auth_password", "config": {"path": "users.yaml", "anonymous": "allow"}}
SERVICE = {"use": "auth_http", "config": {"authenticate": {"url": "https://idp.example/a?x=1"}}}
RIGHTS = {"use": "auth_http", "config": {"authorize": {"url": "https://idp.example/b"}}}


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    users = tmp_path / "users.yaml"
    users.write_text("version: 1\nusers:\n  ann: {hash: null}\n")
    users.chmod(0o600)

    def run(default: str, *plugins: dict[str, Any], **listeners: str) -> str:
        binds = listeners or {"tcp": "*:1883"}
        config = {
            "version": 1,
            "listeners": [{"name": name, "bind": bind} for name, bind in binds.items()],
            "auth": {"default": default},
            "plugins": list(plugins),
        }
        (tmp_path / "hookmq.yaml").write_text(json.dumps(config))
        assert main(["check", "-c", "hookmq.yaml"]) == 0
        return str(capsys.readouterr().out)

    return run


OPEN = "anyone who can reach tcp (*:1883) may connect"
REFUSE = " refuses clients that only "


@pytest.mark.parametrize(
    ("default", "plugins", "text", "is_open"),
    [
        ("allow", [], "everybody: no plugin authenticates, and auth.default is allow", True),
        ("deny", [], "nobody: no plugin authenticates, and auth.default is deny", False),
        ("allow", [LIMITS], "everybody: no plugin authenticates", True),
        ("deny", [LIMITS], "nobody: no plugin authenticates", False),
        ("allow", [LIMITS, RIGHTS], "everybody: no plugin authenticates", True),
        ("allow", [OPTIONAL], "clients with a token (auth_jwt), else everybody", True),
        ("deny", [OPTIONAL], "clients with a token (auth_jwt), else nobody", False),
        ("allow", [TOKENS], "clients with a token (auth_jwt), else nobody", False),
        ("allow", [LIMITS, PASSWORDS], "users of users.yaml (auth_password), else nobody", False),
        ("allow", [SHARED], "users of users.yaml (auth_password), else everybody", True),
        (
            "deny",
            [ANYBODY],
            "users of users.yaml and clients without a user name (auth_password), else nobody",
            True,
        ),
        (
            "allow",
            [SERVICE],
            "clients that https://idp.example/a accepts (auth_http), else nobody",
            False,
        ),
    ],
)
def test_check_names_the_clients_that_may_connect(
    check: Any, default: str, plugins: list[dict[str, Any]], text: str, is_open: bool
) -> None:
    out = check(default, *plugins)
    assert f"connect  tcp      {text}" in out
    assert (OPEN in out) is is_open
    assert REFUSE not in out


def test_each_listener_has_its_own_line(check: Any) -> None:
    out = check(
        "allow",
        {**TOKENS, "listeners": ["far"]},
        near="127.0.0.1:1883",
        far="*:1884",
        open="*:1885",
    )
    assert "near     everybody: no plugin authenticates" in out
    assert "far      clients with a token (auth_jwt), else nobody" in out
    assert "anyone who can reach open (*:1885) may connect" in out
    out = check("deny", {**TOKENS, "listeners": ["far"]}, near="127.0.0.1:1883", far="*:1884")
    assert "no client can connect to near: auth.default is deny" in out


@pytest.mark.parametrize(
    ("plugins", "refuser", "hint"),
    [
        (
            [PASSWORDS, TOKENS],
            "auth_password",
            "auth_password: unknown: ignore and anonymous: ignore",
        ),
        ([TOKENS, PASSWORDS], "auth_jwt", "auth_jwt: optional: true"),
        ([SHARED, TOKENS], "auth_jwt", "set auth_jwt: optional: true"),
        ([OPTIONAL, PASSWORDS], "auth_password", "unknown: ignore"),
        ([OPTIONAL, SERVICE], "auth_http", "have the service answer ignore"),
    ],
)
def test_plugins_that_refuse_each_others_clients_are_told_how_to_share(
    check: Any, plugins: list[dict[str, Any]], refuser: str, hint: str
) -> None:
    out = check("deny", *plugins)
    assert f"{refuser}{REFUSE}" in out
    assert hint in out


def test_the_same_is_logged_at_start(check: Any, tmp_path: Path) -> None:
    check("deny", PASSWORDS, TOKENS, tcp="127.0.0.1:0")
    with serving("-c", str(tmp_path / "hookmq.yaml")) as served:
        [entry] = [one for one in served.log if one["event"] == "auth.refuse_each_other"]
    assert REFUSE in entry["text"]
    assert entry["listener"] == "tcp"


def test_plugins_that_share_are_not_warned_about(check: Any) -> None:
    out = check("deny", LIMITS, SHARED, OPTIONAL)
    assert (
        "users of users.yaml (auth_password) or clients with a token (auth_jwt), else nobody" in out
    )
    assert REFUSE not in out
    out = check(
        "deny",
        {**PASSWORDS, "listeners": ["a"]},
        {**TOKENS, "listeners": ["b"]},
        a="*:1883",
        b="*:1884",
    )
    assert REFUSE not in out


@pytest.mark.parametrize("command", [["jwt", "secret"], ["webhook", "secret"]])
def test_secrets_are_written_for_their_owner_alone(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert main([*command, "-o", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    first = path.read_text()
    assert main([*command, "-o", str(path)]) == 1, "a secret in use is not replaced"
    assert path.read_text() == first
