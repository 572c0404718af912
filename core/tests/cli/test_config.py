"""``check``, ``config`` and ``plugins``, run in this process."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import trustme
from hookmq.cli import main
from hookmq.config.model import loads
from hookmq.hooks.discovery import Installed
from hookmq.plugin import Accept, Plugin, hookimpl

Captured = pytest.CaptureFixture[str]
HEAD = "version: 1\nlisteners: [{name: tcp}]\n"


class Door(Plugin):
    @hookimpl
    def on_connect(self, client: Any) -> Accept | None:
        return Accept()

    @hookimpl
    async def on_published(self, message: Any) -> None:
        return None


class Point:
    def __init__(self, load: Callable[[], Any]) -> None:
        self.load = load


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> None:
    point: Any = Point(lambda: Door)
    offered = (Installed("door", "m:Door", "hookmq-door", "1.2", point),)
    monkeypatch.setattr("hookmq.config.plugins.installed", lambda: offered)
    monkeypatch.setattr("hookmq.hooks.discovery.installed", lambda: offered)
    monkeypatch.setattr("hookmq.hooks.discovery.load", lambda found, plugin_id="": Door)


def write(folder: pathlib.Path, text: str) -> str:
    path = folder / "hookmq.yaml"
    path.write_text(HEAD + text)
    return str(path)


@pytest.fixture
def core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no distribution but the core were installed."""
    monkeypatch.setattr("hookmq.config.plugins.installed", tuple)


def test_the_default_is_right_and_says_what_it_means(core_alone: None, capsys: Captured) -> None:
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("built-in default: right\n")
    assert "mqtt://127.0.0.1:1883" in out
    assert "ws://127.0.0.1:8083/mqtt" in out
    assert "tcp      everybody: no plugin authenticates, and auth.default is allow" in out
    assert "memory: nothing survives a restart" in out
    assert (
        "a restart forgets them; to keep them, in a checkout: uv pip install ./plugins/storage"
        in out
    )
    assert main(["serve", "--check"]) == 0
    assert capsys.readouterr().out == out


def test_the_folder_of_the_store_is_told_and_chosen(
    door: None, tmp_path: pathlib.Path, capsys: Captured
) -> None:
    path = write(tmp_path, "plugins: [{use: door}]\n")
    assert main(["check", "-c", path, "--data-dir", "x"]) == 2
    err = capsys.readouterr().err
    assert f"option --data-dir: {path} has no plugin 'storage', so that nothing is kept" in err
    assert main(["check", "-c", path]) == 0
    assert "to keep them: the plugin storage" in capsys.readouterr().out
    assert main(["config", "show", "--data-dir", "some/where", "--no-origins"]) == 0
    assert "path: some/where\n" in capsys.readouterr().out
    assert main(["config", "show", "--data-dir", "1", "-o", "plugins.0.id=x"]) == 0
    assert "-o plugins.0.config.path" in capsys.readouterr().out


def test_what_is_open_to_the_network_is_pointed_out(capsys: Captured) -> None:
    assert main(["check", "-o", "listeners.0.bind=*:1883"]) == 0
    assert "everybody who reaches tcp (*:1883) may connect" in capsys.readouterr().out


def test_who_must_show_a_certificate_to_a_proxy_is_not_anonymous(
    tmp_path: pathlib.Path, capsys: Captured
) -> None:
    path = tmp_path / "hookmq.yaml"
    path.write_text(
        "version: 1\nlisteners:\n"
        "  - {name: tcp, bind: '*:1883', proxy_protocol: v2, trusted_proxies: [10.0.0.1], identity: common_name}\n"
        "auth: {default: allow}\nauthz: {default: allow}\n"
    )
    assert main(["check", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert "connect  tcp      everybody with a certificate: no plugin authenticates" in out
    assert "anonymous" not in out
    assert "may connect" not in out


def test_who_must_show_a_certificate_is_not_anonymous(
    tmp_path: pathlib.Path, capsys: Captured
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "server.pem"
    )
    text = (
        "version: 1\nlisteners:\n  - name: tls\n    type: tls\n    bind: '*:8883'\n    tls:\n"
        f"      certificate: {tmp_path}/server.pem\n      client_ca: {tmp_path}/ca.pem\n"
        "      client_certificates: %s\nauth: {default: allow}\n"
    )
    path = tmp_path / "hookmq.yaml"
    path.write_text(text % "required")
    assert main(["check", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert "connect  tls      everybody with a certificate: no plugin authenticates" in out
    assert "may connect" not in out
    assert "anonymous" not in out
    path.write_text(text % "optional")
    assert main(["check", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert "connect  tls      everybody: no plugin authenticates" in out
    assert "everybody who reaches tls (*:8883) may connect" in out


def test_a_broker_for_nobody_is_pointed_out(tmp_path: pathlib.Path, capsys: Captured) -> None:
    assert main(["check", "-c", write(tmp_path, "")]) == 0
    assert "nobody can connect" in capsys.readouterr().out


def test_plugins_decide(door: None, tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = write(tmp_path, "plugins: [{use: door}, {use: door, id: x, enabled: false}]\n")
    assert main(["check", "-c", path]) == 0
    out = capsys.readouterr().out
    assert "connect  tcp      whom door accepts, else nobody" in out
    assert "plugin   door (hookmq-door 1.2)" in out
    assert "off      x" in out
    assert main(["check", "-q", "-c", path]) == 0
    assert capsys.readouterr().out == ""


def test_wrong_configurations_exit_with_2(tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = write(tmp_path, "broker: {max_qos: 3}\nlop: auto\n")
    assert main(["check", "-c", path]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "hookmq: 2 errors in the configuration:",
        f"  {path}:3:19: broker.max_qos: expected at most 2, found 3",
        f"  {path}:4:1: lop: unknown key (did you mean 'loop'?)",
    ]
    assert main(["check", "-o", "x"]) == 2
    assert capsys.readouterr().err == "hookmq: option -o x: expected KEY=VALUE\n"


def test_a_missing_plugin_exits_with_3(tmp_path: pathlib.Path, capsys: Captured) -> None:
    assert main(["check", "-c", write(tmp_path, "plugins: [{use: no_such_thing}]\n")]) == 3
    assert "pip install" not in capsys.readouterr().err


def test_certificates_are_read(tmp_path: pathlib.Path, capsys: Captured) -> None:
    text = "version: 1\nlisteners:\n  - {type: tls, tls: {certificate: '%s'}}\n"
    path, pem = tmp_path / "f.yaml", tmp_path / "server.pem"
    path.write_text(text % pem)
    assert main(["check", "-c", str(path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"hookmq: {path}:3:22: listeners[0].tls: tls.certificate"
    )
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    assert main(["check", "-c", str(path)]) == 0


def test_uvloop_must_be_installed(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", "--check", "--loop", "uvloop"]) == 2
    assert "uvloop is not installed (pip install uvloop)" in capsys.readouterr().err


def test_show(capsys: Captured) -> None:
    assert main(["config", "show", "-o", "broker.max_qos=1", "--no-origins"]) == 0
    assert loads(capsys.readouterr().out, environ={}).broker.max_qos == 1
    assert main(["config", "show", "-o", "broker.max_qos=1"]) == 0
    assert "# option -o broker.max_qos" in capsys.readouterr().out


def test_schema_and_reference(door: None, capsys: Captured) -> None:
    assert main(["config", "schema"]) == 0
    assert "plugin_door" in json.loads(capsys.readouterr().out)["$defs"]
    assert main(["config", "reference"]) == 0
    assert capsys.readouterr().out.startswith("# Configuration\n")


def test_init_writes_once(tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = str(tmp_path / "new.yaml")
    assert main(["config", "init", path]) == 0
    assert main(["check", "-q", "-c", path]) == 0
    capsys.readouterr()
    assert main(["config", "init", path]) == 2
    assert capsys.readouterr().err == f"hookmq: {path} exists (--force overwrites it)\n"
    assert main(["config", "init", "--force", path]) == 0
    capsys.readouterr()
    assert main(["config", "init"]) == 0
    assert capsys.readouterr().out == pathlib.Path(path).read_text()
    assert main(["config", "show", "extra"]) == 2


def test_plugins_are_listed(door: None, tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = write(tmp_path, "plugins: [{use: door, id: d, listeners: [tcp]}]\n")
    assert main(["plugins", "-c", path, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["use"], row["hooks"], row["listeners"]) == (
        "d", "door", ["on_connect", "on_published"], ["tcp"],
    )  # fmt: skip
    assert main(["plugins", "--installed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "distribution", "version", "api", "hooks"]
    assert lines[1].split() == ["door", "hookmq-door", "1.2", ">=1.0,<2", "on_connect,on_published"]
    assert main(["plugins"]) == 0
    assert "names no plugins" in capsys.readouterr().out


def test_a_hook_is_explained(door: None, tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = write(tmp_path, "plugins: [{use: door}]\n")
    assert main(["plugins", "explain", "on_connect", "-c", path]) == 0
    out = capsys.readouterr().out
    assert out.startswith("on_connect(client, connect, broker): decide, answers within 5 s\n")
    assert "door" in out
    assert main(["plugins", "explain", "on_conect", "-c", path]) == 2
    assert "there is no hook 'on_conect' (did you mean 'on_connect'?)" in capsys.readouterr().err
    assert main(["plugins", "explain"]) == 2
    assert main(["plugins", "list", "on_connect"]) == 2
    capsys.readouterr()
    assert main(["plugins", "explain", "authorize", "-c", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
