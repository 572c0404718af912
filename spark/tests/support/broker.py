"""A real broker with the plugin spark_sink, in its own process, from the repository's environment."""

import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pyspark_mqtt.options import writing
from pyspark_mqtt.publisher import Message, Publisher

ROOT = Path(__file__).parents[3]
HOOKMQ = ROOT / ".venv" / "bin" / "hookmq"
TOKEN = "0123456789abcdef"
WAIT = 120.0
"""Maximum seconds to wait on a busy machine. Only a failing test waits this long."""


def free_port() -> int:
    """Return a free port below the kernel's ephemeral range. No other process gets the port while the broker is down."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, low - 16_000), low)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Broker:
    """A broker that can be killed and restarted with the same ports and folders."""

    def __init__(
        self,
        folder: Path,
        stream: dict[str, Any] | None = None,
        plugins: Iterable[dict[str, Any]] = (),
        **sink: Any,
    ) -> None:
        self.folder = folder
        self.mqtt_port, self.api_port = free_port(), free_port()
        self.stream = {"name": "all", "topics": ["#"], "partitions": 3, **(stream or {})}
        self.plugins = list(plugins)
        self.sink = sink
        """More settings of the plugin spark_sink."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def read(self) -> dict[str, str]:
        """Return the options for a reader."""
        return {
            "url": f"http://127.0.0.1:{self.api_port}",
            "stream": "all",
            "token": TOKEN,
            "startingOffsets": "earliest",
            "fetchOffset.retryIntervalMs": "100",
            "fetchOffset.numRetries": "300",
        }

    @property
    def write(self) -> dict[str, str]:
        """Return the options for a writer."""
        return {"brokerUrl": f"mqtt://127.0.0.1:{self.mqtt_port}"}

    def configuration(self) -> dict[str, Any]:
        return {
            "version": 1,
            "auth": {"default": "allow"},
            "authz": {"default": "allow"},
            "listeners": [{"name": "tcp", "bind": f"127.0.0.1:{self.mqtt_port}"}],
            "plugins": [
                {"use": "storage", "config": {"path": str(self.folder / "state")}},
                {
                    "use": "spark_sink",
                    "config": {
                        "path": str(self.folder / "streams"),
                        "streams": [self.stream],
                        "api": {
                            "bind": f"127.0.0.1:{self.api_port}",
                            "access": [{"token": TOKEN}],
                        },
                        **self.sink,
                    },
                },
                *self.plugins,
            ],
        }

    def start(self) -> None:
        file = self.folder / "hookmq.json"
        file.write_text(json.dumps(self.configuration()))  # JSON is YAML.
        self._process = subprocess.Popen(
            [HOOKMQ, "serve", "--log-format", "json", "-c", file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"XDG_STATE_HOME": str(self.folder)},
        )
        told: SimpleQueue[dict[str, Any] | str] = SimpleQueue()
        threading.Thread(target=_listen, args=(self._process, told), daemon=True).start()
        said: list[object] = []
        while True:
            entry = told.get(timeout=WAIT)
            said.append(entry)
            assert entry != "", f"hookmq ended: {said[-10:]}"
            if not isinstance(entry, dict):
                continue
            if entry["event"] == "spark_sink.serving":
                self.api_port = entry["port"]
            if entry["event"] == "node.started":
                self.mqtt_port = int(entry["listeners"]["tcp"].rpartition(":")[2])
                return

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal and wait until the process ends. The default, SIGKILL, allows no clean shutdown."""
        assert self._process is not None
        assert self._process.stderr is not None
        self._process.send_signal(number)
        self._process.wait(WAIT)
        self._process = None

    def publish(self, messages: Iterable[Message], **options: str) -> None:
        """Publish and wait until all messages are acknowledged."""
        with Publisher(writing(self.write | options), f"test-{os.urandom(4).hex()}") as publisher:
            for message in messages:
                publisher.publish(message)
            publisher.finish()


def _listen(process: "subprocess.Popen[str]", told: "SimpleQueue[dict[str, Any] | str]") -> None:
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            try:
                told.put(json.loads(line))
            except ValueError:
                told.put(line)
    told.put("")


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Broker]:
    """Run a broker until the block ends."""
    broker = Broker(folder, **options)
    try:
        broker.start()
        yield broker
    finally:
        if broker._process is not None:
            broker.kill(signal.SIGTERM)
