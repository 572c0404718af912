"""The commands that fill and read a cluster, on a real nats-server and with the plugin storage."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.cli import main
from hookmq_storage.plugin import StorageConfig, StoragePlugin
from hookmq_testing import Harness, make_plugin
from nats_server import NatsServer

EXPIRY = 3600
NODE = """\
version: 1
listeners: [{name: tcp, bind: 127.0.0.1:0}]
plugins: [{use: cluster, config: {node: a, allow_single_replica: true, replicas: 1, servers: [%s]}}]
"""


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """Return a running server."""
    server = NatsServer()
    yield server
    server.close()


def config_of(server: NatsServer, folder: Path) -> str:
    """Write the configuration of a node, and return its path."""
    file = folder / "node.yaml"
    file.write_text(NODE % server.url)
    return str(file)


def fill(folder: Path, clients: int = 20) -> None:
    """Let a broker with the plugin storage fill `folder`."""
    plugin = make_plugin(StoragePlugin, StorageConfig(folder))
    with Harness([plugin]) as broker:
        for number in range(clients):
            one = broker.connect(f"c{number}", session_expiry_interval=EXPIRY)
            one.subscribe([("t/#", 1), ("$share/g/work", 1)])
            one.disconnect()
        publisher = broker.connect("p")
        for number in range(5):
            publisher.publish(f"t/{number}", b"%d" % number, 1 + number % 2, retain=True)
            publisher.publish("work", b"%d" % number, 1)


def lines_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return an export of a folder, without ids."""
    capsys.readouterr()
    assert main(["storage", "export", str(folder)]) == 0
    found = []
    for text in capsys.readouterr().out.splitlines():
        line = json.loads(text)
        found.append(json.dumps({k: v for k, v in line.items() if k not in ("id", "publisher")}))
    return sorted(found)


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the JSON that the last command printed."""
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_folder_moves_to_a_cluster_and_back(
    server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, old, new = config_of(server, tmp_path), tmp_path / "old", tmp_path / "new"
    fill(old)
    command = ["cluster", "import", "-c", config, "--from", str(old), "--nodes", "a,b", "--json"]
    assert main([*command, "--dry-run"]) == 0
    planned = printed(capsys)
    for reading in (["backup", str(tmp_path / "none")], ["export", "--to", str(new)]):
        assert main(["cluster", reading[0], "-c", config, *reading[1:]]) == 1
        assert (
            "cluster 'hookmq' has no contents: the NATS servers have no" in capsys.readouterr().err
        )
    assert main(["cluster", "check", "-c", config]) == 0
    assert "HOOKMQ_hookmq does not exist" in capsys.readouterr().out
    assert planned.pop("dry_run") is True
    assert main(command) == 0
    counts = printed(capsys)
    assert counts.pop("dry_run") is False
    assert counts == planned
    assert (counts["sessions"], counts["subscriptions"], counts["retained"]) == (20, 40, 5)
    assert (counts["queue_entries"], counts["shared_entries"]) == (105, 5)
    assert main(command) == 1
    assert "already has 20 sessions, 105 queued messages, 5 retained" in capsys.readouterr().err
    assert main([*command, "--replace"]) == 0
    part = tmp_path / "new.part"
    part.mkdir()
    (part / "left").write_text("of an earlier attempt")
    assert main(["cluster", "export", "-c", config, "--to", str(new)]) == 0
    assert "sessions        20" in capsys.readouterr().out
    assert not (new / "left").exists()
    assert lines_of(new, capsys) == lines_of(old, capsys)
    assert main(["cluster", "export", "-c", config, "--to", str(new)]) == 1
    assert f"{new} exists already" in capsys.readouterr().err


def test_a_source_without_a_store_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(NODE % "nats://127.0.0.1:1")
    command = ["cluster", "import", "-c", str(config), "--from"]
    assert main([*command, str(tmp_path)]) == 1
    assert f"the folder {tmp_path} contains no store" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "none")]) == 2
    assert f"{tmp_path}/none: no such file or folder" in capsys.readouterr().err
    assert main([*command, str(config)]) == 2
    assert "no plugin stores the broker's state" in capsys.readouterr().err


def test_names_of_nodes_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "old", 1)
    config = tmp_path / "node.yaml"
    config.write_text(NODE % "nats://127.0.0.1:1")
    command = ["cluster", "import", "-c", str(config), "--from", str(tmp_path / "old")]
    assert main([*command, "--nodes", "a,b c"]) == 2
    assert "--nodes: 'b c' must have 1 to 63 letters" in capsys.readouterr().err


@pytest.mark.slow
def test_a_backup_fills_another_cluster(
    server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, old, new = config_of(server, tmp_path), tmp_path / "old", tmp_path / "new"
    file = str(tmp_path / "cluster.backup")
    fill(old)
    assert main(["cluster", "import", "-c", config, "--from", str(old), "--nodes", "a,b"]) == 0
    capsys.readouterr()
    assert main(["cluster", "backup", "-c", config, file, "--json"]) == 0
    counts = printed(capsys)
    assert (counts["lanes"], counts["sessions"], counts["retained"]) == (2, 20, 5)
    assert Path(file).stat().st_mode & 0o777 == 0o600
    assert main(["cluster", "backup", "-c", config, file]) == 1
    assert "exists already" in capsys.readouterr().err
    other = ["-o", "plugins.0.config.name=other"]
    assert main(["cluster", "restore", "-c", config, *other, file, "--dry-run"]) == 0
    found = capsys.readouterr().out
    assert "dry run: nothing was changed; it would have restored from" in found
    assert "into cluster 'other'" in found
    assert main(["cluster", "check", "-c", config, *other]) == 0
    assert "HOOKMQ_other does not exist" in capsys.readouterr().out
    assert main(["cluster", "restore", "-c", config, file, "--dry-run"]) == 1
    assert "cluster 'hookmq' already has 20 sessions" in capsys.readouterr().err
    assert main(["cluster", "restore", "-c", config, *other, file]) == 0
    assert main(["cluster", "export", "-c", config, *other, "--to", str(new)]) == 0
    assert lines_of(new, capsys) == lines_of(old, capsys)
    assert main(["cluster", "restore", "-c", config, *other, file]) == 1
    assert "already has 20 sessions" in capsys.readouterr().err
    content = Path(file).read_bytes()
    Path(file).write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    assert main(["cluster", "restore", "-c", config, *other, file, "--replace"]) == 1
    assert "is damaged or cut off" in capsys.readouterr().err
