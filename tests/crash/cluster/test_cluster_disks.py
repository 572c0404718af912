"""Test the disks whose power is cut."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterkill.disks import Disk, missing


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    reason = missing(tmp_path)
    if reason:
        pytest.skip(reason)
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


def test_a_cut_keeps_synced_data_only(disk: Disk) -> None:
    with (disk.folder / "safe").open("wb") as file:
        file.write(b"safe")
        file.flush()
        os.fsync(file.fileno())
    (disk.folder / "unsafe").write_bytes(b"unsafe")
    disk.cut()
    with pytest.raises(OSError, match="error"):
        (disk.folder / "later").write_bytes(b"later")
    disk.restore()
    assert (disk.folder / "safe").read_bytes() == b"safe"
    assert not (disk.folder / "unsafe").exists()
    (disk.folder / "later").write_bytes(b"later")


def test_a_full_disk(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(OSError, match="No space") as caught:
        (disk.folder / "more").write_bytes(bytes(100_000))
    assert caught.value.errno == errno.ENOSPC
    disk.empty()
    (disk.folder / "more").write_bytes(bytes(100_000))


def test_a_frozen_disk_lets_writes_wait(disk: Disk) -> None:
    disk.freeze()
    done = threading.Event()

    def write() -> None:
        (disk.folder / "file").write_bytes(b"late")
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not done.wait(0.1)
    disk.thaw()
    assert done.wait(30)
    thread.join()


def test_an_erased_disk_is_empty(disk: Disk) -> None:
    (disk.folder / "some").mkdir()
    (disk.folder / "some" / "file").write_bytes(b"x")
    disk.erase()
    assert not list(disk.folder.iterdir())
