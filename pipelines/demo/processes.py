"""Start the demo's parts as processes, read their output, and stop them."""

import os
import queue
import signal
import subprocess
import threading
from pathlib import Path
from typing import Final

PATIENCE: Final = 60.0
"""Seconds that a part may take to stop."""


class Ended(Exception):
    """A part of the demo ended unexpectedly."""


class Part:
    """A process in its own session. Ctrl-C therefore reaches only this program, which stops the parts in order."""

    def __init__(self, name: str, *command: str | Path, folder: Path) -> None:
        self.name = name
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said = [*self.said[-19:], line.rstrip()]
            self._lines.put(line)

    def check(self) -> None:
        """Raise Ended if the process has ended."""
        code = self.process.poll()
        if code is not None:
            self._reader.join(PATIENCE)
            raise Ended(self.ended(code))

    def ended(self, code: int) -> str:
        """Return a message saying that the process has ended, followed by the last lines that it printed."""
        return f"The {self.name} ended with exit code {code}. Its last lines:\n  " + "\n  ".join(
            self.said
        )

    def lines(self) -> list[str]:
        """Return the lines that the process has printed since the last call. Does not block."""
        found = []
        while True:
            try:
                found.append(self._lines.get_nowait())
            except queue.Empty:
                return found

    def stop(self) -> str:
        """Send SIGTERM once, and wait. If the process does not end, kill it and its children. Return a description of
        the outcome.

        Do not send SIGTERM again. If the broker has already removed its signal handlers, a second SIGTERM would end it
        with a code other than 0.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
            told = f"The {self.name} has stopped." if code == 0 else self.ended(code)
        except subprocess.TimeoutExpired:
            told = f"The {self.name} did not stop and was killed."
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._reader.join(PATIENCE)
        return told
