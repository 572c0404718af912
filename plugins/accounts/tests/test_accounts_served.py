"""Test `hookmq serve` with a real client and the commands. The broker starts empty, and a user created later survives a
restart.
"""

import subprocess
from functools import partial
from pathlib import Path

import pytest
from recording import V5, WAIT, Client
from serving import HOOKMQ, Served, serving

pytestmark = pytest.mark.slow
SECRET = "correct horse"


class Running:
    """A configuration with the plugins, and commands for the broker that uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "secret").write_text(SECRET + "\n")
        (folder / "other").write_text("another horse\n")
        self.config = folder / "hookmq.yaml"
        self.config.write_text(
            "version: 1\n"
            "listeners:\n"
            "  - {name: tcp, bind: '127.0.0.1:0'}\n"
            "  - {name: http, type: http, bind: '127.0.0.1:0'}\n"
            "plugins:\n"
            f"  - {{use: storage, config: {{path: {folder}/data}}}}\n"
            "  - {use: accounts, config: {argon2: {memory: 1MiB, passes: 1, lanes: 1}}}\n"
            f"  - {{use: admin, config: {{first_token_file: {folder}/token}}}}\n"
        )

    def admin(self, served: Served, *words: str, code: int = 0) -> str:
        """Run ``hookmq admin``, and return what it prints."""
        url = f"http://127.0.0.1:{served.ports['http']}/plugins/admin"
        told = subprocess.run(
            [*HOOKMQ, "admin", *words, "--url", url, "--token-file", str(self.folder / "token")],
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
        assert told.returncode == code, told.stderr
        return told.stdout or told.stderr


def ann(served: Served, password: str = SECRET) -> Client:
    return Client(served.ports["tcp"], "c1", V5, username="ann", password=password)


def test_a_user_is_managed_while_the_broker_runs(tmp_path: Path) -> None:
    running = Running(tmp_path)
    with serving("-c", str(running.config)) as served:
        admin = partial(running.admin, served)
        admin("users", "add", "ann", "--password-file", str(tmp_path / "secret"))
        admin("rules", "add", "--user", "ann", "allow", "publish,subscribe", "light/#")
        with ann(served) as client:
            assert client.subscribe("light/+", 1) == 1
            assert client.publish("light/1", b"on", 1) == 0
            assert client.message().topic == "light/1"
            assert admin("access", "ann", "publish", "door/1", code=1).startswith("denied")
            assert client.publish("door/1", b"", 1) == 0x87
            admin("rules", "add", "--user", "ann", "deny", "publish", "light/1", "--first")
            assert client.publish("light/1", b"off", 1) == 0x87
            admin("rules", "delete", "--user", "ann", "2")
            assert client.publish("light/1", b"off", 1) == 0
            admin("users", "password", "ann", "--password-file", str(tmp_path / "other"))
            assert client.ends.get(timeout=WAIT) == 0x87
        admin("users", "add", "bob", "--password-file", str(tmp_path / "secret"))
    with serving("-c", str(running.config)) as served:
        with ann(served, "another horse") as client:
            assert client.publish("light/1", b"on", 1) == 0x10
            assert client.publish("door/1", b"", 1) == 0x87
            running.admin(served, "users", "delete", "ann")
            assert client.ends.get(timeout=WAIT) == 0x87
        assert running.admin(served, "users", "list").splitlines()[1].startswith("bob")
        journal = (tmp_path / "data").rglob("*")
        files = [path.read_bytes() for path in journal if path.is_file()]
        assert files
        assert not any(SECRET.encode() in data for data in files)
        assert SECRET not in repr(served.log) + repr(served.errors)
