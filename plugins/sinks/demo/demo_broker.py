"""The demo's broker, with a sink for PostgreSQL and one for Redis."""

import json
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

PATIENCE: Final = 60.0
TABLE: Final = "CREATE TABLE IF NOT EXISTS readings (id text, time timestamptz, machine text, celsius double precision)"


class BrokerEnded(Exception):
    """The broker has ended. The text contains the last lines of its output."""


def configuration(postgres: str, redis: str) -> dict[str, Any]:
    """Return the broker's configuration. The arguments are the URLs of the servers."""
    every = {
        "topics": ["plant/#"], "decode": "json", "key": "${topic.2}",
        "batch": {"messages": 500, "age": "100ms"}, "retry": {"first": "200ms", "longest": "1s"},
        "sample": {"topic": "plant/press-01/celsius", "payload": {"celsius": 21.5}},
    }  # fmt: skip
    values = {"machine": "${topic.2}", "celsius": "${payload.celsius}"}
    sinks = [
        {
            "name": "readings", **every, "driver": "postgres",
            "target": {
                "url": postgres, "table": "readings", "connect_timeout": "2s", "setup": [TABLE],
                "columns": {"id": "${id}", "time": "${timestamp}", **values},
            },
        },
        {
            "name": "live", **every, "driver": "redis",
            "target": {"url": redis, "into": "stream", "key": "readings", "fields": {"id": "${id}", **values}},
        },
    ]  # fmt: skip
    return {
        "version": 1,
        "listeners": [
            {"name": "tcp", "bind": "127.0.0.1:0"},
            {"name": "http", "type": "http", "bind": "127.0.0.1:0"},
        ],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [
            {"use": "storage", "config": {"path": "state"}},
            {"use": "admin", "config": {"first_token_file": "admin.token"}},
            {"use": "sinks", "config": {"path": "sinks", "sinks": sinks}},
        ],
    }


class DemoBroker:
    """A broker process whose files are in `folder`. Raises BrokerEnded if it does not start."""

    def __init__(self, folder: Path, postgres: str, redis: str) -> None:
        (folder / "hookmq.yaml").write_text(json.dumps(configuration(postgres, redis), indent=1))
        self.ports: dict[str, int] = {}
        self.folder = folder
        self.said: deque[str] = deque(maxlen=20)
        self._process = subprocess.Popen(
            (sys.executable, "-m", "hookmq.cli", "serve", "--log-format", "json", "-c", "hookmq.yaml"),
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        until = time.monotonic() + PATIENCE
        while len(self.ports) < 2:
            self.check()
            if time.monotonic() > until:
                self.stop()
                raise BrokerEnded("The broker did not start in time.")
            time.sleep(0.02)
        self.token = (folder / "admin.token").read_text().strip()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line.rstrip())
            if line.startswith("{") and (entry := json.loads(line))["event"] == "node.started":
                for name, bound in entry["listeners"].items():
                    self.ports[name] = int(bound.rpartition(":")[2])

    @property
    def console(self) -> str:
        """The address of the console page about sinks."""
        return f"http://127.0.0.1:{self.ports['http']}/plugins/admin/#/sinks"

    def check(self) -> None:
        """Raise BrokerEnded if the process has ended."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(5)
            last = "\n  ".join(self.said)
            raise BrokerEnded(f"The broker ended with exit code {code}. Its last lines:\n  {last}")

    def sinks(self) -> dict[str, Any]:
        """Return the sinks by name, as the admin API reports them. Raises BrokerEnded or OSError."""
        self.check()
        address = f"http://127.0.0.1:{self.ports['http']}/plugins/admin/api/v1/sinks"
        request = Request(address, headers={"Authorization": f"Bearer {self.token}"})
        with urlopen(request, timeout=10) as found:
            return {one["name"]: one for one in json.load(found)["items"]}

    def stop(self) -> None:
        """Stop the broker, and wait until it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
