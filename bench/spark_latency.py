"""``python -m bench.spark_latency``: measure how long a message takes from its device to the pipelines' tables.

A real broker stores the messages of 1,000 devices in a stream, and real drivers run the jobs of ``hookmq-pipelines``.
The payload contains the time at which the message was due. A row is in a table once its batch is committed. Spark's
file sink then creates a file in ``_spark_metadata``, and its modification time is taken as the commit time.

    device to bronze     from the due time to the commit in bronze, with batches as soon as possible (`trigger: 0s`)
    bronze to silver     from the commit in bronze to the commit in silver, which reads the bronze table; both have
                         `trigger: 1s`
    restart              from the start of a new driver, after the previous one was killed, to its first commit

The messages of the first `--warm` seconds do not count, because Java is still compiling its code. The benchmark needs
.venv-spark (`make .venv-spark/warm`) and Java 17. The exit code is 1 if a figure exceeds its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import selectors
import shlex
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import durable, durable_load, launch
from .spark_log import TOKEN
from .spark_reading import SPARK, there

DEVICES = 1000
PARTITIONS = 4
SLICE = 0.002
"""Seconds between the publisher's writes."""
WINDOW = 30_000
DRAIN = 60.0
"""Seconds to wait for the last messages to arrive."""
START = 180.0
"""Seconds to wait for a driver's first batch."""
BROKER = durable.HOOKMQ.replace(
    "plugins: [{{use: storage, config: {{path: data, durability: {durability}}}}}]",
    """\
plugins:
  - {{use: storage, config: {{path: data, durability: group}}}}
  - use: spark_sink
    config:
      path: spark
      streams: [{{name: telemetry, topics: ["plant/#"], partitions: @PARTITIONS@}}]
      api: {{bind: "127.0.0.1:@API@", access: [{{token: @TOKEN@}}]}}
""",
)
SILVER: dict[str, Any] = {
    "schema": "celsius double not null, due bigint not null",
    "device": {"topic_level": 1},
}
BARS = {
    "device to bronze": {"p50": 0.5, "p99": 1.0},
    "bronze to silver": {"p99": 2.0},
    "restart": {"p50": 15.0},
}
"""The upper limit for each figure, in seconds."""


def environment() -> dict[str, str]:
    """Return the environment for a driver, including the variables from `make .venv-spark/warm` if it has been run."""
    found = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    warm = SPARK.parent / "warm"
    for line in warm.read_text().splitlines() if warm.exists() else ():
        name, _, value = line.removeprefix("export ").partition("=")
        found.setdefault(name, " ".join(shlex.split(value)))
    return found


class Driver:
    """A process of ``hookmq-pipelines run``."""

    def __init__(self, folder: pathlib.Path, job: str, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self.job = job
        self.config = folder / f"{job}.yaml"
        self.config.write_text(json.dumps(config))  # JSON is YAML.
        self.began = time.time()
        self._output = (folder / f"{job}.log").open("ab")
        self.process = subprocess.Popen(
            [SPARK / "hookmq-pipelines", "run", job, "-c", self.config],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
            env=environment(), start_new_session=True,
        )  # fmt: skip

    def check(self) -> None:
        """Raise Void if the driver has ended."""
        if self.process.poll() is not None:
            said = (self.folder / f"{self.job}.log").read_text()[-3000:]
            raise durable_load.Void(f"{self.job} ended with {self.process.returncode}: {said}")

    def kill(self) -> None:
        """Kill the driver with its Java and Python processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()


def publish(port: int, rate: int, stop: threading.Event) -> int:
    """Publish at a steady rate with QoS 1 until `stop` is set. Return how many messages were acknowledged.

    A late message carries the time at which it was due, so a slow broker cannot hide its delay.
    """
    topics = [b"plant/device-%04d/state" % number for number in range(DEVICES)]
    heads = [len(one).to_bytes(2, "big") + one for one in topics]
    fixed = bytes((0x32, len(heads[0]) + 2 + len(_payload(0, 0))))
    with (
        durable_load.connect(port, b"steady", True) as connection,
        selectors.DefaultSelector() as ready,
    ):
        ready.register(connection, selectors.EVENT_READ)
        began, sent, received = time.time(), 0, 0
        while not stop.is_set() or received // 4 < sent:
            due = min(int((time.time() - began) * rate), received // 4 + WINDOW)
            if due > sent and not stop.is_set():
                packets = [
                    fixed
                    + heads[number % DEVICES]
                    + (number % 65535 + 1).to_bytes(2, "big")
                    + _payload(number, int((began + number / rate) * 1e6))
                    for number in range(sent, due)
                ]
                connection.sendall(b"".join(packets))
                sent = due
            if ready.select(SLICE):
                data = connection.recv(1 << 18)
                if not data:
                    raise durable_load.Void("the publisher was disconnected")
                received += len(data)
            time.sleep(SLICE)  # the publisher writes what has become due once for each slice
    return sent


def _payload(number: int, due: int) -> bytes:
    return b'{"celsius": %04.1f, "battery": 80, "due": %016d}' % (10 + number % 300 / 10, due)


class Pipeline:
    """A broker with a stream, a publisher, and the drivers that fill tables in a folder."""

    def __init__(self, folder: pathlib.Path, api: int, trigger: str) -> None:
        self.folder = folder
        self.api = api
        self.trigger = trigger
        self.drivers: dict[str, Driver] = {}

    def start(self, job: str) -> float:
        """Start a driver and wait for its first commit. Return how many seconds that took."""
        self.drivers[job] = driver = Driver(self.folder, job, self.configuration(job))
        return self.committed(job, driver.began) - driver.began

    def committed(self, job: str, after: float) -> float:
        """Wait for the first commit later than `after`, and return its time."""
        log = self.folder / job / "_spark_metadata"
        last = time.monotonic() + START
        while True:
            self.check()
            times = [path.stat().st_mtime for path in log.glob("[0-9]*")]
            if later := [one for one in times if one > after]:
                return min(later)
            if time.monotonic() > last:
                raise durable_load.Void(f"{job} has no batch after {START:g} s")
            time.sleep(0.05)  # between two looks; a commit has the time of its file

    def configuration(self, job: str) -> dict[str, Any]:
        """Return a driver's configuration. Silver reads the bronze table."""
        log = {
            "url": f"http://127.0.0.1:{self.api}", "stream": "telemetry", "token": TOKEN, "consumerGroup": "bench",
        }  # fmt: skip
        names = ("bronze", "silver", "dead_letter")
        return {
            "version": 1,
            "name": "bench",
            "source": {"mqtt": log} if job == "bronze" else {"files": f"{self.folder}/bronze"},
            "checkpoints": f"{self.folder}/checkpoints",
            "trigger": self.trigger,
            "silver": SILVER,
            "tables": {name: {"path": f"{self.folder}/{name}"} for name in names},
            "progress": {"json": f"{self.folder}/{job}.json", "lines": False},
            "spark": {"master": "local[2]", "settings": {"spark.ui.enabled": False}},
        }

    def check(self) -> None:
        """Raise Void if a driver has ended."""
        for driver in self.drivers.values():
            driver.check()

    def tables(self, since: float, until: float) -> dict[str, Any]:
        """Return what `spark_tables` reports for the messages that were due in this period."""
        said = subprocess.run(
            [SPARK / "python", "-m", "bench.spark_tables", self.folder, str(since), str(until)],
            cwd=durable.peers_root(), stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    def drained(self, wanted: int, since: float, until: float) -> dict[str, Any]:
        """Wait until the tables contain all messages, and return the result of `tables`. Raises Void if messages are
        missing."""
        last = time.monotonic() + DRAIN
        while True:
            self.check()
            found = self.tables(since, until)
            if all(found["rows"].get(job) == wanted for job in self.drivers):
                return found
            if time.monotonic() > last:
                raise durable_load.Void(f"the tables have {found['rows']} rows of {wanted}")

    def phases(self, job: str) -> dict[str, float]:
        """Return the median milliseconds that a batch spends in each of Spark's phases."""
        lines = (self.folder / f"{job}.json").read_text().splitlines()
        every = [one["phases"] for one in map(json.loads, lines) if one["rows"]]
        names = dict.fromkeys(name for one in every for name in one)
        return {name: statistics.median(one.get(name, 0) for one in every) for name in names}

    def kill(self) -> None:
        """Kill the drivers."""
        for driver in self.drivers.values():
            driver.kill()


def measure(
    rate: int, seconds: float, warm: float, silver: bool = False, restarts: int = 0
) -> dict[str, Any]:
    """Measure one load. Return the latencies of its messages, the duration of each restart, and the time spent in each
    phase of a batch.
    """
    with contextlib.ExitStack() as stack:
        place = tempfile.TemporaryDirectory(
            dir=pathlib.Path(__file__).parent, prefix=".spark-", ignore_cleanup_errors=True
        )
        folder = pathlib.Path(stack.enter_context(place))
        api = launch.free_port()
        values = {"API": str(api), "TOKEN": TOKEN, "PARTITIONS": str(PARTITIONS)}
        text = BROKER
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        broker = stack.enter_context(durable.running(durable.Subject("hookmq", "hookmq", text)))
        pipeline = Pipeline(folder, api, "1s" if silver else "0s")
        stack.callback(pipeline.kill)
        stop = threading.Event()
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(stop.set)
        sending = pool.submit(publish, broker.port, rate, stop)
        first = [pipeline.start(job) for job in (("bronze", "silver") if silver else ("bronze",))]
        since = time.time() + warm
        until = since + seconds
        while time.time() < until and not sending.done():
            pipeline.check()
            time.sleep(0.2)  # between two checks that all processes still run
        for job in pipeline.drivers:
            at = until
            for _ in range(
                3
            ):  # The first may have been planned before, and the second before the last were stored.
                at = pipeline.committed(job, at)
        again = []
        for _ in range(restarts):
            pipeline.drivers.pop("bronze").kill()
            again.append(pipeline.start("bronze"))
        stop.set()
        sent = sending.result()
        found = pipeline.drained(sent, since, until)
        return {
            "rate": rate,
            "sent": sent,
            "load": os.getloadavg()[0],
            "first": first,
            "restart": again,
            "phases": {job: pipeline.phases(job) for job in pipeline.drivers},
            **found,
        }


def summary(seconds: list[float]) -> dict[str, float]:
    """Return p50, p99 and the maximum."""
    ordered = sorted(seconds)
    if not ordered:
        raise durable_load.Void("no message was counted")
    picked = {"p50": 0.5, "p99": 0.99}
    found = {name: ordered[int(len(ordered) * part)] for name, part in picked.items()}
    return {**found, "max": ordered[-1], "count": len(ordered)}


def show(label: str, figures: dict[str, float], bars: Mapping[str, float]) -> bool:
    """Print a row. Return whether all figures are within their limits."""
    missed = [name for name, most in bars.items() if figures[name] > most]
    wanted = ", ".join(f"{name} <= {most:g}" for name, most in bars.items())
    print(
        f"{label:<32} {figures['p50']:>7.3f} {figures['p99']:>7.3f} {figures['max']:>7.3f} {figures['count']:>9,.0f}"
        f"  {wanted}{': missed' if missed else ''}",
        flush=True,
    )
    return not missed


def main() -> int:
    """Print the table. Return 0, or 1 if a figure exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_latency")
    parser.add_argument("--rates", default="500,20000", help="messages a second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="that count (%(default)s)")
    parser.add_argument("--warm", type=float, default=20.0, help="before these (%(default)s)")
    parser.add_argument("--restarts", type=int, default=3, help="kills of a driver (%(default)s)")
    parser.add_argument("--no-silver", action="store_true", help="leave out bronze to silver")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    options = parser.parse_args()
    if not there():
        print("bench: .venv-spark is missing (make .venv-spark/warm)")
        return 2
    found: dict[str, Any] = {}
    held = True
    print(f"{'seconds':<32} {'p50':>7} {'p99':>7} {'max':>7} {'count':>9}  limit")
    rates = [int(one) for one in options.rates.split(",") if one]
    for rate in rates:
        restarts = options.restarts if rate == rates[0] else 0
        run = measure(rate, options.seconds, options.warm, restarts=restarts)
        name = "device to bronze"
        run[name] = summary(run[name])
        held &= show(f"{name}, {rate:,} msg/s", run[name], BARS[name])
        if restarts:
            run["restarts"] = summary(run["restart"])
            held &= show("restart", run["restarts"], BARS["restart"])
        found[f"{rate}"] = run
    if not options.no_silver:
        run = measure(500, options.seconds, options.warm, silver=True)
        for name in ("bronze to silver", "device to bronze", "device to silver"):
            run[name] = summary(run[name])
            bars = BARS[name] if name == "bronze to silver" else {}
            held &= show(f"{name}, trigger 1s", run[name], bars)
        found["silver"] = run
    for label, run in found.items():
        for job, phases in run["phases"].items():
            parts = ", ".join(f"{name} {median:.0f}" for name, median in phases.items())
            print(f"{label} {job}, ms of a batch: {parts}")
    print(f"load average: {os.getloadavg()[0]:.1f}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
