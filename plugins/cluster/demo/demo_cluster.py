"""The demo's NATS servers and brokers: processes that can be killed and started again."""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from hookmq_cluster import nats_launcher
from hookmq_cluster.nats_child import find_program

PATIENCE: Final = 60.0
"""Seconds within which a process must accept connections, or end."""
LEASE: Final = 3
"""Seconds of a node's lease: the shortest one, so that nothing takes long. The default is 15."""
GLANCE: Final = 0.05
ANSWER: Final = 2.0
"""Seconds to wait for an answer of the admin API."""


class ProcessFailed(Exception):
    """A process does not start, or has ended by itself. The text has its last lines."""


def free_ports(count: int) -> list[int]:
    """Return different ports that are free now."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in found]
    for one in found:
        one.close()
    return ports


class Process:
    """A program that listens on `port`. Its output is in the file `log`. It ends when the demo ends."""

    def __init__(self, name: str, folder: Path, port: int, words: list[str]) -> None:
        self.name = name
        self.port = port
        self.killed = False
        """Whether the demo has killed the process, and has not started it again."""
        self._log = folder / f"{name}.log"
        self._words = words
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process, without waiting for it."""
        launcher = (sys.executable, nats_launcher.__file__, str(os.getpid()))
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *launcher, *self._words, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.killed = False

    async def wait(self) -> None:
        """Wait until the process accepts connections. Raises ProcessFailed."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not await self.listens():
                    self.check()
                    await asyncio.sleep(GLANCE)
        except TimeoutError:
            raise ProcessFailed(self._text("does not accept connections")) from None

    async def listens(self) -> bool:
        """Return whether the process accepts connections now."""
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.close()
            return True
        return False

    def check(self) -> None:
        """Raise ProcessFailed if the process has ended by itself."""
        process = self._process
        if process is not None and not self.killed and process.returncode is not None:
            raise ProcessFailed(self._text(f"ended with exit code {process.returncode}"))

    async def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        self.killed = True
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._end(signal.SIGTERM)
        except TimeoutError:
            await self.kill()

    async def _end(self, sent: signal.Signals) -> None:
        process = self._process
        if process is not None:
            if process.returncode is None:
                process.send_signal(sent)
            await process.wait()

    def _text(self, what: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-10:]
        return "\n  ".join([f"{self.name} {what}. Its last lines:", *lines])


class Broker(Process):
    """A node of the cluster, with the plugin admin, which tells the node's state."""

    def __init__(self, folder: Path, name: str, ports: list[int], servers: list[str]) -> None:
        self._http = ports[1]
        self._token = folder / f"{name}.token"
        cluster = {"servers": servers, "node": name, "name": "demo", "lease": f"{LEASE}s"}
        file = folder / f"{name}.yaml"
        configuration = {
            "version": 1,
            "listeners": [
                {"name": "tcp", "bind": f"127.0.0.1:{ports[0]}"},
                {"name": "http", "type": "http", "bind": f"127.0.0.1:{ports[1]}"},
            ],
            "auth": {"default": "allow"},
            "authz": {"default": "allow"},
            "session": {"queue_messages": 1_000_000, "queue_bytes": "1GiB"},
            "broker": {"flapping_takeovers": 1_000_000},
            "plugins": [
                {"use": "cluster", "config": cluster},
                {"use": "admin", "config": {"first_token_file": str(self._token)}},
            ],
        }
        file.write_text(json.dumps(configuration, indent=1))
        words = [sys.executable, "-m", "hookmq.cli", "serve", "-c", str(file)]
        super().__init__(name, folder, ports[0], words)

    async def ask(self, path: str) -> dict[str, Any] | None:
        """Return an answer of the node's admin API, or None if it does not answer."""
        if self.killed or not self._token.exists():
            return None
        return await asyncio.to_thread(self._ask, path)

    def _ask(self, path: str) -> dict[str, Any] | None:
        request = Request(
            f"http://127.0.0.1:{self._http}/plugins/admin/api/v1/{path}",
            headers={"Authorization": f"Bearer {self._token.read_text().strip()}"},
        )
        with suppress(OSError, ValueError), urlopen(request, timeout=ANSWER) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
        return None


class Processes:
    """Three NATS servers that are one cluster, and three brokers. Raises EngineError if nats-server is not installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports = free_ports(12)
        routes = [f"nats://127.0.0.1:{port}" for port in ports[3:6]]
        program = str(find_program())
        self.servers = [
            Process(
                f"n{number}", folder, port,
                [program, "-c", str(self._server_file(f"n{number}", port, ports[3 + number], routes))],
            )
            for number, port in enumerate(ports[:3])
        ]  # fmt: skip
        urls = [f"nats://127.0.0.1:{one.port}" for one in self.servers]
        self.brokers = [
            Broker(folder, name, ports[6 + 2 * number : 8 + 2 * number], urls)
            for number, name in enumerate("abc")
        ]

    def _server_file(self, name: str, port: int, route: int, routes: list[str]) -> Path:
        file = self._folder / f"{name}.conf"
        file.write_text(
            f"server_name: {name}\n"
            f'listen: "127.0.0.1:{port}"\n'
            f"jetstream {{ store_dir: {json.dumps(str(self._folder / name))}, sync_interval: always }}\n"
            f'cluster {{ name: demo, listen: "127.0.0.1:{route}", routes: {json.dumps(routes)} }}\n'
        )
        return file

    @property
    def everything(self) -> list[Process]:
        """All processes."""
        return [*self.servers, *self.brokers]

    async def start(self, parts: list[Process]) -> None:
        """Start processes, and wait until they accept connections. Raises ProcessFailed."""
        for one in parts:
            await one.start()
        for one in parts:
            await one.wait()

    def check(self) -> None:
        """Raise ProcessFailed if any process has ended by itself."""
        for one in self.everything:
            one.check()

    async def stop(self) -> None:
        """Stop the brokers, then the servers."""
        await asyncio.gather(*(one.stop() for one in self.brokers))
        await asyncio.gather(*(one.stop() for one in self.servers))
