"""What rate limits cost a publish: the take itself, the same within a whole broker in memory, and through the wire.

    python -m bench.ratelimit [--messages N] [--no-wire]

Wire: one publisher and one subscriber over loopback TCP; the broker is a process of its own, and what is told is its CPU
time for each message, which other work on the machine changes little.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hookmq.codec import Connect, Publish, Subscribe, SubscribeRequest, encode
from hookmq.plugin import ClientInfo, Context, Peer, Plugin, hookimpl
from hookmq.runtime import Runtime
from hookmq.testing import Harness, make_plugin
from hookmq.types import Scope
from hookmq_ratelimit.buckets import Allowance, Bucket
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_ratelimit.settings import Limit
from hookmq_ratelimit.tolls import Toll

HIGH = "900000/s"
CASES: dict[str, list[dict[str, Any]]] = {
    "no plugin": [],
    "1 limit": [{"rate": HIGH}],
    "2 windows": [{"rate": f"{HIGH}, 50000000/min"}],
    "client, broker, bytes": [
        {"rate": HIGH},
        {"rate": HIGH, "per": "broker"},
        {"what": "bytes", "rate": "900000/s", "burst": 1e9},
    ],
    "by topic": [{"rate": HIGH}, {"rate": HIGH, "filters": ["bench/#", "other/+"], "name": "x"}],
}


class PassingHook(Plugin):
    """What it would cost to look at each message in `on_publish`."""

    @hookimpl
    def on_publish(self, message: object) -> None:
        return None


class _Office:
    def __init__(self) -> None:
        class Now:
            now = staticmethod(time.monotonic)

        self.runtime: Runtime = Now()  # type: ignore[assignment]

    def limited(self, bucket: Bucket, client: ClientInfo, outcome: str) -> None: ...
    def waited(self, bucket: Bucket, seconds: float) -> None: ...
    def gave_up(self) -> None: ...
    def bucket(self, allowance: Allowance, client: ClientInfo) -> Bucket:
        return allowance.get("", 0.0)


def best(call: Callable[[], None], count: int, rounds: int = 7) -> float:
    """Microseconds for one of `count`, the best of some rounds, in CPU time."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        found.append((time.process_time() - began) / count * 1e6)
    return min(found)


def take(name: str, count: int) -> float:
    """One `take`."""
    office = _Office()
    buckets = [
        Allowance(Limit(**limit), "bench", 10).get("", time.monotonic()) for limit in CASES[name]
    ]
    client = ClientInfo("c", 5, None, Peer("127.0.0.1"), Scope())
    toll = Toll(office, client, buckets)
    for bucket in buckets:
        for cell in bucket.cells:
            cell.base = cell.room = cell.spare = 1e9  # never used up, however fast this is

    def run() -> None:
        one = toll.take
        for _ in range(count):
            one(50)

    return best(run, count)


def in_process(plugins: list[Any], count: int, qos: int) -> float:
    """A PUBLISH from its bytes to the bytes of one subscriber; many in one read, as a busy publisher sends."""
    with Harness(plugins) as harness:
        other = harness.connect("other", auto_ack=False)
        other.subscribe("bench/a", 0)
        client = harness.connect("client", auto_ack=False)
        for number in range(3):
            client.publish("bench/a", bytes(30), qos, packet_id=number + 1 if qos else 0)
        packet = b"".join(
            encode(Publish("bench/a", bytes(30), qos, packet_id=n + 1 if qos else 0), 5)
            for n in range(500)
        )
        feed, turn = client.connection.feed, harness.clock.run_until_idle
        client.wire.write = other.wire.write = lambda data: None  # type: ignore[method-assign]

        def run() -> None:
            for _ in range(count // 500):
                feed(packet)
                turn()
                harness.clock._now += 0.01  # tokens come as time goes on

        return best(run, count // 500 * 500, 5)


CONFIG = """\
version: 1
listeners: [{{name: tcp, bind: "127.0.0.1:0"}}]
auth: {{default: allow}}
authz: {{default: allow}}
log: {{level: info, format: json}}
plugins: {plugins}
"""


@contextmanager
def broker(limits: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """A broker of its own: (port, process id)."""
    plugins: list[dict[str, Any]] = []
    if limits:
        plugins.append({"use": "ratelimit", "config": {"limits": limits}})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "hookmq.yaml")
        path.write_text(CONFIG.format(plugins=json.dumps(plugins)))
        process = subprocess.Popen(
            [sys.executable, "-m", "hookmq.cli", "serve", "-c", str(path)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "listener.opened" in line:
                    yield int(json.loads(line)["address"].rpartition(":")[2]), process.pid
                    break
            else:
                raise RuntimeError("the broker did not start")
        finally:
            process.terminate()
            process.communicate()


def cpu(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wire(limits: list[dict[str, Any]], count: int, qos: int) -> float:
    """Microseconds of the broker's CPU time for a PUBLISH over loopback TCP."""
    with broker(limits) as (port, pid):
        receiver, sender = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        with receiver, sender:
            for sock, name in ((receiver, "r"), (sender, "s")):
                sock.sendall(encode(Connect(name, 4, True, 0), 4))
                assert sock.recv(100)
            receiver.sendall(encode(Subscribe(1, (SubscribeRequest("bench/a", 0),)), 4))
            assert receiver.recv(100)
            window = 200
            batch = b"".join(
                encode(Publish("bench/a", bytes(30), qos, packet_id=n + 1 if qos else 0), 4)
                for n in range(window)
            )
            size = len(encode(Publish("bench/a", bytes(30)), 4))
            before = 0.0
            for turn in range(count // window + 5):
                if turn == 5:
                    before = cpu(pid)
                sender.sendall(batch)
                _read(receiver, size * window)
                if qos:
                    _read(sender, 4 * window)
            return (cpu(pid) - before) / (count // window * window) * 1e6


def _read(sock: socket.socket, size: int) -> None:
    while size:
        size -= len(sock.recv(min(size, 65536)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--no-wire", action="store_true")
    arguments = parser.parse_args()
    count = arguments.messages
    columns = ["take", "QoS 0", "QoS 1"] + ([] if arguments.no_wire else ["wire 0", "wire 1"])
    print(f"{'microseconds a publish':<26}" + "".join(f"{name:>9}" for name in columns))
    for name, limits in CASES.items():
        row = [take(name, count) if limits else 0.0]
        for qos in (0, 1):
            plugins = [make_plugin(RateLimitPlugin, {"limits": limits}, "ratelimit")]
            row.append(in_process(plugins if limits else [], count, qos))
        if not arguments.no_wire:
            row += [wire(limits, count, qos) for qos in (0, 1)]
        print(f"{name:<26}" + "".join(f"{value:9.2f}" for value in row))
    hook = [in_process([PassingHook(None, Context("hook"))], count, qos) for qos in (0, 1)]
    print(f"{'an on_publish instead':<26}{'':>9}" + "".join(f"{value:9.2f}" for value in hook))


if __name__ == "__main__":
    main()
