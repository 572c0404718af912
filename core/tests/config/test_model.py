"""Test how configurations are read from files, and the default configuration."""

import os
import pathlib

import pytest
from hookmq.config.model import DEFAULT_SOURCE, default_config, default_text, load, loads
from hookmq.model.errors import ConfigError
from hookmq.model.settings import Settings

SMALL = "version: 1\nlisteners: [{name: tcp}]\n"


def test_the_default_is_this_machine_only_and_open_to_it() -> None:
    config = default_config(environ={})
    assert [(one.name, one.type, one.bind) for one in config.listeners] == [
        ("tcp", "tcp", "127.0.0.1:1883"),
        ("ws", "ws", "127.0.0.1:8083"),
    ]
    assert config.listeners[1].websocket.path == "/mqtt"
    assert (config.auth.default, config.authz.default) == ("allow", "allow")
    assert config.source == DEFAULT_SOURCE
    [storage] = config.plugins
    assert (storage.use, storage.enabled, storage.required) == ("storage", True, "if_installed")
    assert storage.config == {"durability": "group"}


def test_the_default_file_contains_the_default_values() -> None:
    config = default_config(environ={})
    plain = loads(SMALL, environ={})
    assert (config.broker, config.session, config.log) == (plain.broker, plain.session, plain.log)
    assert plain.settings == Settings()


def test_the_examples_in_the_default_file_are_right() -> None:
    lines = default_text().splitlines()
    start = lines.index("plugins:")
    end = next(i for i in range(start, len(lines)) if not lines[i])
    lines[start:end] = [
        line.replace("#", " ", 1) if line.startswith("# ") else line for line in lines[start:end]
    ]
    text = "\n".join(lines).replace("{$file: /run/secrets/hook}", "x")
    config = loads(text, environ={"AUDIT_URL": "http://x"})
    assert [entry.id for entry in config.plugins] == ["storage", "auth_file", "audit"]
    assert config.plugins[2].config["url"] == "http://x"
    assert config.plugins[2].options("on_published").queue == 5000


def test_a_file_is_read_with_its_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "reference").write_text("other.example\n")
    path = tmp_path / "hookmq.yaml"
    path.write_text(SMALL + "broker: {server_reference: {$file: reference}}\n")
    config = load(path, environ={})
    assert config.broker.server_reference == "other.example"
    assert config.source == str(path)


def test_a_missing_file_says_how_to_get_one(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file or directory \(`hookmq config init`"):
        load(tmp_path / "none.yaml")


def test_paths_are_relative_to_the_file_that_holds_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are relative to the file that contains them, including those in `$file`. Paths on the
    command line are relative to the working folder.
    """
    text = """version: 1
listeners:
  - {name: a, type: tls, bind: '*:8883', tls: {certificate: server.pem, key: /etc/server.key}}
"""
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "hookmq.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for path in ("etc/hookmq.yaml", str(folder / "hookmq.yaml")):
        tls = load(path, (), {}).listeners[0].tls
        assert tls is not None
        assert os.path.abspath(tls.certificate) == str(folder / "server.pem")
        assert (tls.key, tls.crl) == ("/etc/server.key", "")
    tls = load(path, ["listeners.0.tls.certificate=other.pem"], {}).listeners[0].tls
    assert tls is not None
    assert os.path.abspath(tls.certificate) == str(tmp_path / "other.pem")
