"""Test that ``hookmq serve`` without a configuration keeps acknowledged data, in a folder whose
name it prints.
"""

import os
import subprocess
from pathlib import Path

import pytest
from hookmq.plugin import ConfigError
from hookmq_storage.plugin import StorageConfig
from hookmq_testing import run_command
from recording import V5, Client
from serving import HOOKMQ, serving

BIND = ("-o", "listeners[0].bind=127.0.0.1:0", "-o", "listeners[1].bind=127.0.0.1:0")


@pytest.mark.parametrize(
    ("service", "state", "folder"),
    [
        ("", "", "/home/ada/.local/state/hookmq/storage"),
        ("", "relative", "/home/ada/.local/state/hookmq/storage"),
        ("", "/state", "/state/hookmq/storage"),
        ("/var/lib/hookmq", "/state", "/var/lib/hookmq/storage"),
        ("/var/lib/hookmq:/var/lib/other", "", "/var/lib/hookmq/storage"),
    ],
)
def test_the_default_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, service: str, state: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("STATE_DIRECTORY", service)
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert StorageConfig().path == Path(folder)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the user has no home directory, no folder named ``~`` is created in the working directory. In a container, for
    example, the user that runs the broker may have no home directory.
    """
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ConfigError, match="no home directory for state; name another folder"):
        StorageConfig()


def test_acknowledged_state_survives_outside_the_working_directory(
    tmp_path: Path,
) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    folder = tmp_path / "state/hookmq/storage"
    for present in (False, True):
        with serving(*BIND, cwd=cwd, environ={"XDG_STATE_HOME": str(tmp_path / "state")}) as broker:
            [opened] = [entry for entry in broker.log if entry["event"] == "storage.opened"]
            assert (opened["folder"], opened["durability"]) == (str(folder), "group")
            assert "store.memory" not in [entry["event"] for entry in broker.log]
            client = Client(broker.ports["tcp"], "ada", V5, clean=False, expiry=600)
            assert client.connect() == (0, present)
            client.paho.disconnect()
            client.paho.loop_stop()
    assert list(cwd.iterdir()) == []
    assert folder.joinpath("hookmq.db").exists()


def test_a_folder_that_cannot_be_made_is_told_with_the_cure(tmp_path: Path) -> None:
    """If the folder cannot be created, the error is one line with advice. The broker does not fall back to an in-memory
    store.
    """
    (tmp_path / "state").write_text("no folder")
    done = subprocess.run(
        [*HOOKMQ, "serve", *BIND],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"hookmq: {tmp_path}/state is a file, not a folder; name another folder with --data-dir, or as `path` of"
        " the plugin"
    ]


@pytest.mark.slow
def test_two_brokers_without_a_configuration(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with serving(*BIND, environ=environ) as first:
        done = subprocess.run(
            [*HOOKMQ, "serve", *BIND],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 1
        assert f"is in use by process {first.process.pid}; two brokers cannot" in done.stderr
        assert "--data-dir" in done.stderr
        with serving(*BIND, "--data-dir", str(tmp_path / "second"), environ=environ):
            pass
    assert (tmp_path / "second/hookmq.db").exists()


def test_check_and_show_name_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = f"{tmp_path}/hookmq/storage"
    assert run_command(["check"]) == 0
    assert f"plugin storage in {folder} (group: survives a power cut)" in capsys.readouterr().out
    assert run_command(["config", "show", "--no-origins"]) == 0
    assert f"path: {folder}\n" in capsys.readouterr().out
    assert run_command(["config", "init", str(tmp_path / "hookmq.yaml")]) == 0
    capsys.readouterr()
    words = ["-c", str(tmp_path / "hookmq.yaml"), "--data-dir", "/srv/mqtt"]
    assert run_command(["check", *words]) == 0
    assert "plugin storage in /srv/mqtt (group" in capsys.readouterr().out
    assert list(tmp_path.glob("hookmq/*")) == []
