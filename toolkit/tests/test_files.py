"""Test watching files that another program writes."""

import errno
import os
from pathlib import Path

import pytest
from hookmq.plugin import ConfigError
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.files import (
    RETRY,
    FileStamp,
    FileWatch,
    check_regular,
    file_stamp,
    open_private,
    open_regular,
    shown_path,
    write_secret,
)


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"content"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "pipe")


@pytest.mark.parametrize("name", [".", "missing", "/dev/null"])
def test_paths_that_are_not_regular_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - the words are the system's
        open_regular(tmp_path / name)
    with pytest.raises(OSError):  # noqa: PT011 - the words are the system's
        check_regular(tmp_path / name)


def test_a_shown_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert shown_path("a/../b") == f"{gone}/b"
    assert shown_path(Path("/c")) == "/c"
    gone.rmdir()
    assert shown_path("b") == "b"


class Followed:
    """A watched file, and the changes that were reported."""

    def __init__(self, path: Path, interval: float = 2.0) -> None:
        self.path = path
        self.path.write_text("first")
        self.runtime = VirtualRuntime(blocking=0.0)  # no delays, so that checks can be counted
        self.told: list[str] = []
        self.reads = 0
        self.error: Exception | None = None
        self.watch: FileWatch[str] = FileWatch(
            path, interval, file_stamp(path), self.load, self.took, self.failed
        )
        self.watch.start(self.runtime)

    def load(self) -> tuple[FileStamp, str]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return file_stamp(self.path), self.path.read_text()

    def took(self, text: str) -> None:
        self.told.append(text)

    def failed(self, why: str) -> None:
        self.told.append(f"! {why}")

    def write(self, text: str) -> None:
        new = self.path.with_name("new")
        new.write_text(text)
        new.replace(self.path)


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "file")


def test_a_file_is_read_when_it_stood_still(followed: Followed) -> None:
    followed.runtime.advance(100)
    assert followed.reads == 0
    followed.write("second")
    followed.runtime.advance(2)
    assert followed.told == []
    followed.runtime.advance(2)
    assert followed.told == ["second"]
    followed.runtime.advance(100)
    assert followed.reads == 1


CONTENT = ConfigError("no user", source="file", line=3, column=7)
NO_DESCRIPTORS = OSError(errno.EMFILE, "Too many open files")


def wrapped() -> Exception:
    error = ConfigError("Too many open files", source="file")
    error.__cause__ = NO_DESCRIPTORS
    return error


@pytest.mark.parametrize("error", [NO_DESCRIPTORS, wrapped(), MemoryError()])
@pytest.mark.parametrize("interval", [2.0, 0.0])
def test_a_temporary_error_is_tried_again(
    tmp_path: Path, error: Exception, interval: float
) -> None:
    followed = Followed(tmp_path / "file", interval)
    followed.error = error
    followed.write("second")
    ended: list[bool] = []
    followed.watch.look(lambda: ended.append(True))
    followed.runtime.advance(60)
    assert ended == [True]
    assert followed.reads > 5
    assert len(followed.told) == 1, "once for each reason"
    assert followed.watch.failing
    followed.error = None
    followed.runtime.advance(RETRY)
    assert followed.told[1:] == ["second"]
    assert not followed.watch.failing


def test_invalid_content_is_read_once(followed: Followed) -> None:
    followed.error = CONTENT
    followed.write("second")
    followed.runtime.advance(100)
    assert (followed.told, followed.reads) == (["! file:3:7: no user"], 1)
    followed.error = None
    followed.write("third")
    followed.runtime.advance(4)
    assert followed.told[1:] == ["third"]


def test_an_unknown_error_is_reported_without_its_text(followed: Followed) -> None:
    followed.error = ValueError("invalid literal: 'hunter2'")
    followed.write("second")
    followed.runtime.advance(4)
    assert followed.told == [f"! {followed.path}: ValueError"]


def gone(path: Path) -> None:
    path.rename(path.with_name("away"))


def back(path: Path) -> None:
    path.with_name("away").rename(path)


def test_a_file_that_is_back_as_it_was_is_told(followed: Followed) -> None:
    gone(followed.path)
    followed.runtime.advance(10)
    assert followed.told == [f"! {followed.path}: No such file or directory"]
    back(followed.path)
    followed.runtime.advance(4)
    assert followed.told[1:] == ["first"]


@pytest.mark.parametrize("stopped_first", [True, False])
def test_a_pending_look_is_called_when_the_watch_stops(
    followed: Followed, stopped_first: bool
) -> None:
    ended: list[bool] = []
    if stopped_first:
        followed.watch.stop()
    followed.watch.look(lambda: ended.append(True))
    followed.watch.stop()
    followed.runtime.advance(100)
    assert ended == [True]
    assert followed.told == []


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_secrets_are_for_their_owner(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_secret(tmp_path / "secret", "s\n")
        (tmp_path / "old").write_text("what was there before")
        (tmp_path / "old").chmod(0o644)
        for name in ("old", "new"):
            with open_private(tmp_path / name) as file:
                file.write(b"x")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "old").read_text() == "x"
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "secret", "t")
    assert (tmp_path / "secret").read_text() == "s\n"
