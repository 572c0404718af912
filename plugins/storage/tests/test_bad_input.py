"""Test unusable files. Each one causes an error message with advice, and leaves existing data unchanged."""

import hashlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import mqttbytes as m
import pytest
from byteclient import over_tcp
from crashing import crashing
from hookmq.plugin import ClientRecord, Message, StoreError
from hookmq.storage_api import CommitId, PutRetained, PutSession, SessionRecord
from hookmq_storage.folder import DATABASE, Mark, open_mark, read_mark, write_mark
from hookmq_storage.schema import VERSION
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness
from hookmq_testing.runtime import VirtualRuntime

CURE = "name another folder with --data-dir, or as `path` of the plugin"


def made(folder: Path) -> SQLiteStore:
    """Create a store with some data."""
    store = SQLiteStore(folder, VirtualRuntime())
    list(store.load())
    told: list[Any] = []
    store.commit([PutRetained(Message("kept", b"x", 1, True))], told.append)
    assert told == [CommitId(store.identity, 1)]
    return store


def closed(folder: Path) -> None:
    made(folder).close(lambda: None)


def loaded(folder: Path) -> None:
    """Load a store as a broker does at startup."""
    store = SQLiteStore(folder, VirtualRuntime())
    try:
        list(store.load())
    finally:
        store.close(lambda: None)


def cut(folder: Path) -> None:
    closed(folder)
    os.truncate(folder / DATABASE, 8192)


def changed(folder: Path, statement: str) -> None:
    closed(folder)
    with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as db:
        db.execute(statement)


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digest of each file in a folder, by file name. Leave out the lock and SQLite's temporary
    files.
    """
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file() and not path.name.endswith(("-shm", "-wal")) and path.name != "lock"
    }


def mosquitto(folder: Path) -> None:
    (folder / "mosquitto.db").write_bytes(b"\x00\xb5\x00mosquitto db" + bytes(100))


def theirs(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as db:
        db.execute("CREATE TABLE sessions (id)")


def theirs_by_name(folder: Path) -> None:
    theirs(folder)
    with closing(sqlite3.connect(folder / DATABASE)) as db:
        db.execute("PRAGMA application_id = 4711")


def ahead(folder: Path) -> None:
    closed(folder)
    mark = read_mark(folder)
    assert mark is not None
    file = open_mark(folder)
    write_mark(file, Mark(mark.identity, 9))
    os.close(file)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (mosquitto, "{folder} contains unknown files: mosquitto.db; name an empty folder"),
        (theirs, "{folder}/hookmq.db belongs to another program; " + CURE),
        (theirs_by_name, "{folder}/hookmq.db belongs to another program (application id 0x1267); " + CURE),
        (
            lambda folder: (folder / DATABASE).write_bytes(b"a letter\n" * 500),
            "{folder}/hookmq.db is not an SQLite database; " + CURE,
        ),
        (
            lambda folder: changed(folder, f"PRAGMA user_version = {VERSION + 1}"),
            f"{{folder}}/hookmq.db has version {VERSION + 1}, but this hookmq-storage supports up to {VERSION}",
        ),
        (
            ahead,
            "{folder}/hookmq.db ends at commit 1, but commit 9 was safe: an older copy was restored, or the disk lost"
            " writes; hookmq storage repair --accept accepts it",
        ),
        (
            lambda folder: changed(folder, "UPDATE retained SET payload = x'00'"),
            "{folder}: retained 'kept': wrong checksum; hookmq storage repair {folder} saves the readable rows",
        ),
        (
            lambda folder: changed(folder, "DELETE FROM state"),
            "the table `state` is empty; hookmq storage repair saves the readable rows",
        ),
        (
            cut,
            "hookmq storage repair saves the readable rows",
        ),
    ],
)  # fmt: skip
def test_it_is_refused_and_left_as_it_was(
    tmp_path: Path, prepare: Callable[[Path], object], says: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    prepare(folder)
    before = contents(folder)
    with pytest.raises(StoreError) as caught:
        loaded(folder)
    assert says.format(folder=folder) in str(caught.value)
    after = contents(folder)
    assert {name: after[name] for name in before} == before


def test_a_file_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only database is refused. File permissions do not stop root, and tests in containers run as root, so the
    database is opened read-only.
    """
    closed(tmp_path / "data")
    before = contents(tmp_path / "data")
    connect: Any = sqlite3.connect

    def reading(path: object, **options: Any) -> Any:
        text = str(path)
        return connect(text if "?" in text else f"file:{text}?mode=ro", **{**options, "uri": True})

    monkeypatch.setattr(sqlite3, "connect", reading)
    with pytest.raises(StoreError) as caught:
        made(tmp_path / "data")
    assert "attempt to write a readonly database" in str(caught.value)
    assert f"{tmp_path}/data must be writable for this user" in str(caught.value)
    monkeypatch.undo()
    assert contents(tmp_path / "data") == before


def test_a_second_broker_changes_nothing(tmp_path: Path) -> None:
    first = made(tmp_path / "data")
    before = contents(tmp_path / "data")
    with pytest.raises(StoreError, match=r"in use by process .* two brokers cannot share"):
        SQLiteStore(tmp_path / "data", VirtualRuntime())
    assert contents(tmp_path / "data") == before
    told: list[Any] = []
    first.commit([PutSession(SessionRecord(ClientRecord("one", 5), 60.0))], told.append)
    assert told == [CommitId(first.identity, 2)]
    first.close(lambda: None)


def test_a_clock_that_jumps_back_loses_nothing(tmp_path: Path) -> None:
    """No data is lost if the clock jumps back. Deadlines are absolute times, so they are delayed by the size of the
    jump. Commit numbers continue without a break.
    """
    with Harness(start=False) as harness:
        harness.restart(store=SQLiteStore(tmp_path / "data", harness.clock))
        harness.advance(7200)
        client = harness.connect("one", session_expiry_interval=60)
        client.subscribe("t", 1)
        client.drop()
        pub = harness.connect("pub")
        pub.publish("t", b"x", 1, message_expiry_interval=30)
        pub.publish("r", b"x", 1, retain=True, message_expiry_interval=30)
        assert isinstance(harness.store, SQLiteStore)
        number = harness.store.last_commit().number
        harness.store.close(lambda: None)
    assert read_mark(tmp_path / "data") == Mark(harness.store.identity, number)
    with Harness(start=False) as earlier:
        earlier.restart(store=SQLiteStore(tmp_path / "data", earlier.clock))
        [told] = earlier.logged("storage.clock_behind")
        assert told["seconds"] == 7200
        assert "the clock is behind the newest commit" in str(told["text"])
        earlier.advance(7200)
        assert set(earlier.broker.sessions) == {"one"}
        other = earlier.connect("other")
        other.subscribe("r", 1)
        other.expect_message("r", b"x")
        client = earlier.connect("one", clean_start=False, session_expiry_interval=60)
        assert client.connack is not None
        assert client.connack.session_present
        assert client.expect_message("t", b"x").properties.message_expiry_interval == 30
        assert earlier.store.last_commit().number > number
        earlier.advance(61)
        assert earlier.broker.state.retained.get("r") is None


# --- a real broker ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library that makes writes fail."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build what lets writes fail")
    library = tmp_path_factory.mktemp("failing") / "failing.so"
    source = Path(__file__).with_name("failing.c")
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(words, check=True, timeout=60)
    return library


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        ("fsync", "EIO", "disk I/O error"),
        ("write", "EIO", "disk I/O error"),
        ("write", "ENOSPC", "database or disk is full"),
    ],
)
def test_a_disk_that_fails_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Path, call: str, error: str, says: str
) -> None:
    """If the disk fails, the broker acknowledges nothing more, sends 0x8B to clients and exits with code 1. Data that
    was already acknowledged is still there.
    """
    flag = tmp_path / "failing"
    monkeypatch.setenv("LD_PRELOAD", str(failing))
    monkeypatch.setenv("FAILING", str(flag))
    with crashing(tmp_path) as broker:
        with over_tcp(broker.port) as reader:
            reader.join("reader", properties=m.session_expiry(600)).subscribe(("kept", 1))
        with over_tcp(broker.port) as sender, over_tcp(broker.port) as idle:
            sender.join("sender")
            idle.join("idle")
            for number in range(1, 21):
                sender.tell(m.publish("kept", b"%d" % number, 1, number), m.puback(number))
            flag.write_text(f"{call} {error}")
            sender.send(*(m.publish("kept", b"%d" % number, 1, number) for number in range(21, 41)))
            for told in (sender.rest(), idle.rest()):
                [disconnect] = told
                assert disconnect[0] == 0xE0
                assert m.body(disconnect)[0] == 0x8B
        assert broker.served is not None
        failed = broker.served.wait_for("store.failed")
        assert failed["reason"].startswith(f"{tmp_path}/data/hookmq.db: {says}")
        assert broker.ended() == 1
        assert "the store failed" in broker.served.errors[-1]
        flag.unlink()
        broker.start()
        with over_tcp(broker.port) as reader:
            reader.join("reader", present=True, clean=False, properties=m.session_expiry(600))
            for number in range(1, 21):
                _, topic, packet_id, _, payload = m.split_publish(reader.frame())
                assert (topic, payload) == (b"kept", b"%d" % number)
                reader.send(m.puback(packet_id))
        assert broker.stop() == 0
