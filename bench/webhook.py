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
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish
from hookmq_testing import DurableStore, Harness, make_plugin
from hookmq_webhook.config import BatchConfig, OutboxConfig
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.plugin import WebhookPlugin
from hookmq_webhook.queues import Numbered

from . import launch
from .webhook_events import events
from .webhook_services import services

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
    arguments = parser.parse_args()
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
