"""A PostgreSQL server from Debian's package, running in a test's folder on a free port."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import pytest
from ports import free_port

USER = "hookmq"


def program(name: str) -> str:
    """Return the path of a PostgreSQL program. Skip the test if it is not installed."""
    found = shutil.which(name) or next(
        (str(one) for one in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None
    )  # fmt: skip
    if found is None:
        pytest.skip(f"PostgreSQL is not installed ({name}): apt-get install postgresql")
    return found


class PostgresServer:
    """A running server. `url` names its database; the user has no password. PostgreSQL refuses to run as root, so root
    runs it as the user `postgres`, which the package creates.
    """

    def __init__(self) -> None:
        program("postgres")
        self.folder = Path(mkdtemp(prefix="hookmq-postgres-"))
        self.port = free_port()
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self.folder, self._user)
        self._run(
            program("initdb"), "-D", str(self.folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8",
            "--locale=C", "--no-sync",
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The address of the database, for the driver's setting `url`."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._process = subprocess.Popen(
            [
                program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port),
                "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}",
                "-c", "max_connections=20", "-c", "shared_buffers=16MB",
            ],
            user=self._user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        ready = (program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port))
        while subprocess.run(ready, check=False).returncode:
            assert self._process.poll() is None, "PostgreSQL ended"

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server at once. It recovers its data at the next start."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, *words: str) -> None:
        subprocess.run(words, user=self._user, check=True, capture_output=True, timeout=120)
