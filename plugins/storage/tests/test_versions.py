"""Test that databases of every older version (`versions/N.sql`) are migrated to this version without loss.

The tables and indexes are the same as in a new database. `versions/N.jsonl` contains the expected
data.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hookmq_storage.folder import DATABASE
from hookmq_storage.schema import APPLICATION_ID, VERSION
from hookmq_storage.store import SQLiteStore
from hookmq_testing import run_command
from hookmq_testing.runtime import VirtualRuntime

VERSIONS = Path(__file__).parent / "versions"


def old(folder: Path, version: int) -> None:
    """Create a store as written by `version`."""
    folder.mkdir()
    with closing(sqlite3.connect(folder / DATABASE)) as db:
        db.executescript((VERSIONS / f"{version}.sql").read_text("utf-8"))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("PRAGMA journal_mode = WAL")


def tables(folder: Path) -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(folder / DATABASE)) as db:
        return set(db.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


@pytest.mark.parametrize("version", range(1, VERSION))
def test_a_database_of_an_older_version_is_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    folder = tmp_path / "data"
    old(folder, version)
    before = SQLiteStore(tmp_path / "new", VirtualRuntime())
    list(before.load())
    before.close(lambda: None)
    store = SQLiteStore(folder, VirtualRuntime(seed=1))
    assert len(list(store.load())) > 5
    assert store.last_commit().number == 2
    store.close(lambda: None)
    assert tables(folder) == tables(tmp_path / "new")
    assert run_command(["storage", "check", str(folder)]) == 0
    capsys.readouterr()
    assert run_command(["storage", "export", str(folder)]) == 0
    lines = (VERSIONS / f"{version}.jsonl").read_text("utf-8").splitlines()
    assert capsys.readouterr().out.splitlines() == lines
    [saved] = folder.glob(f"saved-version{version}-*")
    with closing(sqlite3.connect(saved / DATABASE)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)
        assert db.execute("SELECT count(*) FROM entry").fetchone() == (4,)


def test_every_older_version_has_its_example() -> None:
    assert sorted(path.stem for path in VERSIONS.glob("*.sql")) == [
        str(number) for number in range(1, VERSION)
    ]
