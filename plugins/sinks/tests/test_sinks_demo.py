"""Test ``make demo-sinks`` with real servers: PostgreSQL is stopped and started, and no message is lost or
duplicated."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from postgres_server import program
from redis_server import server_program

DEMO = Path(__file__).parents[1] / "demo" / "sinks_demo.py"


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a temporary folder that the user `postgres` may enter, unlike pytest's own folders."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o711)
        yield path


@pytest.mark.slow
def test_the_demo_survives_an_outage_and_ends_with_ctrl_c(temporary: Path) -> None:
    program("postgres")
    server_program()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, str(DEMO), "--seconds", "100", "--outage", "98", "--rate", "50"]
    said: list[str] = []
    retried = False
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        timer = threading.Timer(100, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "readings: retrying (" in line and not retried:
                retried = True
                process.send_signal(signal.SIGINT)
        timer.cancel()
    text, code = "".join(said), process.returncode
    assert code == 0, text
    assert said[0] == "  ▸ Starting PostgreSQL.\n"
    assert "Connection refused" in text
    assert "▶ PostgreSQL runs again. Its sink catches up." in text
    found = re.search(r"([\d,]+) messages acknowledged by the broker", text)
    assert found is not None
    assert int(found[1].replace(",", "")) > 50
    assert f"{found[1]} rows in PostgreSQL, with {found[1]} different ids" in text
    assert f"{found[1]} entries in Redis" in text
    assert list(temporary.iterdir()) == []


def test_the_demo_says_how_to_install_a_missing_server() -> None:
    script = (
        "import shutil, sys, pathlib; shutil.which = lambda name: None;"
        "pathlib.Path.glob = lambda self, pattern: iter(());"
        "import sinks_demo; sys.exit(sinks_demo.main([]))"
    )
    done = subprocess.run(
        (sys.executable, "-c", script), cwd=DEMO.parent, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "PostgreSQL is not installed. On Debian and Ubuntu: apt-get install postgresql\n"
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--rate", "0"], "--rate between 0 and 20000"),
        (["--seconds", "5", "--outage", "5"], "--outage must be shorter than --seconds"),
        (["--outage", "5"], "--outage must be shorter than --seconds"),
    ],
)
def test_mistakes_on_the_command_line(options: list[str], error: str) -> None:
    done = subprocess.run(
        (sys.executable, str(DEMO), *options), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert error in done.stderr
