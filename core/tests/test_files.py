"""Files that somebody else writes."""

import os
from pathlib import Path

import pytest
from hookmq.files import open_regular


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
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - the words are the system's
        open_regular(tmp_path / name)
