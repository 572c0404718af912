"""The CPU time of a webhook's events, by process; see `bench.webhook`."""

import asyncio
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from . import launch
from .webhook_services import receiver, services

PARTS = {"hookmq_storage.writer": "storage", "hookmq_webhook.child": "sender"}
"""The processes of a broker other than the first, by module."""
ALTERNATIONS = 4


class Load:
    """Clients that publish at QoS 1, each with its own client id."""

    def __init__(self, port: int, clients: int = 20) -> None:
        self._sockets = []
        self.acked = 0
        for number in range(clients):
            name = b"bench%03d" % number
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(
                bytes((0x10, 12 + len(name)))
                + b"\x00\x04MQTT\x04\x02\x00\x00\x00"
                + bytes((len(name),))
                + name
            )
            assert client.recv(4) == b"\x20\x02\x00\x00"
            self._sockets.append(client)
        self._body = b"\x00\x04a/bc\x00\x01" + b'{"celsius": 21.5, "device": "pump-7"}'
        self._packet = bytes((0x32, len(self._body))) + self._body

    def run(self, count: int, per_second: float, most: int = 400) -> None:
        """Publish `count` messages, and wait until they are acknowledged. At most `most` are in flight."""
        began = time.perf_counter()
        sent = self.acked = 0
        while self.acked < count:
            due = (
                count
                if not per_second
                else min(count, int((time.perf_counter() - began) * per_second) + 1)
            )
            while sent < min(due, self.acked + most):
                self._sockets[sent % len(self._sockets)].sendall(self._packet)
                sent += 1
            ready, _, _ = select.select(self._sockets, (), (), 0.005)
            for client in ready:
                self.acked += len(client.recv(65536)) // 4

    def close(self) -> None:
        for client in self._sockets:
            client.close()


def _wait(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.02)


class Spent(NamedTuple):
    """CPU microseconds for each publish, by process."""

    broker: float = 0.0
    storage: float = 0.0
    sender: float = 0.0

    @property
    def total(self) -> float:
        return self.broker + self.storage + self.sender


def _part(pid: int) -> str:
    """Return which field of `Spent` counts a process."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return next((PARTS[word] for word in words if word in PARTS), "broker")


class Side:
    """One broker, the clients that publish to it, and the CPU time that it has used for their publishes.

    With `hook`, each publish becomes an event. With `durable`, each is stored for a session that is offline. Otherwise,
    the broker acknowledges publishes without storing them.
    """

    def __init__(
        self, stack: ExitStack, hook: dict[str, Any] | None = None, durable: bool = False
    ) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plugins: list[dict[str, Any]] = [
            {"use": "storage", "config": {"path": str(folder / "data")}}
        ]
        self._received: Callable[[], int] | None = None
        self._expected = 0
        if hook is not None:
            port, self._received = stack.enter_context(receiver())
            config = {
                "url": f"http://127.0.0.1:{port}/", "events": ["message.published"], "drain": 0, "concurrency": 16,
                "sign": {"secret": "whsec_" + "A" * 32}, "outbox": {"path": str(folder / "outbox")}, **hook,
            }  # fmt: skip
            plugins.append({"use": "webhook", "config": config})
        settings: dict[str, Any] = {
            "auth": {"default": "allow"}, "authz": {"default": "allow"}, "log": {"level": "error"}, "plugins": plugins,
        }  # fmt: skip
        running = stack.enter_context(launch.hookmq(folder, **settings))
        if durable:
            _leave_session(running.port)
        self._load = Load(running.port)
        stack.callback(self._load.close)
        self._pids = {pid: _part(pid) for pid in running.pids()}
        self._used = dict.fromkeys(Spent._fields, 0.0)
        self._published = 0
        self.seconds = 0.0
        """Seconds from the first PUBLISH to the last request."""
        self._run(200, 0)  # a warm-up

    def _run(self, count: int, per_second: float) -> None:
        self._load.run(count, per_second)
        received = self._received
        if received is not None:
            self._expected += count
            _wait(lambda: received() >= self._expected)

    def publish(self, count: int, per_second: float) -> None:
        """Publish `count` messages, wait until the service has received them all, and add the CPU time."""
        before = {pid: launch.cpu_seconds(pid) for pid in self._pids}
        began = time.perf_counter()
        self._run(count, per_second)
        self.seconds += time.perf_counter() - began
        if per_second:
            time.sleep(1.0)  # the last save of the position counts
        for pid, part in self._pids.items():
            self._used[part] += launch.cpu_seconds(pid) - before[pid]
        self._published += count

    @property
    def spent(self) -> Spent:
        """The CPU time so far."""
        return Spent(**{part: used / self._published * 1e6 for part, used in self._used.items()})


def _leave_session(port: int) -> None:
    """Leave a durable session that is subscribed to the topic of `Load`."""
    with closing(socket.create_connection(("127.0.0.1", port))) as client:
        client.sendall(b"\x10\x10\x00\x04MQTT\x04\x00\x00\x00\x00\x04kept")
        assert client.recv(4) == b"\x20\x02\x00\x00"
        client.sendall(b"\x82\x09\x00\x01\x00\x04a/bc\x01")
        assert client.recv(5) == b"\x90\x03\x00\x01\x01"


def compare(hook: dict[str, Any], per_second: float, count: int) -> tuple[list[Spent], float]:
    """Publish to three brokers in turns: without a webhook, with a durable session, and with a webhook. Return the cost
    of each, and the events per second with the webhook.
    """
    with ExitStack() as stack:
        sides = [Side(stack), Side(stack, durable=True), Side(stack, hook)]
        time.sleep(1.5)  # the position is saved, and everything is idle
        share = max(1, count // ALTERNATIONS)
        for _ in range(ALTERNATIONS):
            for side in sides:
                side.publish(share, per_second)
        return [side.spent for side in sides], share * ALTERNATIONS / sides[2].seconds


async def bare(port: int, count: int, at_a_time: int = 16) -> float:
    """Measure the CPU microseconds of this process for a POST with nothing but aiohttp's client."""
    body = bytes(500)
    headers = {"Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=at_a_time),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
    ) as session:

        async def post() -> None:
            for _ in range(count // at_a_time):
                async with session.post(
                    f"http://127.0.0.1:{port}/", data=body, headers=headers
                ) as answer:
                    await answer.read()

        began = time.process_time()
        await asyncio.gather(*(post() for _ in range(at_a_time)))
        return (time.process_time() - began) / (count // at_a_time * at_a_time) * 1e6


def events(count: int) -> None:
    """Print the CPU time of each process of the broker for each event."""
    heads = ("plain", "durable", "broker", "storage", "sender", "- plain", "- durable", "events/s")
    print(f"{'CPU us for each event':28}", *(f"{head:>9}" for head in heads))
    batch = {"envelope": "batch", "batch": {"count": 100, "linger": 0.05}}
    rows: list[tuple[str, dict[str, Any], float, int]] = [
        ("10 a second", {}, 10, min(count, 100)),
        ("100 a second", {}, 100, min(count, 1000)),
        ("1000 a second", {}, 1000, min(count, 5000)),
        ("as fast as possible", {}, 0, count * 4),
        ("as fast, batches of 100", batch, 0, count * 8),
    ]
    for name, hook, per_second, number in rows:
        (plain, durable, found), rate = compare(hook, per_second, number)
        values = (
            plain.total, durable.total, *found, found.total - plain.total, found.total - durable.total, rate,
        )  # fmt: skip
        print(f"{name:28}", *(f"{value:9.0f}" for value in values), flush=True)
    print(
        "plain, durable: a broker without webhook; with a durable session that stores each message"
    )
    print("broker, storage, sender: the processes of the broker with the webhook")
    print("- plain, - durable: all three, minus the other broker")
    with services() as ports:
        print(
            f"aiohttp's client alone: {asyncio.run(bare(ports['live'], count)):.0f} us for each POST"
        )
    print(f"load average: {os.getloadavg()[0]:.1f}")
