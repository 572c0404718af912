"""`python -m bench.monitoring`: measure the cost of monitoring a broker.

- scrape: how long `/metrics` and `/slow-clients` of the admin API take with many sessions, and how long they block the
  event loop
- idle: CPU time of a broker with many idle clients, without and with the admin plugin
- tail: CPU time of a broker that forwards many messages, without and with a live tail of all of them

For scrape and idle, the broker runs in this process and its sessions have no sockets. For tail, the broker is a
separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hookmq.broker import Broker
from hookmq.broker.plugin_api import PluginBroker
from hookmq.hooks.manager import Hooks
from hookmq.model.client import Peer, Scope
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect, Publish, Subscribe, SubscribeRequest
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.extensions import PluginExtensions
from hookmq.server.loop import finished
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings
from hookmq_testing import make_plugin

from .held import NoWire
from .launch import START_SECONDS, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

GOALS = {"scrape": 0.050, "stall": 0.020, "idle": 0.01, "tail": 0.05}
"""The goals: seconds per scrape and per stall, the share of a core, and the share of a message's CPU time."""
BEAT = 0.001
CONFIG = """
version: 1
listeners:
  - {name: tcp, bind: "127.0.0.1:0"}
  - {name: http, type: http, bind: "127.0.0.1:0"}
auth: {default: allow}
authz: {default: allow}
plugins: [{use: admin, config: {first_token_file: token}}]
"""


ASKER = """
import json, sys, time, urllib.request
for line in sys.stdin:
    url, token = line.split()
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    print(json.dumps([time.perf_counter() - began, text[-50:] + text[:200_000]]), flush=True)
"""


class Quiet(AsyncioRuntime):
    """A runtime that logs nothing."""

    __slots__ = ()

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Do nothing."""


class Stalls:
    """Measures how late the event loop is. It wakes a thousand times a second and keeps the longest delay."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self.longest = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring again from zero."""
        self.stop()
        self.longest = 0.0
        self._next()

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        self._due = self._loop.time() + BEAT
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        self.longest = max(self.longest, self._loop.time() - self._due)
        self._next()


@contextlib.asynccontextmanager
async def held(sessions: int, admin: bool) -> AsyncIterator[tuple[str, str]]:
    """Run a broker with `sessions` clients in this process. Yield its URL and the first admin token."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "token"
        from hookmq_admin.plugin import AdminPlugin

        options = {"first_token_file": str(file)}
        hooks = Hooks((make_plugin(AdminPlugin, options, "admin"),) if admin else ())
        runtime = Quiet()
        broker = Broker(
            Settings(auth=AuthSettings("allow"), authz=AuthzSettings("allow")), runtime, hooks
        )

        class Started(Server):
            async def prepare(self) -> None:
                await finished(hooks.startup)
                self.use(PluginExtensions(hooks, broker))

        server = Started(
            broker, [ListenerSettings(name="http", type="http", bind="127.0.0.1:0")], runtime
        )
        hooks.bind(runtime, partial(PluginBroker, broker.state))
        await server.start()
        await finished(hooks.ready)
        try:
            for number in range(sessions):
                connection = broker.accept(
                    NoWire(), Peer("127.0.0.1", number % 60_000, "tcp"), Scope()
                )
                connection.feed(encode(Connect(f"client{number}", 4, True, 3600), 4))
                if number % 1000 == 999:
                    await asyncio.sleep(0)
            assert len(broker.sessions) == sessions
            yield f"http://{server.addresses()['http']}", file.read_text().strip() if admin else ""
        finally:
            await server.stop()
            await finished(lambda done: hooks.shutdown(5, done))
            await runtime.close()


class Asker:
    """A separate process that sends requests. Starting a process for each request would block the event loop."""

    async def __aenter__(self) -> Asker:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASKER, stdin=pipe, stdout=pipe, limit=1 << 22
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def ask(self, url: str, token: str) -> tuple[float, str]:
        """Fetch `url`. Return the duration in seconds and the response."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{url} {token}\n".encode())
        seconds, text = json.loads(await self._process.stdout.readline())
        return float(seconds), str(text)


async def scrape(sessions: int, rounds: int) -> Iterator[str]:
    """Measure how long each path takes with many sessions, and return the rows of `scrape`."""
    lines = []
    async with held(sessions, admin=True) as (url, token), Asker() as asker:
        stalls = Stalls()
        slow = f"{url}/plugins/admin/api/v1/slow-clients"
        for name, path in (("/metrics", f"{url}/metrics"), ("/slow-clients", slow)):
            times, longest = [], []
            for _ in range(rounds):
                stalls.start()
                seconds, text = await asker.ask(path, token)
                stalls.stop()
                assert "hookmq_sessions" in text or "examined" in text, text
                times.append(seconds)
                longest.append(stalls.longest)
            median, stall = sorted(times)[rounds // 2], sorted(longest)[rounds // 2]
            late = name == "/metrics" and median > GOALS["scrape"]
            met = "MISSED" if late or stall > GOALS["stall"] else "met"
            worst, latest = max(times), max(longest)
            lines.append(
                f"{name} with {sessions:,} sessions: {median * 1e3:.1f} ms (at most {worst * 1e3:.1f}), loop late by "
                f"{stall * 1e3:.1f} ms (at most {latest * 1e3:.1f}); goals 50 ms (/metrics) and 20 ms {met}"
            )
    return iter(lines)


async def idle(clients: int, seconds: float) -> str:
    """Measure the CPU time with idle clients, and return the row of `idle`."""
    shares = []
    for admin in (False, True):
        async with held(clients, admin):
            await asyncio.sleep(1)  # the clients have just connected: leave that out of the figure
            before = time.process_time()
            await asyncio.sleep(seconds)
            shares.append((time.process_time() - before) / seconds)
    met = "met" if shares[1] - shares[0] < GOALS["idle"] else "MISSED"
    return (
        f"idle with {clients:,} clients: {shares[0]:.2%} of a core without admin, {shares[1]:.2%} with it; "
        f"goal: admin below 1% {met}"
    )


@contextlib.contextmanager
def served() -> Iterator[tuple[int, int, str, str]]:
    """Run ``hookmq serve``. Yield its process id, MQTT port, HTTP address and token."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "hookmq.yaml"
        path.write_text(CONFIG)
        process = subprocess.Popen(
            [sys.executable, "-m", "hookmq.cli", "serve", "--log-format", "json", "-c", str(path)],
            stderr=subprocess.PIPE, cwd=folder, text=True,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            for line in process.stderr:
                entry = json.loads(line)
                if entry["event"] == "node.started":
                    break
            ports: dict[str, Any] = entry["listeners"]
            token = pathlib.Path(folder) / "token"
            deadline = time.monotonic() + START_SECONDS
            while not token.exists() and time.monotonic() < deadline:
                time.sleep(0.05)  # between two looks for the file that the broker writes
            yield (
                process.pid,
                int(ports["tcp"].rpartition(":")[2]),
                ports["http"],
                token.read_text().strip(),
            )
        finally:
            process.terminate()
            process.communicate()


def forwarded(pid: int, port: int, rate: int, seconds: float) -> tuple[float, int]:
    """Publish `rate` messages a second to one subscriber. Return the broker's CPU seconds and the messages received."""
    packets = b"".join(
        encode(Publish(f"bench/{number % 100}", b"x" * 64), 4) for number in range(rate // 100)
    )
    size = len(packets) // (rate // 100)
    sub, pub = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
    for one, name in ((sub, "sub"), (pub, "pub")):
        one.sendall(encode(Connect(name, 4, True, 60), 4))
        one.recv(4)
    sub.sendall(encode(Subscribe(1, (SubscribeRequest("bench/#", 0),)), 4))
    sub.recv(5)
    sub.setblocking(False)
    received = 0
    began, before = time.monotonic(), cpu_seconds(pid)
    for step in range(int(seconds * 100)):
        pub.sendall(packets)
        while True:
            try:
                received += len(sub.recv(1 << 20))
            except BlockingIOError:
                break
        time.sleep(
            max(0.0, began + (step + 1) / 100 - time.monotonic())
        )  # a hundred bursts a second
    used = cpu_seconds(pid) - before
    took = time.monotonic() - began
    sub.close()
    pub.close()
    return used / took, int(received / size / took)


def tail(rate: int, seconds: float) -> str:
    """Measure forwarding without and with a live tail, and return the row of `tail`."""
    with served() as (pid, port, http, token):
        forwarded(pid, port, rate, 1)
        without, plain = forwarded(pid, port, rate, seconds)
        follow = subprocess.Popen(
            [
                "curl", "-sSN", "-o", "/dev/null", "-H", f"Authorization: Bearer {token}",
                f"http://{http}/plugins/admin/api/v1/tail?filter=%23&rate=100",
            ]
        )  # fmt: skip
        try:
            time.sleep(1)  # curl does not say when the tail has subscribed
            assert follow.poll() is None
            share, followed = forwarded(pid, port, rate, seconds)
        finally:
            follow.terminate()
            follow.wait()
    met = "met" if followed >= plain * (1 - GOALS["tail"]) else "MISSED"
    return (
        f"tail of {rate:,} messages/s: {plain:,} delivered/s and {without:.1%} of a core without it, "
        f"{followed:,} delivered/s and {share:.1%} with it; goal: at most 5% fewer delivered {met}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the rows, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.monitoring", description=__doc__)
    parser.add_argument("rows", nargs="*", default=["scrape", "idle", "tail"])
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    if "scrape" in given.rows:
        for line in asyncio.run(scrape(given.sessions, given.rounds)):
            print(line, flush=True)
    if "idle" in given.rows:
        print(asyncio.run(idle(given.clients, given.seconds)), flush=True)
    if "tail" in given.rows:
        print(tail(given.rate, given.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
