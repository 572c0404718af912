"""mosquitto in its own process on a free port. Tests can stop and restart it without losing its sessions."""

import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from ports import free_port

PROGRAM = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


class Mosquitto:
    """A mosquitto broker on 127.0.0.1. `lines` is added to its configuration. Its sessions survive a stop and restart."""

    def __init__(self, folder: Path, *lines: str, anonymous: bool = True, port: int = 0) -> None:
        if PROGRAM is None:
            pytest.skip("mosquitto is not installed")
        self.port = port or free_port()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        text = [
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {'true' if anonymous else 'false'}",
            "persistence true",
            f"persistence_location {folder}/",
            "autosave_interval 1",
            "autosave_on_changes true",
            "user root",
            *lines,
        ]
        (folder / "mosquitto.conf").write_text("\n".join(text) + "\n")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start mosquitto and wait until it accepts connections."""
        assert PROGRAM is not None
        with (self.folder / "mosquitto.log").open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "-c", str(self.folder / "mosquitto.conf"), "-v"], stdout=log, stderr=log
            )
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError((self.folder / "mosquitto.log").read_text())
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.01)
        raise AssertionError("mosquitto does not accept connections")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send mosquitto a signal that ends it, and wait until it has exited."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)
