"""``python -m bench.webhook``: measure the cost of a webhook for publishers, and the events delivered per second.

Latency: one client publishes at QoS 1 at a steady rate and waits for each PUBACK. The brokers, each in its own process,
take turns. A *live* service responds immediately, a *dead* service's port is closed, and a *silent* service accepts
connections but never responds.

Events: clients publish at a fixed rate, or as fast as possible. A broker with a webhook sends a signed event for each
message to an aiohttp service. The table shows the CPU time for each event in each process of the broker: the broker
itself, the storage process and the sending process. The same messages also go to a broker without a webhook, and to a
broker that stores each message for a durable session, because the outbox makes each PUBLISH durable too. The three
brokers take turns. The service and the clients are not counted.

Cost: the CPU time that an in-memory broker needs for a PUBLISH. With the webhook, this includes packing and queueing
the event and passing it to a service that accepts everything.

`--alone` requires root. It gives the client, brokers and services priority over all other work on the machine
(SCHED_FIFO), so that other work does not affect latencies. The sending processes keep the priority that the plugin
gives them.
"""

import argparse
import asyncio
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import aiohttp
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish
from hookmq_testing import DurableStore, Harness, make_plugin
from hookmq_webhook.config import BatchConfig, OutboxConfig
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.plugin import WebhookPlugin
from hookmq_webhook.queues import Numbered

from . import launch

PACE = 0.005
"""Seconds between two publishes."""
ROUNDS = 6
SHAPES: dict[str, tuple[str, str, str]] = {
    "no webhook": ("group", "", ""),
    "at_least_once, live": ("group", "at_least_once", "live"),
    "at_least_once, dead": ("group", "at_least_once", "dead"),
    "at_least_once, silent": ("group", "at_least_once", "silent"),
    "best_effort, live": ("group", "best_effort", "live"),
    "best_effort, dead": ("group", "best_effort", "dead"),
    "best_effort, silent": ("group", "best_effort", "silent"),
}
CONNECT = b"\x10\x12\x00\x04MQTT\x04\x02\x00\x00\x00\x06bench0"


class Taker(asyncio.Protocol):
    """A minimal service. It responds to every POST with 204."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            at = head.index(b"content-length:") + 15
            size = int(head[at:].split(b"\r\n", 1)[0])
            if len(self.data) < end + 4 + size:
                return
            self.data = self.data[end + 4 + size :]
            self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


async def take() -> None:
    """Run the service and print its port."""
    server = await asyncio.get_running_loop().create_server(Taker, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def services() -> Iterator[dict[str, int]]:
    """Run a service of each kind while the block runs. Yield their ports."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.webhook", "--take"], stdout=subprocess.PIPE, text=True
    )
    with closing(socket.socket()) as silent, closing(socket.socket()) as dead:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        dead.bind(("127.0.0.1", 0))
        try:
            assert process.stdout is not None
            yield {
                "live": int(process.stdout.readline()),
                "silent": silent.getsockname()[1],
                "dead": dead.getsockname()[1],
            }
        finally:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def broker(folder: Path, shape: tuple[str, str, str], ports: dict[str, int]) -> Iterator[int]:
    """Run a broker while the block runs. Yield its port."""
    durability, mode, service = shape
    plugins: list[dict[str, Any]] = [
        {"use": "storage", "config": {"path": str(folder / "data"), "durability": durability}}
    ]
    if mode:
        hook = {
            "url": f"http://127.0.0.1:{ports[service]}/",
            "events": ["message.published"],
            "mode": mode,
            "outbox": {"path": str(folder / "outbox")},
            "drain": 0,
        }
        plugins.append({"use": "webhook", "config": hook})
    settings: dict[str, Any] = {
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "log": {"level": "error"},
        "plugins": plugins,
    }
    with launch.hookmq(folder, **settings) as running:
        yield running.port


def latencies(count: int) -> dict[str, list[float]]:
    """Measure the milliseconds from PUBLISH to PUBACK for each kind of broker. The brokers take turns."""
    found: dict[str, list[float]] = {name: [] for name in SHAPES}
    with ExitStack() as stack:
        ports = stack.enter_context(services())
        clients: dict[str, socket.socket] = {}
        for name, shape in SHAPES.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            port = stack.enter_context(broker(folder, shape, ports))
            client = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(CONNECT)
            assert client.recv(4) == b"\x20\x02\x00\x00"
            clients[name] = client
        for round in range(ROUNDS + 1):
            for name, client in clients.items():
                told = _publish(client, count // ROUNDS if round else 20)
                if round:  # the first round is a warm-up
                    found[name] += told
    return found


def _publish(client: socket.socket, count: int) -> list[float]:
    found = []
    body = b"\x32\x46\x00\x04a/bc\x00\x01" + b'"' + bytes(b"x" * 60) + b'"'
    body = body[:1] + bytes((len(body) - 2,)) + body[2:]
    for _ in range(count):
        began = time.perf_counter()
        client.sendall(body)
        got = b""
        while len(got) < 4:
            got += client.recv(4 - len(got))
        assert got == b"\x40\x02\x00\x01"
        found.append((time.perf_counter() - began) * 1000)
        time.sleep(PACE)
    return found


@contextmanager
def receiver() -> Iterator[tuple[int, Callable[[], int]]]:
    """Run an aiohttp service that accepts everything. Yield its port, and a function that returns how many requests it
    has received.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.webhook", "--receive"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())

    def count() -> int:
        with urlopen(f"http://127.0.0.1:{port}/count") as answer:
            return int(answer.read())

    try:
        yield port, count
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


async def receive() -> None:
    """Run that service, and print its port."""
    from aiohttp import web

    received = 0

    async def take(request: web.Request) -> web.Response:
        nonlocal received
        body = await request.read()
        # A batch is an array of events.
        received += len(json.loads(body)) if body[:1] == b"[" else 1
        return web.Response(status=204)

    async def count(request: web.Request) -> web.Response:
        return web.Response(text=str(received))

    application = web.Application()
    application.router.add_post("/", take)
    application.router.add_get("/count", count)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


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


PARTS = {"hookmq_storage.writer": "storage", "hookmq_webhook.child": "sender"}
"""The processes of a broker other than the first, by module."""
ALTERNATIONS = 4


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


class _Takes:
    """An in-process service that accepts everything."""

    def __init__(self, *given: Any) -> None:
        self.statuses: dict[int, int] = {}
        self.bytes = 0

    async def send(self, events: Sequence[Numbered]) -> Answer:
        return Answer(Verdict.ARRIVED)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class _Hook(WebhookPlugin):
    Sender = _Takes  # type: ignore[assignment]


def cost(mode: str, folder: Path, qos: int, count: int) -> float:
    """Measure the CPU microseconds per PUBLISH. Return the best of several rounds."""
    plugins = []
    if mode:
        settings = {
            "url": "http://127.0.0.1:1/", "events": ("message.published",), "mode": mode, "drain": 0.0,
            "outbox": OutboxConfig(path=folder / mode / str(qos)), "batch": BatchConfig(100), "envelope": "batch",
        }  # fmt: skip
        plugins = [make_plugin(_Hook, settings, "hook")]
    with Harness(plugins, store=DurableStore()) as harness:
        client = harness.connect("client", auto_ack=False)
        client.publish("bench/a", bytes(30), qos, packet_id=1 if qos else 0)
        packet = b"".join(
            encode(Publish("bench/a", bytes(30), qos, packet_id=n + 1 if qos else 0), 5)
            for n in range(500)
        )
        client.wire.write = lambda data: None  # type: ignore[method-assign]
        found = []
        for _ in range(5):
            began = time.process_time()
            for _ in range(count // 500):
                client.connection.feed(packet)
                harness.clock.run_until_idle()
            found.append((time.process_time() - began) / (count // 500 * 500) * 1e6)
    return min(found)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=1200, help="publishes to each broker")
    parser.add_argument("--events", type=int, default=5000, help="events to deliver from an outbox")
    parser.add_argument(
        "--alone",
        action="store_true",
        help="schedule everything before other work on the machine (root)",
    )
    parser.add_argument(
        "--only-events", action="store_true", help="measure only the CPU time for each event"
    )
    parser.add_argument("--take", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.take:
        asyncio.run(take())
        return
    if arguments.receive:
        asyncio.run(receive())
        return
    if arguments.only_events:
        events(arguments.events)
        return
    os.environ.setdefault("XDG_STATE_HOME", tempfile.gettempdir())
    usual = os.sched_getscheduler(0), os.sched_getparam(0)
    if arguments.alone:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    found = latencies(arguments.messages)
    os.sched_setscheduler(
        0, *usual
    )  # at real-time priority, the remaining work would block the cores for too long
    plain = percentile(found["no webhook"], 0.99)
    print(f"{'publisher':24} {'p50 ms':>8} {'p99 ms':>8} {'p99 ratio':>10}")
    for name, values in found.items():
        mode = name.partition(",")[0]
        base = percentile(found[f"{mode}, live"], 0.99) if mode == "at_least_once" else plain
        p99 = percentile(values, 0.99)
        print(f"{name:24} {statistics.median(values):8.2f} {p99:8.2f} {p99 / base:10.2f}")
    print("ratio: at_least_once against live, best_effort against no webhook")
    events(arguments.events)
    with tempfile.TemporaryDirectory() as folder:
        for qos in (0, 1):
            costs = {
                m: cost(m, Path(folder), qos, 5000) for m in ("", "best_effort", "at_least_once")
            }
            words = ", ".join(f"{m or 'no webhook'} {us:.1f}" for m, us in costs.items())
            print(f"QoS {qos}, CPU us per publish: {words}")


if __name__ == "__main__":
    main()
