"""The brokers under test: HookMQ with its storage and mosquitto with persistence, configured equivalently."""

import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from crashing import Crashing
from ports import free_port
from serving import WAIT

MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_queued_messages 0
persistence true
persistence_location {folder}/
log_dest stderr
connection_messages false
"""
DELAYED = """\
  - use: delayed
    filters: ["$delayed/#"]
    config: {max_messages: 1000000, max_messages_per_client: 1000000}
"""
AUTOSAVE: Mapping[str, str] = {
    "default": "",
    "every second": "autosave_interval 1\n",
    "on changes": "autosave_on_changes true\nautosave_interval 1\n",
}
"""mosquitto's autosave settings, by name: the default (every half hour), every second, and after every change."""


class Broker(Protocol):
    """A broker that uses the same port after every start."""

    port: int
    delays: bool
    """Whether the broker supports delayed messages, published to ``$delayed/SECONDS/TOPIC``."""

    def spawn(self) -> None:
        """Start the broker without waiting."""

    def ready(self) -> None:
        """Wait until the broker listens."""

    def kill(self, rng: random.Random) -> None:
        """Send SIGKILL to the broker, either alone or together with its child processes. Orphaned child processes exit
        on their own.
        """

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""


class HookMQ:
    """`hookmq serve` with a store in `folder` and additional plugins, by default `delayed`."""

    delays = True

    def __init__(self, folder: Path, durability: str, plugins: str = DELAYED) -> None:
        self._broker = Crashing(folder, durability, plugins)
        self.port = self._broker.port

    def spawn(self) -> None:
        """Start the broker, as `Broker.spawn` does."""
        self._broker.spawn()

    def ready(self) -> None:
        """Wait until the broker listens."""
        self._broker.ready()

    def kill(self, rng: random.Random) -> None:
        """Kill the broker as `Broker.kill` does. Choose at random whether to kill the storage writer as well or leave
        it orphaned."""
        writer = None
        if rng.random() < 0.5:
            try:
                writer = self._broker.writer()
            except (AssertionError, OSError):
                pass  # the broker is not ready yet, or has no store
        if writer is None:
            self._broker.kill()
            return
        first, second = rng.sample((writer, self._broker.process.pid), 2)
        for pid in (first, second):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # a writer whose broker is gone
        self._broker.ended()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        return self._broker.stop()


class Mosquitto:
    """mosquitto with `persistence true` and its database in `folder`."""

    delays = False

    def __init__(self, folder: Path, autosave: str) -> None:
        program = mosquitto()
        assert program is not None
        self.port = free_port()
        self._folder = folder / "mosquitto"
        self._folder.mkdir()
        self._command = [program, "-c", str(folder / "mosquitto.conf")]
        config = MOSQUITTO.format(port=self.port, folder=self._folder) + AUTOSAVE[autosave]
        if os.getuid() == 0:
            config += "user root\n"  # otherwise, it could not enter the folder
        (folder / "mosquitto.conf").write_text(config)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._up = threading.Event()
        self._log: list[str] = []

    def spawn(self) -> None:
        """Start the broker, as `Broker.spawn` does."""
        self._up.clear()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._log.append(line)
            if "running" in line:
                self._up.set()

    def ready(self) -> None:
        """Wait until the broker listens."""
        assert self._up.wait(WAIT), self._log[-5:]

    def kill(self, rng: random.Random) -> None:
        """Send SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._ended()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._ended()

    def _ended(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(WAIT)
        self._reader.join(WAIT)
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code


def mosquitto() -> str | None:
    """Return the path of mosquitto, or None if it is not installed."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
