"""Test files that survive a power cut: the order of fsync and rename, and the state after a
failure.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq_toolkit.durable_files import (
    move_into_place,
    replacing,
    sync_file,
    sync_folder,
    write_all,
    write_atomically,
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list in which calls to fsync and rename are recorded in order, with the names of files and folders."""
    done: list[str] = []

    def watch(name: str, describe: Callable[..., str]) -> None:
        real = getattr(os, name)

        def watched(*args: Any) -> Any:
            done.append(describe(*args))
            return real(*args)

        monkeypatch.setattr(os, name, watched)

    def synced(file: int) -> str:
        return f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}"

    watch("fsync", synced)
    watch("replace", lambda old, new: f"rename {Path(old).name} {Path(new).name}")
    return done


def test_a_file_is_safe_before_its_name(tmp_path: Path, calls: list[str]) -> None:
    write_atomically(tmp_path / "f", b"data")
    assert calls == ["sync f.new", "rename f.new f", f"sync {tmp_path.name}"]
    assert (tmp_path / "f").read_bytes() == b"data"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["f"]


def test_a_written_file_is_moved_into_place(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "part").write_bytes(b"data")
    move_into_place(tmp_path / "part", tmp_path / "f")
    assert calls == ["sync part", "rename part f", f"sync {tmp_path.name}"]


def test_without_sync_nothing_is_synced(tmp_path: Path, calls: list[str]) -> None:
    write_atomically(tmp_path / "f", b"data", sync=False)
    assert calls == ["rename f.new f"]


def test_files_and_folders_are_synced(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "f").touch()
    sync_file(tmp_path / "f")
    sync_folder(tmp_path)
    assert calls == ["sync f", f"sync {tmp_path.name}"]
    with pytest.raises(NotADirectoryError):
        sync_folder(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        sync_file(tmp_path / "missing")


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")

    def fails(*args: object) -> None:
        raise OSError("power")

    with monkeypatch.context() as patch:
        patch.setattr(os, broken, fails)
        with pytest.raises(OSError, match="power"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_leftover_of_a_killed_process_is_not_reused(tmp_path: Path) -> None:
    """The contents and mode of a leftover file are not used. If it is a symbolic link, the link's target is not used
    either.
    """
    (tmp_path / "elsewhere").write_bytes(b"untouched")
    (tmp_path / "f.new").symlink_to("elsewhere")
    write_atomically(tmp_path / "f", b"data")
    (tmp_path / "g.new").write_bytes(b"a longer text")
    (tmp_path / "g.new").chmod(0o666)
    write_atomically(tmp_path / "g", b"data")
    assert (tmp_path / "elsewhere").read_bytes() == b"untouched"
    for name in "fg":
        assert (tmp_path / name).read_bytes() == b"data"
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_the_new_file_has_the_name_and_mode_that_were_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with replacing(tmp_path / "f", tmp_path / ".hidden", mode=0o644) as file:
            write_all(file, b"data")
            assert os.listdir(tmp_path) == [".hidden"]
    finally:
        os.umask(before)
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644


def test_an_interrupted_block_changes_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with replacing(tmp_path / "f") as file:
            write_all(file, b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("user", "changed"), [(0, True), (1000, False)])
def test_root_gives_a_file_to_the_owner_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, changed: bool
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "fchown", lambda file, uid, gid: given.append((uid, gid)))
    write_atomically(tmp_path / "f", b"data")
    assert given == []
    write_atomically(tmp_path / "f", b"data", owner_of_folder=True)
    owner = tmp_path.stat()
    assert given == ([(owner.st_uid, owner.st_gid)] if changed else [])


def test_all_is_written_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data)[:3]))
    write_atomically(tmp_path / "f", b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"0123456789"
