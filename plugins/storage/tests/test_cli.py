"""Test the command ``hookmq storage``."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Message
from hookmq.storage_api import (
    Enqueue,
    Loaded,
    PutMessage,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    Record,
    SetPacket,
    state_space,
    timer_space,
)
from hookmq_storage.check import problems
from hookmq_storage.database import connect_reading, copy, state
from hookmq_storage.folder import DATABASE
from hookmq_storage.schema import VERSION
from hookmq_storage.store import SQLiteStore
from hookmq_testing import run_command
from hookmq_testing.contracts import MESSAGE, SESSION, SUBSCRIPTION, fields_of
from hookmq_testing.runtime import VirtualRuntime

CONTENT: list[Record] = [
    PutSession(SESSION),
    PutSession(
        SESSION._replace(
            client=SESSION.client._replace(client_id="c2", claims={}), will=None, will_at=None
        )
    ),
    PutSubscription("c1", SUBSCRIPTION),
    PutReceived("c1", 65535),
    PutRetained(MESSAGE),
    PutRetained(Message("r/1", b"\0\xff", 0, True)),
    PutMessage(1, MESSAGE),
    PutMessage(2, Message("m/2", b"two", 1)),
    Enqueue("c/c1", 1, 1, 2, 256, True, (1, 2), "a/#", 7, True),
    Enqueue("c/c1", 2, 2, 1, 6),
    Enqueue("c/c2", -5, 2, 1, 6),
    Enqueue("g/x/a", 9, 2, 1, 6, group="g/x/a"),
    PutState(state_space("counter"), "ä", b"\0\xff345"),
    PutState(timer_space("counter"), "b", b"1", 1e9),
]


@pytest.fixture
def folder(tmp_path: Path, runtime: VirtualRuntime) -> Path:
    """Create a store with records of every kind."""
    store = SQLiteStore(tmp_path / "data", runtime)
    list(store.load())
    told: list[Any] = []
    store.commit(CONTENT, told.append)
    store.commit([SetPacket("c/c1", 1, 8, True)], told.append)
    assert len(told) == 2
    store.close(lambda: None)
    return tmp_path / "data"


def shown(loaded: Loaded) -> str:
    if isinstance(loaded, PutMessage | PutRetained):
        return repr((type(loaded), getattr(loaded, "id", 0), fields_of(loaded.message)))
    if isinstance(loaded, PutSession):
        one = loaded.session
        will = None if one.will is None else (fields_of(one.will.message), one.will.delay)
        return repr((one._replace(will=None), will))
    return repr(loaded)


def contents(folder: Path) -> list[str]:
    store = SQLiteStore(folder, VirtualRuntime())
    loaded = list(store.load())
    found = [shown(one) for one in loaded]
    for owner in ("c/c1", "c/c2", "g/x/a"):
        pages: list[Any] = []
        store.read(owner, -100, 100, 1 << 20, pages.append)
        found += [repr((entry, fields_of(message))) for entry, message in pages[0]]
    store.close(lambda: None)
    return sorted(found)


def test_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["storage", "info", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: told[name] for name in ("version", "commit", "sessions", "messages")} == {
        "version": VERSION, "commit": 2, "sessions": 2, "messages": 2,
    }  # fmt: skip
    assert (told["queue_entries"], told["retained"], told["in_use_by"]) == (4, 2, None)
    assert run_command(["storage", "info", str(folder)]) == 0
    assert "in use by      nobody" in capsys.readouterr().out


def test_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = SQLiteStore(folder, VirtualRuntime())
    list(store.load())
    told: list[object] = []
    records = [
        PutState(state_space("counter"), "b", b""),
        PutState(state_space("old"), "a", b"1"),
        PutState(timer_space("old"), "a", b"", 5.0),
    ]
    store.commit(records, told.append)
    # The lock is the broker's.
    assert run_command(["storage", "state", str(folder), "--delete", "old"]) == 1
    assert "stop the broker first" in capsys.readouterr().err
    store.close(lambda: None)
    assert run_command(["storage", "state", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "counter              2 keys, 1 timers, 10 bytes",
        "old                  1 keys, 1 timers, 3 bytes",
    ]
    assert run_command(["storage", "info", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plugin_state"] == 5
    assert run_command(["storage", "state", str(folder), "--delete", "nobody"]) == 1
    assert "contains no state of plugin 'nobody'" in capsys.readouterr().err
    assert run_command(["storage", "state", str(folder), "--delete", "old"]) == 0
    assert capsys.readouterr().out == "2 keys and timers of old deleted\n"
    assert run_command(["storage", "state", str(folder), "--json"]) == 0
    left = {"plugin": "counter", "keys": 2, "timers": 1, "bytes": 10}
    assert json.loads(capsys.readouterr().out) == [left]
    assert run_command(["storage", "check", str(folder)]) == 0
    assert run_command(["storage", "state", str(folder), "--delete", "counter"]) == 0
    capsys.readouterr()
    assert run_command(["storage", "state", str(folder)]) == 0
    assert capsys.readouterr().out == "no plugin keeps state\n"


def test_damaged_state_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = SQLiteStore(folder, VirtualRuntime())
    list(store.load())
    told: list[object] = []
    store.commit([PutState(state_space("p"), key, b"1") for key in "ab"], told.append)
    store.close(lambda: None)
    db = sqlite3.connect(folder / DATABASE, isolation_level=None)
    db.execute("UPDATE plugin_state SET value = x'02' WHERE key = 'b' AND space = 's/p'")
    db.close()
    assert run_command(["storage", "check", str(folder)]) == 1
    assert "plugin_state 's/p': wrong checksum" in capsys.readouterr().out
    assert run_command(["storage", "repair", str(folder)]) == 0
    assert "lost: plugin_state 4: wrong checksum" in capsys.readouterr().out
    store = SQLiteStore(folder, VirtualRuntime())
    kept = [one for one in store.load() if isinstance(one, PutState)]
    assert PutState(state_space("p"), "a", b"1") in kept
    assert len(kept) == 3
    store.close(lambda: None)


def test_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["storage", "check", str(folder)]) == 0
    assert "is intact" in capsys.readouterr().out
    db = sqlite3.connect(folder / DATABASE, isolation_level=None)
    db.execute("UPDATE message SET payload = x'01' WHERE id = 2")
    db.close()
    assert run_command(["storage", "check", str(folder)]) == 1
    told = capsys.readouterr().out
    assert "message 2: wrong checksum" in told
    assert "repair" in told


def test_export_and_import(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    assert run_command(["storage", "export", str(folder), "-o", str(lines)]) == 0
    assert lines.stat().st_mode & 0o777 == 0o600
    assert run_command(["storage", "import", str(tmp_path / "new"), str(lines)]) == 0
    assert contents(tmp_path / "new") == contents(folder)
    assert run_command(["storage", "export", str(tmp_path / "new")]) == 0
    capsys.readouterr()
    assert run_command(["storage", "export", str(folder)]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(lines.read_text().splitlines())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the export is cut off after line 0"),
        ('{"kind": "other"}\n', "line 1: not an export of hookmq storage"),
        ("nonsense\n", "line 1: not a line of an export"),
        ('{"kind": "hookmq-storage", "version": 1}\n{"kind": "retained"}\n', "line 2: not a line"),
    ],
)
def test_import_of_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    (tmp_path / "lines").write_text(text)
    code = run_command(["storage", "import", str(tmp_path / "new"), str(tmp_path / "lines")])
    told = capsys.readouterr()
    assert says in told.out + told.err
    assert code == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]


def test_import_into_a_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    assert run_command(["storage", "import", str(folder), "/dev/null"]) == 1
    assert "already contains a store" in capsys.readouterr().err
    assert contents(folder) == before


def test_backup_of_a_store_in_use(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    store = SQLiteStore(folder, VirtualRuntime())
    list(store.load())
    assert run_command(["storage", "backup", str(folder), str(tmp_path / "copy")]) == 0
    assert run_command(["storage", "info", str(folder)]) == 0
    assert run_command(["storage", "vacuum", str(folder)]) == 1
    assert "in use by process" in capsys.readouterr().err
    store.close(lambda: None)
    copy = SQLiteStore(tmp_path / "copy", VirtualRuntime(seed=1))
    assert copy.identity != store.identity
    assert copy.last_commit().number == 2
    copy.close(lambda: None)
    assert contents(tmp_path / "copy") == before
    assert run_command(["storage", "backup", str(folder), str(tmp_path / "copy")]) == 1
    assert "exists" in capsys.readouterr().err


def test_a_copy_is_of_one_moment(tmp_path: Path, folder: Path) -> None:
    """A copy shows the store at a single moment, regardless of later commits. A commit must not make copying start
    over.
    """
    store = SQLiteStore(folder, VirtualRuntime())
    list(store.load())
    commits: list[Any] = []

    def progress(done: int, total: int) -> None:
        store.commit([PutRetained(Message("r/1", bytes(5000), 1, True))], commits.append)

    with closing(connect_reading(folder)) as db:
        copy(db, tmp_path / "copy.db", progress, pages=1)
    assert len(commits) >= 10
    assert store.last_commit().number == 2 + len(commits)
    store.close(lambda: None)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as db:
        assert state(db).number == 2
        assert list(problems(db, thorough=True)) == []


def test_vacuum(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    assert run_command(["storage", "vacuum", str(folder)]) == 0
    assert "bytes before" in capsys.readouterr().out
    assert contents(folder) == before


def test_repair_of_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    db = sqlite3.connect(folder / DATABASE, isolation_level=None)
    db.execute("UPDATE message SET payload = x'01' WHERE id = 2")
    db.execute("UPDATE retained SET topic = 'r/2' WHERE topic = 'r/1'")
    db.close()
    assert run_command(["storage", "repair", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "lost: message 2: wrong checksum" in told
    assert "lost: retained 3: wrong checksum" in told or "lost: retained 2: wrong checksum" in told
    assert "5 lost" in told  # and three entries of the message
    assert run_command(["storage", "check", str(folder)]) == 0
    after = contents(folder)
    assert len(after) < len(before)
    assert any("SessionRecord" in one and "c1" in one for one in after)
    [saved] = folder.glob("saved-repair-*")
    assert (saved / "damaged" / DATABASE).exists()
    assert [path.name for path in saved.iterdir()] == ["damaged"]


def test_repair_of_a_whole_store_keeps_everything(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    assert run_command(["storage", "repair", str(folder)]) == 0
    assert " 0 lost" in capsys.readouterr().out
    assert contents(folder) == before


def test_repair_of_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    store = SQLiteStore(folder, VirtualRuntime())
    list(store.load())
    messages = (Message(f"t/{number}", bytes(1000), 1, True) for number in range(400))
    store.commit([PutRetained(message) for message in messages], lambda result: None)
    store.close(lambda: None)
    path = folder / DATABASE
    data = bytearray(path.read_bytes())
    at = len(data) // 2 // 4096 * 4096
    data[at : at + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    assert run_command(["storage", "repair", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "malformed" in told
    assert run_command(["storage", "check", str(folder)]) == 0
    again = SQLiteStore(folder, VirtualRuntime())
    kept = sum(isinstance(one, PutRetained) for one in again.load())
    assert 390 <= kept < 400
    again.close(lambda: None)


def test_repair_accepts_a_store_that_lacks_commits(
    folder: Path, runtime: VirtualRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    older = (folder / DATABASE).read_bytes()
    store = SQLiteStore(folder, runtime)
    list(store.load())
    store.commit([PutRetained(Message("later", b"x", 1, True))], lambda result: None)
    identity = store.identity
    store.close(lambda: None)
    (folder / DATABASE).write_bytes(older)
    assert run_command(["storage", "check", str(folder)]) == 1
    assert "commit 3 was safe, but the database ends at 2" in capsys.readouterr().out
    assert run_command(["storage", "repair", "--accept", str(folder)]) == 0
    assert "accepted as it is" in capsys.readouterr().out
    again = SQLiteStore(folder, VirtualRuntime(seed=1))
    assert again.last_commit().number == 2
    assert again.identity != identity, "a journal must not take it for the old one"
    again.close(lambda: None)


@pytest.mark.parametrize("command", ["info", "check", "repair", "export", "vacuum"])
def test_no_store_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run_command(["storage", command, str(tmp_path / "none")]) == 1
    assert "contains no store" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
