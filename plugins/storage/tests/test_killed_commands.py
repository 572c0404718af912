"""Test killing ``hookmq storage`` at any operation. A broker then finds all the data or reports an error, and the
command can be run again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hookmq.plugin import Message
from hookmq.storage_api import PutRetained
from hookmq_storage.folder import DATABASE
from hookmq_storage.store import SQLiteStore
from hookmq_testing import run_command
from hookmq_testing.runtime import VirtualRuntime

COUNT = 5


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """Create a store and kill it, so that most of its data is still in the log. Export it as well."""
    folder = tmp_path / "template"
    store = SQLiteStore(folder / "data", VirtualRuntime())
    list(store.load())
    for number in range(COUNT):
        store.commit([PutRetained(Message(f"t/{number}", b"x", 1, True))], lambda result: None)
    assert (
        run_command(["storage", "export", str(folder / "data"), "-o", str(folder / "lines")]) == 0
    )
    files = {path.name: path.read_bytes() for path in (folder / "data").iterdir()}
    store.close(lambda: None)
    for name, data in files.items():
        if not name.endswith("-shm"):
            (folder / "data" / name).write_bytes(data)
    assert len(files[DATABASE]) < 3 * 4096 < len(files[f"{DATABASE}-wal"])
    return folder


def killed(tmp_path: Path, template: Path, store: str, *words: str) -> list[dict[str, Any]]:
    # SIGKILL needs no disk, and in memory an fsync takes no time.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    script = Path(__file__).with_name("killing_commands.py")
    with TemporaryDirectory(dir=memory) as work:
        call = [sys.executable, str(script), str(template), work, store, "storage", *words]
        done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["code"] for one in lines] == [-9] * (len(lines) - 1) + [0]
    assert len(lines) > 2
    return lines


@pytest.mark.slow
def test_repair(tmp_path: Path, template: Path) -> None:
    for one in killed(tmp_path, template, "data", "repair", "@/data"):
        assert one["found"] == COUNT, one
        assert (one["again"], one["then"]) == (0, COUNT), one


@pytest.mark.slow
def test_vacuum(tmp_path: Path, template: Path) -> None:
    for one in killed(tmp_path, template, "data", "vacuum", "@/data"):
        assert one["found"] == COUNT, one
        assert (one["again"], one["then"]) == (0, COUNT), one


@pytest.mark.slow
def test_import(tmp_path: Path, template: Path) -> None:
    """A killed import leaves either an empty store or all the data."""
    lines = killed(tmp_path, template, "new", "import", "@/new", "@/lines")
    for one in lines:
        assert one["found"] in (0, COUNT), one
        assert one["then"] == COUNT, one
        assert one["again"] == (0 if one["found"] == 0 else one["again"]), one
    assert lines[-1]["found"] == COUNT
    assert lines[0]["found"] == 0


@pytest.mark.slow
def test_backup(tmp_path: Path, template: Path) -> None:
    """If a backup is killed, the target either does not exist or is a complete copy. If it does not exist, the same
    name can be used again.
    """
    lines = killed(tmp_path, template, "copy", "backup", "@/data", "@/copy")
    for one in lines[:-1]:
        missing = one["found"] == 0 and one["files"] == [] and one["again"] == 0
        assert missing or one["found"] == COUNT, one
        assert one["then"] == COUNT, one
    assert lines[-1]["found"] == COUNT
