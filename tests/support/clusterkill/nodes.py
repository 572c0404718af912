"""A broker of a cluster, as a process that can be killed, stopped and started again."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ports import free_port

LEASE: Final = 3.0
"""Seconds of a lease: as short as possible, so that a run has many adoptions."""
READY: Final = 60.0
"""Seconds within which a broker must accept clients. It may have to wait for its lane."""
CONFIG: Final = """\
version: 1
listeners: [{{name: tcp, bind: "127.0.0.1:{port}"}}]
auth: {{default: allow}}
authz: {{default: allow}}
session: {{queue_messages: 10000000, queue_bytes: 1GiB, max_inflight: 100}}
broker: {{flapping_takeovers: 1000000}}
plugins:
  - use: cluster
    config: {{servers: [{servers}], node: {name}, lease: {lease}s, replicas: {replicas}{more}}}
"""


class BrokerNode:
    """One broker."""

    def __init__(
        self, folder: Path, name: str, servers: Sequence[str], replicas: int, more: str = ""
    ) -> None:
        self.name = name
        self.port = free_port()
        self.stopped = False
        self._file = folder / f"{name}.yaml"
        self.log = folder / f"{name}.log"
        listed = ", ".join(f'"{server}"' for server in servers)
        if replicas == 1:
            more += ", allow_single_replica: true"
        self._file.write_text(
            CONFIG.format(
                port=self.port, servers=listed, name=name, lease=LEASE, replicas=replicas, more=more
            )
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker, without waiting."""
        assert self.process is None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "hookmq.cli",
                    "serve",
                    "--log-format",
                    "json",
                    "-c",
                    str(self._file),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ended(self) -> bool:
        """Return whether the process has ended by itself, and forget it then. A node that was expelled does that."""
        if self.process is None or self.process.poll() is None:
            return False
        self.process = None
        self.stopped = False
        return True

    def listens(self) -> bool:
        """Return whether the broker accepts connections now."""
        if self.process is None or self.stopped:
            return False
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def wait(self) -> None:
        """Wait until the broker accepts connections."""
        end = time.monotonic() + READY
        while not self.listens():
            assert time.monotonic() < end, f"{self.name} does not start: {self.tail()}"
            if self.ended():
                self.start()
            time.sleep(0.05)

    def tail(self) -> str:
        """Return the end of the log."""
        return self.log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """Kill the broker."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None
            self.stopped = False

    def pause(self) -> None:
        """Stop the process with SIGSTOP."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)
            self.stopped = True

    def resume(self) -> None:
        """Let a stopped process continue."""
        if self.process is not None and self.stopped:
            self.process.send_signal(signal.SIGCONT)
        self.stopped = False

    def terminate(self, seconds: float) -> None:
        """End the broker with SIGTERM, and kill it after some seconds."""
        if self.process is not None:
            self.resume()
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.kill()
