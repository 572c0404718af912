"""A broker that starts before its NATS servers, as a process."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from nats_server import NatsCluster
from ports import free_port

pytestmark = pytest.mark.slow

CONFIG = """\
version: 1
listeners:
  - {name: tcp, bind: "127.0.0.1:%d"}
  - {name: http, type: http, bind: "127.0.0.1:%d"}
auth: {default: allow}
authz: {default: allow}
plugins: [{use: cluster, config: {node: a, servers: ["%s"], replicas: 1}}]
"""


class Waiting:
    """The broker, and the server that it waits for."""

    def __init__(self, folder: Path) -> None:
        self.nats = NatsCluster(1)
        self.http = free_port()
        file = folder / "a.yaml"
        file.write_text(CONFIG % (free_port(), self.http, self.nats.urls[0]))
        self.log = folder / "log"
        words = [
            sys.executable,
            "-m",
            "hookmq.cli",
            "serve",
            "--log-format",
            "json",
            "-c",
            str(file),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stderr=log)

    def readyz(self) -> tuple[int, str]:
        """Return what `/readyz` says, or 0 if the listener is not open yet."""
        try:
            with urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=60) as answer:
                return answer.status, answer.read().decode().strip()
        except HTTPError as error:
            return error.code, error.read().decode().strip()
        except URLError:
            return 0, ""

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until `true` returns True, at most one minute."""
        end = monotonic() + 60.0
        while not true():
            assert self.process.poll() is None, self.log.read_text()
            assert monotonic() < end, self.log.read_text()
            sleep(0.05)

    def events(self) -> list[str]:
        """Return the names of the log's events."""
        lines = self.log.read_text().splitlines()
        return [str(json.loads(line)["event"]) for line in lines if line.startswith("{")]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self.nats.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Waiting]:
    """Return a broker that waits for its server."""
    made = Waiting(tmp_path)
    made.until(lambda: "cluster.nats_unreachable" in made.events())
    yield made
    made.close()


def test_it_waits_and_then_starts(broker: Waiting) -> None:
    assert broker.readyz() == (503, "starting")
    broker.nats.start()
    broker.until(lambda: broker.readyz() == (200, "ready"))
    assert "cluster.stream_created" in broker.events()


def test_a_signal_ends_the_wait(broker: Waiting) -> None:
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(60) == 0
    assert broker.events()[-1] == "node.stopped"
    assert "node.started" not in broker.events()
