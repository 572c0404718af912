"""A broker process in a cluster on NATS, with the plugin admin, and the commands that reach it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from ports import free_port

CONFIG = """\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:{port}"}}
  - {{name: http, type: http, bind: "127.0.0.1:{http}", http: {{public_health: true}}}}
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - use: cluster
    config:
      servers: ["{nats}"]
      node: {name}
      lease: 3s
      replicas: 1
      client_address: "127.0.0.1:{port}"
  - use: admin
    config: {{first_token_file: {token}}}
"""


class ManagedNode:
    """A broker process. `nats` is the address of the NATS server."""

    def __init__(self, folder: Path, name: str, nats: str) -> None:
        self.name = name
        self.port, self._http = free_port(), free_port()
        self._token = folder / f"{name}.token"
        self._log = folder / f"{name}.log"
        self._url = f"http://127.0.0.1:{self._http}/plugins/admin"
        file = folder / f"{name}.yaml"
        file.write_text(
            CONFIG.format(port=self.port, http=self._http, nats=nats, name=name, token=self._token)
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hookmq.cli", "serve", "-c", str(file)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``hookmq cluster``."""
        assert self._process.poll() is None, self._log.read_text()
        return subprocess.run(
            [
                sys.executable, "-m", "hookmq.cli", "cluster", *words, "--url", self._url,
                "--token-file", str(self._token),
            ],
            env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def status(self) -> Any:
        """Return the cluster as the node sees it, or None if it does not answer yet."""
        done = self.run("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def sees(self, nodes: int) -> bool:
        """Return whether the node is ready and sees this number of nodes."""
        status = self.status()
        return status is not None and len(status["members"]) == nodes

    def readiness(self) -> tuple[int, str]:
        """Return the status and the text of ``/readyz``."""
        try:
            with urlopen(f"http://127.0.0.1:{self._http}/readyz", timeout=60) as answer:
                return answer.status, answer.read().decode().strip()
        except HTTPError as error:
            return error.code, error.read().decode().strip()

    def end(self, sent: int) -> int:
        """Send a signal, and return the exit code."""
        with suppress(ProcessLookupError):
            self._process.send_signal(sent)
        return self._process.wait(60)


def until(true: Callable[[], bool]) -> None:
    """Wait until `true` returns True, at most one minute."""
    end = monotonic() + 60.0
    while not true():
        assert monotonic() < end
