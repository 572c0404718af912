"""Run ``hookmq serve`` as a separate process on ports that the kernel chooses, to test it from outside."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOOKMQ = (sys.executable, "-m", "hookmq.cli")
WAIT = 60.0
"""Maximum seconds to wait for a process. Only a failing test waits this long."""


@dataclass
class Served:
    """A running broker: the port of each listener by name, and its log so far."""

    process: subprocess.Popen[str]
    ports: dict[str, int] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _told: "queue.SimpleQueue[dict[str, Any] | None]" = field(default_factory=queue.SimpleQueue)

    def wait_for(self, event: str) -> dict[str, Any]:
        """Return the next log entry with this event, and skip any entries before it. Fail if the process ends first."""
        while True:
            entry = self._told.get(timeout=WAIT)
            if entry is None:
                text = "\n".join(self.errors)
                raise AssertionError(f"hookmq ended without {event}: {self.log[-3:]}\n{text}")
            if entry["event"] == event:
                return entry

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """Send SIGTERM, as an operator would, and return the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(WAIT)

    def read(self) -> None:
        """Read the log to its end. This runs in a thread."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                entry = json.loads(line)
            except ValueError:
                self.errors.append(line.rstrip())
                continue
            self.log.append(entry)
            self._told.put(entry)
        self._told.put(None)


@contextmanager
def serving(
    *arguments: str,
    command: Sequence[str] = HOOKMQ,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Run ``hookmq serve ARGUMENTS`` until the block ends.

    Unless the block failed, the broker must then exit with code 0 and must not have logged an error.
    """
    process = subprocess.Popen(
        [*command, "serve", "--log-format", "json", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
    )
    served = Served(process)
    reader = threading.Thread(target=served.read, daemon=True)
    reader.start()
    try:
        started = served.wait_for("node.started")
        for name, address in started["listeners"].items():
            served.ports[name] = int(str(address).rpartition(":")[2] or 0)
        yield served
        code = served.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(WAIT)
        reader.join(WAIT)
        assert process.stderr is not None
        process.stderr.close()
    assert code == 0, f"exit code {code}: {served.errors}"
    assert not served.errors, served.errors
    failures = [entry for entry in served.log if entry["level"] == "error"]
    assert not failures, failures
