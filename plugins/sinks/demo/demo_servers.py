"""PostgreSQL and Redis servers for the demo. Each has a free port, and a folder that is deleted at the end."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

PATIENCE: Final = 60.0
"""Seconds that a server may take to start or stop."""
USER: Final = "hookmq"


class Missing(Exception):
    """A server is not installed. The text says how to install it."""


class ServerFailed(Exception):
    """A server did not start."""


def free_port() -> int:
    """Return a port that is currently free."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def find_program(names: Sequence[str], title: str, package: str) -> str:
    """Return the path of the first of these programs that is installed. Raises Missing."""
    for name in names:
        debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
        found = shutil.which(name) or next((str(one) for one in debian), None)
        if found is not None:
            return found
    raise Missing(f"{title} is not installed. On Debian and Ubuntu: apt-get install {package}")


class Server:
    """A server process. It can be stopped and started repeatedly, and its data is kept until `close`."""

    title = package = ""
    programs: Sequence[str] = ()
    end = signal.SIGTERM
    user: str | None = None

    def __init__(self) -> None:
        self.program = find_program(self.programs, self.title, self.package)
        self.folder = Path(mkdtemp(prefix="hookmq-demo-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the server is running."""
        return self._process is not None

    def command(self) -> Sequence[str]:
        """Return the command that runs the server."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server, and wait until it accepts connections. Raises ServerFailed."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self.command(), cwd=self.folder, user=self.user, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._process = process
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        self.stop()
        last = "\n  ".join((self.folder / "log").read_text(errors="replace").splitlines()[-10:])
        raise ServerFailed(f"{self.title} did not start. Its last lines:\n  {last}")

    def stop(self) -> None:
        """Stop the server, and wait until it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(self.end)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    """A PostgreSQL server. PostgreSQL refuses to run as root, so root runs it as the package's user `postgres`."""

    title, package, programs = "PostgreSQL", "postgresql", ("postgres",)
    end = signal.SIGINT  # ends sessions, then the server

    def __init__(self) -> None:
        super().__init__()
        if os.geteuid() == 0:
            self.user = "postgres"
            shutil.chown(self.folder, self.user)
        initdb = find_program(("initdb",), self.title, self.package)
        made = subprocess.run(
            (initdb, "-D", str(self.folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"),
            cwd=self.folder, user=self.user, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            self.close()
            raise ServerFailed(f"initdb has failed: {made.stderr.strip()}")

    @property
    def url(self) -> str:
        """The URL of the server's database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def command(self) -> Sequence[str]:
        """Return the command that runs the server."""
        return (
            self.program, "-D", str(self.folder / "data"), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1",
            "-c", f"unix_socket_directories={self.folder}",
        )  # fmt: skip


class Redis(Server):
    """A Redis or Valkey server. It writes each command to its file before it replies."""

    title, package, programs = "Redis", "redis-server", ("redis-server", "valkey-server")

    @property
    def url(self) -> str:
        """The URL of the server's first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        """Return the command that runs the server."""
        return (
            self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always",
        )  # fmt: skip
