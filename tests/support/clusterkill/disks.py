"""Disks that can be filled, slowed down, taken away and cut off: file systems in an image file, for root on Linux.

Programs that call the kernel directly, as nats-server does, cannot be recorded by `powercut`. A file system of their own
gives the same result: after `cut`, it contains nothing that the kernel had not written yet.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

SIZE: Final = 192 << 20
"""Bytes of a disk. The image is sparse, so only written data takes space."""
_FREEZE: Final = 0xC0045877
_THAW: Final = 0xC0045878
_SHUT_DOWN: Final = 0x8004587D
_WITHOUT_LOG: Final = 2
"""The file system ends at once, and does not even write its journal."""
_BLOCK: Final = 4096


class DiskError(Exception):
    """Raised if a disk cannot be made or mounted."""


class Disk:
    """A file system at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".image")
        self._filler = folder / "filler"
        self._frozen = False
        with self._image.open("wb") as file:
            file.truncate(SIZE)
        folder.mkdir()
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.folder))
        self._device = self.folder.stat().st_dev

    def _unmount(self) -> None:
        for _ in range(100):
            done = subprocess.run(["umount", str(self.folder)], capture_output=True, check=False)
            if not done.returncode:
                return
            time.sleep(0.02)  # the last process that used it is still ending
        raise DiskError(f"umount {self.folder}: {done.stderr.decode().strip()}")

    def cut(self) -> None:
        """Cut the power: all calls fail from now on, and whatever was not written to the disk is lost."""
        self._control(_SHUT_DOWN, _WITHOUT_LOG)

    def restore(self) -> None:
        """Mount the disk again after `cut`. No process may use it."""
        self._unmount()
        self._mount()

    def fill(self, left: int = 0) -> None:
        """Use up all space but `left` bytes."""
        with self._filler.open("wb") as file:
            self._require(file.fileno())
            free = os.fstatvfs(file.fileno()).f_bavail * _BLOCK
            size = max(0, free - left)
            while size > 0:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                    break
                except OSError:  # the file system needs some blocks itself
                    size -= 16 * _BLOCK
            if not left:
                file.seek(0, os.SEEK_END)
                with suppress(OSError):
                    while True:
                        os.write(file.fileno(), bytes(_BLOCK))

    def empty(self) -> None:
        """Undo `fill`."""
        self._filler.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Let all writes wait until `thaw`."""
        if not self._frozen:
            self._control(_FREEZE, 0)
            self._frozen = True

    def thaw(self) -> None:
        """Let writes continue."""
        if self._frozen:
            self._control(_THAW, 0)
            self._frozen = False

    def erase(self) -> None:
        """Delete everything, as if the disk had been replaced. No process may use it."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def close(self) -> None:
        """Unmount the disk and delete it. No process may use it."""
        with suppress(OSError):
            self.thaw()
        self._unmount()
        self._image.unlink()

    def _control(self, call: int, argument: int) -> None:
        place = os.open(self.folder, os.O_RDONLY)
        try:
            self._require(place)
            fcntl.ioctl(place, call, struct.pack("i", argument))
        finally:
            os.close(place)

    def _require(self, file: int) -> None:
        """Raise DiskError if a file is not on this disk, but on the one below because this disk is not mounted."""
        if os.fstat(file).st_dev != self._device:
            raise DiskError(f"{self.folder} is not mounted")


def missing(folder: Path) -> str:
    """Return why disks are impossible on this machine, or '' if they are possible."""
    if not sys.platform.startswith("linux"):
        return "disks need Linux"
    if os.geteuid():
        return "disks need root"
    try:
        Disk(folder / "attempt").close()
    except (DiskError, OSError) as error:
        return f"disks cannot be mounted: {error}"
    return ""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        raise DiskError(f"{' '.join(words)}: {done.stderr.decode().strip()}")
