"""Test `hookmq serve` with several workers: real processes, with a plugin that registers them but joins nothing."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect

pytestmark = pytest.mark.slow  # each test starts several brokers
WAIT = 60.0
PLUGIN = """
import os, sys
from dataclasses import dataclass
from pathlib import Path
from hookmq.plugin import Plugin, StoreError, hookimpl, setting

@dataclass(frozen=True)
class Config:
    count: int = setting(2, "count")
    name: str = setting("", "name")
    fail: str = setting("", "what fails")

class Plan:
    def __init__(self, plugin):
        self.plugin = plugin

    async def start(self):
        self.plugin.log("info", "plan.started", pid=os.getpid())
        if self.plugin.config.fail == "start":
            raise StoreError("the plan failed")

    def settings(self, worker):
        return {"name": f"node-{worker}"}

    async def stop(self):
        self.plugin.log("info", "plan.stopped")

class Joined(Plugin):
    Config = Config

    @hookimpl
    def register_workers(self, registry):
        registry.set(self.config.count, Plan(self))

    @hookimpl
    def on_startup(self):
        self.log("info", "joined.started", name=self.config.name, pid=os.getpid(),
                 state=os.environ["STATE_DIRECTORY"])
        if self.config.fail == self.config.name:
            raise StoreError("cannot join")

    @hookimpl
    def on_reload(self):
        self.log("info", "joined.reloaded", name=self.config.name)
"""
CONFIG = """version: 1
listeners:
  - {name: tcp, type: tcp, bind: "127.0.0.1:0"}
  - {name: unix, type: unix, bind: SOCKET}
  - {name: http, type: http, bind: "127.0.0.1:0"}
auth: {default: allow}
broker: {shutdown_timeout: 5s}
plugins:
  - {use: presence, enabled: false}
  - {use: joined}
"""


class Group:
    """A supervisor and its log."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        described = folder / "hookmq_joined-1.dist-info"
        if not described.exists():
            described.mkdir()
            (described / "METADATA").write_text(
                "Metadata-Version: 2.1\nName: hookmq-joined\nVersion: 1\n"
            )
            (described / "entry_points.txt").write_text(
                "[hookmq.plugins]\njoined = hookmq_joined:Joined\n"
            )
            (folder / "hookmq_joined.py").write_text(PLUGIN)
        self.path = folder / "hookmq.yaml"
        self.socket = folder / "s"
        if not self.path.exists():
            self.path.write_text(CONFIG.replace("SOCKET", str(self.socket)))
        environ = {**os.environ, "PYTHONPATH": str(folder), "XDG_STATE_HOME": str(folder / "state")}
        environ.pop("STATE_DIRECTORY", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hookmq.cli", "serve", "-c", str(self.path), "--log-format", "json", *arguments],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ, cwd=folder,
        )  # fmt: skip
        self.log: list[dict[str, Any]] = []
        self.text: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                try:
                    self.log.append(json.loads(line))
                except ValueError:
                    self.text.append(line.decode())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.process.stderr.close()

    def until(self, done: Callable[[], Any]) -> Any:
        """Wait until `done` returns something true, and return it. It is called after each line of the log."""
        with self._changed:
            found = self._changed.wait_for(lambda: done() or self._ended, WAIT)
            found = done() or None
            assert found, (self.log[-5:], self.text)
            return found

    def events(self, name: str, count: int = 1, **fields: object) -> list[dict[str, Any]]:
        """Wait for `count` events with these fields, and return them."""

        def found() -> list[dict[str, Any]]:
            wanted = {"event": name, **fields}.items()
            matching = [one for one in self.log if wanted <= one.items()]
            return matching if len(matching) >= count else []

        result: list[dict[str, Any]] = self.until(found)
        return result

    def started(self) -> None:
        self.events("workers.started")

    def pid(self, worker: str) -> int:
        """Return the process id of the worker that has started last."""
        return int(self.events("joined.started", worker=worker)[-1]["pid"])

    def port(self) -> int:
        found = {one["listeners"]["tcp"] for one in self.events("node.started", 2)}
        assert len(found) == 1
        return int(found.pop().rpartition(":")[2])

    def wait(self) -> int:
        code = self.process.wait(WAIT)
        self.until(lambda: self._ended)
        return code

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()


@contextmanager
def group(folder: Path, *arguments: str) -> Iterator[Group]:
    found = Group(folder, *arguments)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
            found.process.wait(WAIT)
        found.until(lambda: found._ended or True)


def connect(port: int, client_id: str) -> Any:
    """Return a connected socket after CONNACK."""
    sock = socket.create_connection(("127.0.0.1", port), WAIT)
    sock.sendall(encode(Connect(client_id, 4, True, 0), 4))
    assert sock.recv(4) == b"\x20\x02\x00\x00"
    return sock


def test_workers_share_the_listeners(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        found.started()
        port = found.port()
        clients = [connect(port, f"c{number}") for number in range(64)]
        by_worker = {
            worker: len(found.events("client.connected", worker=worker)) for worker in ("w0", "w1")
        }
        found.until(lambda: sum(one["event"] == "client.connected" for one in found.log) == 64)
        assert all(by_worker.values())
        pids = {found.pid("w0"), found.pid("w1"), found.process.pid}
        assert len(pids) == 3
        for worker in ("w0", "w1"):
            [started] = found.events("joined.started", worker=worker)
            assert started["name"] == f"node-{worker}"
            assert started["state"] == str(tmp_path / "state" / "hookmq" / "workers" / worker)
        assert found.events("plan.started")[0]["pid"] == found.process.pid
        https = {one["listeners"]["http"] for one in found.events("node.started", 2)}
        assert len(https) == 2
        assert found.stop() == 0
        found.events("plan.stopped")
        assert not found.text
        assert not [one for one in found.log if one["level"] == "error"]
        assert not found.socket.exists()
        for client in clients:
            client.close()


def test_a_unix_socket_is_shared(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        found.started()
        for _ in range(10):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(found.socket))
                sock.sendall(encode(Connect("c", 4, True, 0), 4))
                assert sock.recv(4) == b"\x20\x02\x00\x00"
        assert found.stop() == 0


def test_a_dead_worker_is_replaced_and_the_others_serve_meanwhile(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        found.started()
        port = found.port()
        for death in range(2):
            os.kill(found.pid("w0"), signal.SIGKILL)
            ended = found.events("worker.ended", death + 1, worker="w0")[-1]
            assert ended["reason"] == "signal SIGKILL"
            connect(port, "c").close()
            found.events("node.started", death + 2, worker="w0")
            found.events("joined.started", death + 2, worker="w0")
        assert ended["restart_in"] == 1.0
        assert len(found.events("node.started", worker="w1")) == 1
        found.events("node.started", 4)
        assert found.stop() == 0


def test_a_reload_reaches_every_worker(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        found.started()
        found.path.write_text(found.path.read_text().replace("5s", "6s"))
        found.process.send_signal(signal.SIGHUP)
        reloaded = found.events("node.reloaded", 2)
        assert {one["worker"] for one in reloaded} == {"w0", "w1"}
        assert found.stop() == 0


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        found.started()
        pids = [found.pid("w0"), found.pid("w1")]
        files = [os.pidfd_open(pid) for pid in pids]
        found.process.kill()
        for file in files:
            assert select.select([file], [], [], WAIT)[0]
            os.close(file)


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with group(tmp_path, "-o", "broker.shutdown_timeout=600") as found:
        found.started()
        client = connect(found.port(), "c")
        found.process.terminate()
        found.events("node.stopping", 2)
        found.process.send_signal(signal.SIGINT)
        assert found.wait() == 0
        client.close()


def test_an_error_at_startup_ends_all_workers(tmp_path: Path) -> None:
    with group(tmp_path, "-o", "plugins.1.config.fail=node-w1") as found:
        assert found.wait() == 3
        failed = found.events("worker.failed")
        assert failed[0]["worker"] == "w1"
        assert any("w1 hookmq: " in line and "cannot join" in line for line in found.text)
        found.events("plan.stopped")


def test_an_error_of_the_plan_ends_everything(tmp_path: Path) -> None:
    with group(tmp_path, "-o", "plugins.1.config.fail=start") as found:
        assert found.wait() == 1
        assert any("the plan failed" in line for line in found.text)
        found.events("plan.stopped")
        assert not [one for one in found.log if one["event"] == "joined.started"]


def test_the_option_overrides_the_number(tmp_path: Path) -> None:
    with group(tmp_path, "--workers", "3") as found:
        assert found.events("workers.started")[0]["workers"] == 3
        assert {one["worker"] for one in found.events("joined.started", 3)} == {"w0", "w1", "w2"}
        assert found.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--workers", "0"], 2, "option --workers: expected auto or a number from 1 to 1024, found '0'"),
        (["--workers", "2", "-o", "plugins.1.enabled=false"], 2, "no plugin joins several processes"),
        (["-o", "plugins.1.config.count=0"], 3, "expected at least 1 worker, found 0"),
        (["-o", "listeners.2.bind=127.0.0.1:65535"], 2, "the ports 65535 to 65536 of the workers"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(
    tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    with group(tmp_path, *arguments) as found:
        assert found.wait() == code
        assert text in "".join(found.text)


def test_a_port_that_is_taken_is_reported(tmp_path: Path, taken: int) -> None:
    with group(tmp_path, "-o", f"listeners.0.bind=127.0.0.1:{taken}") as found:
        assert found.wait() == 4
        assert "address already in use" in "".join(found.text)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
