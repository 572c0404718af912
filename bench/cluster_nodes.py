"""The brokers that bench.cluster measures: a single one with storage, a cluster of three, one with workers, and NATS
servers that are MQTT brokers themselves.

Every process runs on this machine. A cluster has three NATS servers that write each commit to the disk before they
answer.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

from . import launch, peers

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))
from nats_server import NatsCluster

NODES = ("a", "b", "c")
START = 60.0
"""Seconds until all nodes must have joined the cluster."""


class Brokers:
    """Running brokers. `ports` has the MQTT port of each one, and `pids` the first process of each one and of each NATS
    server. `folder` has their files, and the log of each broker as NAME.log."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.ports: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        self.nats_port = 0
        """The port of the first NATS server, or 0."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cpu: dict[int, float] = {}

    def start(self, name: str, plugin: dict[str, Any]) -> None:
        """Start a broker with one plugin. Blocks until it accepts connections. Raises PeerError."""
        port = launch.free_port()
        file = self.folder / f"{name}.yaml"
        file.write_text(
            json.dumps(
                {
                    "version": 1,
                    "listeners": [{"name": "tcp", "bind": f"127.0.0.1:{port}"}],
                    "auth": {"default": "allow"},
                    "authz": {"default": "allow"},
                    "session": {"queue_messages": 10_000_000, "queue_bytes": "1GiB"},
                    "plugins": [plugin],
                }
            )
        )
        _, program = peers.find("hookmq")
        output = self.log(name)
        with output.open("wb") as stream:
            process = self._processes[name] = subprocess.Popen(
                [program, "serve", "-c", str(file)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        launch.await_listener(f"broker {name}", process, port, output)
        self.ports[name] = port
        self.pids[name] = process.pid

    def log(self, name: str) -> pathlib.Path:
        """Return the file with the log of a broker."""
        return self.folder / f"{name}.log"

    def kill(self, name: str) -> None:
        """Kill a broker at once, with SIGKILL."""
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()
        del self.pids[name]

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds that each broker and each NATS server has used, with its child processes."""
        return {
            name: sum(map(self._seconds, launch.process_tree(pid)))
            for name, pid in self.pids.items()
        }

    def _seconds(self, pid: int) -> float:
        with contextlib.suppress(OSError):  # a process that has ended counts with its last value
            self._cpu[pid] = launch.cpu_seconds(pid)
        return self._cpu.get(pid, 0.0)

    def close(self) -> None:
        """Stop the brokers that still run."""
        for process in self._processes.values():
            process.terminate()  # so that all of them stop at the same time
        for process in self._processes.values():
            launch.stop(process)


@contextlib.contextmanager
def _folder() -> Iterator[pathlib.Path]:
    peers.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=peers.CACHE, prefix="cluster-") as name:
        yield pathlib.Path(name)


@contextlib.contextmanager
def single() -> Iterator[Brokers]:
    """Run one broker, `a`, with the plugin storage."""
    with _folder() as folder, contextlib.closing(Brokers(folder)) as brokers:
        brokers.start("a", {"use": "storage", "config": {"path": "data"}})
        yield brokers


@contextlib.contextmanager
def workers(count: int, together: bool = False) -> Iterator[Brokers]:
    """Run one broker, `a`, with `count` workers and the nats-server that they share. If `together`, clients whose ids end
    with the same number use the same worker."""
    config: dict[str, Any] = {"workers": count, "folder": "nats"}
    config |= {"replicas": 1, "allow_single_replica": True}
    if together:
        config["together"] = "([0-9]+)$"
    with _folder() as folder, contextlib.closing(Brokers(folder)) as brokers:
        brokers.start("a", {"use": "cluster", "config": config})
        # The first worker listens before the others.
        _await_joined(brokers, "a", count)
        yield brokers


@contextlib.contextmanager
def cluster(lease: float = 10.0) -> Iterator[Brokers]:
    """Run three brokers and three NATS servers. Blocks until all of them are one cluster. Raises PeerError."""
    nats = NatsCluster(3)
    try:
        nats.start()
        with _folder() as folder, contextlib.closing(Brokers(folder)) as brokers:
            brokers.nats_port = nats.nodes[0].port
            for node in nats.nodes:
                brokers.pids[node.name] = node.pid
            for name in NODES:
                config = {"servers": list(nats.urls), "node": name, "lease": lease}
                brokers.start(name, {"use": "cluster", "config": config})
            _await_members(brokers)
            yield brokers
    finally:
        nats.close()


@contextlib.contextmanager
def nats() -> Iterator[Brokers]:
    """Run three NATS servers with their own MQTT listeners. Blocks until they store messages. Raises PeerError."""
    servers = NatsCluster(3, mqtt=True)
    try:
        servers.start()
        with _folder() as folder, contextlib.closing(Brokers(folder)) as brokers:
            for name, node in zip(NODES, servers.nodes, strict=True):
                brokers.ports[name] = node.mqtt_port
                brokers.pids[node.name] = node.pid
            _await_mqtt(brokers.ports.values())
            yield brokers
    finally:
        servers.close()


def _await_mqtt(ports: Iterable[int]) -> None:
    """Block until each of the brokers at `ports` accepts a client with a durable session."""
    packet = b"\x10\x10\x00\x04MQTT\x04\x00\x00\x3c\x00\x04wait"
    for port in ports:
        deadline = time.monotonic() + START
        answer = b""
        while answer[:2] != b"\x20\x02" or answer[3:] != b"\x00":  # not an accepting CONNACK
            if time.monotonic() > deadline:
                raise peers.PeerError(f"the MQTT broker at port {port} does not accept clients")
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 5) as one,
            ):
                one.sendall(packet)
                answer = one.recv(4)
            time.sleep(0.1)  # between two attempts


def _await_members(brokers: Brokers) -> None:
    """Block until each node has joined."""
    for name in NODES:
        _await_joined(brokers, name, 1)


def _await_joined(brokers: Brokers, name: str, count: int) -> None:
    """Block until `count` processes of a broker have joined. Raises PeerError."""
    deadline = time.monotonic() + START
    while len(re.findall(r"cluster\.joined", brokers.log(name).read_text())) < count:
        if time.monotonic() > deadline:
            raise peers.PeerError(f"node {name} has not joined the cluster after {START:g} s")
        time.sleep(0.02)  # between two looks at its log
