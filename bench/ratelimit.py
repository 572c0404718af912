"""``python -m bench.ratelimit``: measure what rate limits cost: a single `take`, and a PUBLISH in memory and over TCP.

Over TCP, one publisher and one subscriber load a broker through loopback. The figure is the broker's CPU time per
message, which other work on the machine hardly affects.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookmq.model.client import Scope
from hookmq.model.runtime import Runtime
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish
from hookmq.plugin import ClientInfo, Context, Peer, Plugin, hookimpl
from hookmq_bench import native
from hookmq_ratelimit.buckets import Allowance, Bucket
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_ratelimit.settings import Limit
from hookmq_ratelimit.tolls import Toll
from hookmq_testing import Harness, make_plugin

from . import launch

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
    """A plugin whose `on_publish` does nothing, for comparison."""

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
    """Return the CPU microseconds per operation in the best of several rounds. Each `call` does `count` operations."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        found.append((time.process_time() - began) / count * 1e6)
    return min(found)


def take(name: str, count: int) -> float:
    """Return the CPU microseconds that a single `take` needs."""
    office = _Office()
    buckets = [
        Allowance(Limit(**limit), "bench", 10).get("", time.monotonic()) for limit in CASES[name]
    ]
    client = ClientInfo("c", 5, None, Peer("127.0.0.1"), Scope())
    toll = Toll(office, client, buckets)
    for bucket in buckets:
        for cell in bucket.cells:
            cell.base = cell.room = cell.spare = 1e9  # never exhausted, however fast the loop runs

    def run() -> None:
        one = toll.take
        for _ in range(count):
            one(50)

    return best(run, count)


def in_process(plugins: list[Any], count: int, qos: int) -> float:
    """Return the CPU microseconds per PUBLISH, from received bytes to bytes sent to one subscriber. Each read contains
    many packets."""
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
                harness.clock._now += 0.01  # tokens arrive as time passes

        return best(run, count // 500 * 500, 5)


def wire(limits: list[dict[str, Any]], qos: int, seconds: float = 1.0) -> float:
    """Return the broker's CPU microseconds per PUBLISH over loopback TCP.

    There is one publisher and one subscriber. Payloads are 30 bytes long, and at most 200 messages are outstanding.
    Raises NativeError.
    """
    settings: dict[str, Any] = {"auth": {"default": "allow"}, "authz": {"default": "allow"}}
    if limits:
        settings["plugins"] = [{"use": "ratelimit", "config": {"limits": limits}}]
    words = {
        "window": 200,
        "refill": 50,
        "payload": 30,
        "qos": qos,
        "seconds": seconds,
        "warmup": 0.2,
    }
    with (
        tempfile.TemporaryDirectory() as name,
        launch.hookmq(Path(name), log={"level": "warning"}, **settings) as running,
    ):
        load = {key: str(value) for key, value in words.items()}
        raw = native.run(load, port=running.port, pids=[running.pid])
    if defects := native.defects(raw):
        raise native.NativeError(defects)
    return float(raw["broker_cpu_ns"]) / 1e3 / int(raw["delivered"])


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
            row += [wire(limits, qos) for qos in (0, 1)]
        print(f"{name:<26}" + "".join(f"{value:9.2f}" for value in row))
    hook = [in_process([PassingHook(None, Context("hook"))], count, qos) for qos in (0, 1)]
    print(f"{'an on_publish instead':<26}{'':>9}" + "".join(f"{value:9.2f}" for value in hook))


if __name__ == "__main__":
    main()
