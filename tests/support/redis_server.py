"""A Redis server that runs in a test's folder on a free port."""

import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import pytest
from ports import free_port


def server_program() -> str:
    """Return the path of Redis or Valkey. Skip the test if neither is installed."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("Redis is not installed (redis-server): apt-get install redis-server")
    return program


class RedisServer:
    """A running server. It writes each command to disk before it responds (`appendfsync always`)."""

    def __init__(self, *options: str) -> None:
        program = server_program()
        self.folder = Path(mkdtemp(prefix="hookmq-redis-"))
        self.port = free_port()
        self._words = [
            program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always", "--loglevel", "warning", *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The address of the first database, for the driver's setting `url`."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        import redis

        self._process = subprocess.Popen(self._words, stdout=subprocess.DEVNULL)
        with redis.Redis(port=self.port) as client:
            while True:
                assert self._process.poll() is None, "Redis ended"
                try:
                    client.ping()
                    return
                except redis.AuthenticationError:
                    return
                except redis.ConnectionError:
                    continue

    def stop(self) -> None:
        """Kill the server. Its data stays on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
