"""Test the folders in which plugins keep data: the default path, folders that survive a power cut, and locks."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hookmq.plugin import ConfigError, StoreError
from hookmq_toolkit import state_folder
from hookmq_toolkit.state_folder import (
    LOCK,
    default_folder,
    lock_folder,
    lock_holder,
    make_folder,
    prepare_folder,
    refuse_foreign,
    try_lock,
)


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
def test_the_default_folder(
    monkeypatch: pytest.MonkeyPatch, service: str, state: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("STATE_DIRECTORY", service)
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert str(default_folder("storage")) == folder


@pytest.mark.parametrize(
    ("name", "escaped"),
    [("a", "a"), ("a/..", "a%2F.."), ("..", "%2E%2E"), (".", "%2E"), ("ä b", "%C3%A4%20b")],
)
def test_names_stay_inside_the_default_folder(
    monkeypatch: pytest.MonkeyPatch, name: str, escaped: str
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/hookmq")
    assert default_folder("webhook", name) == Path("/var/lib/hookmq/webhook", escaped)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home folder gets no folder named ``~`` in the working directory. This can happen with an unknown
    user id in a container.
    """
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ConfigError, match=r"no home directory for state; set `path`$"):
        default_folder("storage", cure="set `path`")


# --- folders ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    done: list[Path] = []
    monkeypatch.setattr(state_folder, "sync_folder", done.append)
    return done


def test_each_new_folder_is_private_and_its_name_is_synced(
    tmp_path: Path, synced: list[Path]
) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    assert sorted(synced) == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    for name in ("a", "a/b", "a/b/c"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_the_name_of_an_existing_folder_is_synced_again(tmp_path: Path, synced: list[Path]) -> None:
    """The name of an existing folder is synced again, because its creator may have been killed before syncing it."""
    make_folder(tmp_path)
    assert synced == [tmp_path.parent]


def test_a_relative_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_folder(Path("a/b"))
    assert sorted(synced) == [tmp_path, tmp_path / "a"]
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_may_not_be_read_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(state_folder, "sync_folder", refused)
    make_folder(tmp_path)

    def failed(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(state_folder, "sync_folder", failed)
    with pytest.raises(StoreError, match="cannot be read: Input/output error"):
        prepare_folder(tmp_path)


def test_names_in_a_prepared_folder(tmp_path: Path) -> None:
    assert prepare_folder(tmp_path / "new") == set()
    (tmp_path / "new" / "file").touch()
    assert prepare_folder(tmp_path / "new") == {"file"}


@pytest.mark.parametrize("below", ["", "below", "far/below"])
def test_a_file_in_place_of_a_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as caught:
        prepare_folder(tmp_path / "file" / below, "name another")
    assert str(caught.value) == f"{tmp_path}/file is a file, not a folder; name another"


def test_a_folder_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, mode: int, exist_ok: bool) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(StoreError, match=r"/new cannot be created: Permission denied$"):
        prepare_folder(tmp_path / "new")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["ours", "lost+found"], ""),
        (["ours", "b", "a"], "a, b"),
        (["a", "b", "c", "d"], "a, b, c, …"),
    ],
)
def test_files_of_another_program(names: list[str], shown: str) -> None:
    known = frozenset({"ours"}).__contains__
    if not shown:
        refuse_foreign(Path("/f"), names, known)
        return
    with pytest.raises(StoreError) as caught:
        refuse_foreign(Path("/f"), names, known, "name an empty folder")
    assert str(caught.value) == f"/f contains unknown files: {shown}; name an empty folder"


# --- locks --------------------------------------------------------------------------------------------------------------


def test_one_process_at_a_time(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    held = lock_folder(tmp_path)
    assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600
    assert lock_holder(tmp_path) == os.getpid()
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}; stop it first$"):
        lock_folder(tmp_path, in_use="stop it first")
    os.close(held)
    assert lock_holder(tmp_path) is None
    os.close(lock_folder(tmp_path))


def test_try_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert try_lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)

    def refused(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(OSError, match="No locks available"):
        try_lock(0)
    with pytest.raises(StoreError, match=r"cannot be locked: No locks available; move it$"):
        lock_folder(tmp_path, cure="move it")


def test_a_living_process_is_not_waited_for(tmp_path: Path) -> None:
    held = lock_folder(tmp_path)
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        lock_folder(tmp_path, pause=lambda seconds: pytest.fail("it waits"))
    os.close(held)


def test_the_child_of_a_dead_process_is_waited_for(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    held = lock_folder(tmp_path)
    (tmp_path / LOCK).write_text(f"{ended.pid}\n")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            os.close(held)

    os.close(lock_folder(tmp_path, pause=pause))
    assert len(pauses) == 3
    held = lock_folder(tmp_path)
    (tmp_path / LOCK).write_text(f"{ended.pid}\n")
    says = f"still in use by a child of process {ended.pid}, which has ended"
    with pytest.raises(StoreError, match=says):
        lock_folder(tmp_path, patience=0.2, pause=pauses.append)
    os.close(held)


def test_a_holder_without_an_id_is_waited_for(tmp_path: Path) -> None:
    """`lock_folder` waits for a holder that has not written its process id yet."""
    held = lock_folder(tmp_path)
    (tmp_path / LOCK).write_text("")
    pauses: list[float] = []
    assert lock_holder(tmp_path) == 0
    with pytest.raises(StoreError, match="in use by another process"):
        lock_folder(tmp_path, patience=0.2, pause=pauses.append)
    assert len(pauses) == 4
    os.close(held)
