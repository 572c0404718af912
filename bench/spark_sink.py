"""``python -m bench.spark_sink``: measure the cost of storing every message in a stream, and of reading the stream.

The first table shows QoS 1 publishes per second, acknowledged once they are safe, as measured by ``bench.durable``. The
rows alternate, and the last column compares each row with the first.

    storage alone            each message is queued for an offline session, as a row in SQLite
    no recipient             no subscriber and no sink: the cost of every message
    sink                     no subscriber; messages are appended to the log, and the storage plugin's commit is empty
    sink and session         both the log and the queue

The line below the table shows what a stream adds to the cost of a message: the difference between ``sink`` and ``no
recipient``. That includes the log's thread, the storage process and the process that serves readers. Files that are
full are merged and compressed by a process of low priority, which the next line shows.

After a run with a sink, the stream must contain every acknowledged message. Beyond those, it may contain only the last
messages sent.

The second table shows the milliseconds from PUBLISH to PUBACK for one publisher at a fixed rate. Meanwhile, several
readers repeatedly fetch the whole stream over HTTP, as fast as possible. The table also shows how many records a second
they read. On a machine with few cores, the readers and the publisher share them, which affects the figures.

The last two tables require Spark and are left out without it (`bench.spark_reading`). One shows rows a second from the
log into Parquet, compared with Spark's own source reading the same rows from Parquet files. The other shows the
milliseconds from a PUBLISH to the table, through the read API and through landed files. The whole benchmark takes four
to five minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import select
import statistics
import time
from collections.abc import Iterator
from typing import Any

from . import durable, durable_load, launch, peers, spark_reading

TOKEN = "bench-token-0123456789"
SINK = """\
  - use: spark_sink
    config:
      path: spark
      streams: [{{name: all, topics: ["#"], partitions: 4}}]
      api: {{bind: "127.0.0.1:@API@", access: [{{token: bench-token-0123456789}}]}}
"""
BASE = durable.HOOKMQ.replace(
    "plugins: [{{use: storage, config: {{path: data, durability: {durability}}}}}]",
    "plugins:\n  - {{use: storage, config: {{path: data, durability: group}}}}\n",
)
COST = 2.0
"""The maximum cost that a stream may add to a message without a recipient in the compiled build, in microseconds."""
RATE = 150_000
"""The minimum rate of messages stored in a stream per second in the compiled build: QoS 1, 50 publishers with 20
messages in flight each."""
ROWS = (
    ("storage alone", False, True),
    ("no recipient", False, False),
    ("sink", True, False),
    ("sink and session", True, True),
)


def build() -> str:
    """Return whether the measured broker is compiled or pure."""
    peer, program = peers.find("hookmq")
    return peer.version(program)


def subject(sink: bool, api: int) -> durable.Subject:
    """Return a broker with storage. If `sink` is true, it also has a sink."""
    text = BASE + (SINK.replace("@API@", str(api)) if sink else "")
    return durable.Subject("hookmq", "hookmq", text)


def ask(api: int, path: str) -> http.client.HTTPResponse:
    """Send a request to the read API and return the response."""
    connection = http.client.HTTPConnection("127.0.0.1", api, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    return connection.getresponse()


def stored(api: int) -> dict[int, int]:
    """Return how many records each partition contains."""
    with ask(api, "/v1/streams/all/offsets") as answer:
        known: dict[str, Any] = json.loads(answer.read())
    return {int(place): one["latest"] for place, one in known["partitions"].items()}


def rate(
    sink: bool, session: bool, case: durable.Case, seconds: float
) -> tuple[float, float, float]:
    """Measure acknowledged messages a second, the broker's CPU microseconds per message, and those for merging files."""
    api = launch.free_port()
    with durable.running(subject(sink, api)) as broker:
        if session:
            durable_load.subscribe(broker.port)
        pids = broker.pids()
        before, ended = [launch.cpu_seconds(pid) for pid in pids], launch.ended_seconds(broker.pid)
        acked, took, _ = durable_load.publish(broker.port, case.window, case.publishers, seconds)
        used = sum(launch.cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True))
        merging = launch.ended_seconds(broker.pid) - ended
        merging += sum(launch.cpu_seconds(pid) for pid in set(broker.pids()).difference(pids))
        count = sum(acked)
        if session:
            durable_load.fetch(broker.port, acked)
        if sink:
            found = sum(stored(api).values())
            if not count <= found <= count + case.window:
                raise durable_load.Void(f"{count} were acknowledged, {found} are in the stream")
    return count / took, used * 1e6 / count, merging * 1e6 / count


def read_for_ever(api: int, begin: Any, counter: Any) -> None:
    """Read the stream over and over. This function runs in its own process."""
    begin.wait()
    while True:
        for place, latest in stored(api).items():
            at = 0
            while at < latest:
                with ask(
                    api, f"/v1/streams/all/records?partition={place}&start={at}&end={latest}"
                ) as answer:
                    at = consume(answer, counter)


def consume(answer: http.client.HTTPResponse, counter: Any) -> int:
    """Read a response block by block and return the next offset."""
    end = 0
    while head := answer.read(64):
        length, end = int.from_bytes(head[8:16], "little"), int.from_bytes(head[32:40], "little")
        answer.read(length - 64)
        with counter.get_lock():
            counter.value += int.from_bytes(head[40:44], "little")
    return end


@contextlib.contextmanager
def reading(api: int, readers: int) -> Iterator[Any]:
    """Run `readers` reader processes while the block runs. Yield a shared counter of the records they read."""
    context = multiprocessing.get_context("spawn")
    counter, begin = context.Value("q", 0), context.Event()
    made = [
        context.Process(target=read_for_ever, args=(api, begin, counter), daemon=True)
        for _ in range(readers)
    ]
    for one in made:
        one.start()
    begin.set()
    try:
        while readers and not counter.value:
            time.sleep(0.05)  # until the readers have read something
        yield counter
    finally:
        for one in made:
            one.kill()
            one.join()


def latencies(port: int, wanted: float, seconds: float) -> list[float]:
    """Return the sorted times from PUBLISH to PUBACK, in seconds, at a fixed rate. The time of a late message starts when
    it was due.
    """
    found: list[float] = []
    sent: dict[int, float] = {}
    with durable_load.connect(port, b"timed", True) as connection:
        began = time.perf_counter()
        number, buffer = 0, b""
        while True:
            due = began + number / wanted
            now = time.perf_counter()
            if now >= due and due < began + seconds:
                key = number % 65535 + 1
                connection.sendall(
                    durable_load.PUBLISH.pack(
                        durable_load.FIRST, durable_load.TOPIC, key, number, durable_load.REST
                    )
                )
                sent[key] = due
                number += 1
                continue
            if due >= began + seconds and not sent:
                return sorted(found)
            ready, _, _ = select.select([connection], [], [], max(0.0, min(due - now, 0.1)))
            if not ready:
                continue
            buffer += connection.recv(1 << 16)
            now = time.perf_counter()
            whole = len(buffer) // 4 * 4
            keys = (int.from_bytes(buffer[at + 2 : at + 4], "big") for at in range(0, whole, 4))
            found.extend(now - sent.pop(key) for key in keys)
            buffer = buffer[whole:]


def main() -> int:
    """Print the tables and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_sink")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row")
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second for latencies")
    parser.add_argument(
        "--records", type=float, default=25.0, help="seconds of filling the stream first"
    )
    parser.add_argument(
        "--no-spark", action="store_true", help="leave out the tables that need Spark"
    )
    parser.add_argument(
        "--spark", type=float, default=30.0, help="seconds of messages to measure with Spark"
    )
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    options = parser.parse_args()
    case = durable.Case(1000, 50)
    rates: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _, _ in ROWS}
    for _ in range(options.rounds):
        for name, sink, session in ROWS:
            rates[name].append(rate(sink, session, case, options.seconds))
    alone = statistics.median(one for one, *_ in rates["storage alone"])
    print(f"{'':<18} {'msg/s (median, all)':<34} {'CPU us':>7} {'to storage':>11}")
    for name, runs in rates.items():
        middle = statistics.median(one for one, *_ in runs)
        every = " ".join(f"{one:,.0f}" for one, *_ in sorted(runs))
        used = statistics.median(one for _, one, _ in runs)
        print(f"{name:<18} {middle:>9,.0f}  ({every}) {used:>9.1f} {middle / alone:>10.2f}x")
    costs = {name: statistics.median(one for _, one, _ in runs) for name, runs in rates.items()}
    beyond = costs["sink"] - costs["no recipient"]
    reached = statistics.median(one for one, *_ in rates["sink"])
    merging = statistics.median(one for *_, one in rates["sink"])
    print(
        f"a message in a stream costs {beyond:.1f} us more than one without a recipient (at most {COST:g} expected), "
        f"and the sink stores {reached:,.0f} msg/s (at least {RATE:,} expected); {build()} build, "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    print(f"merging and compressing full files costs another {merging:.1f} us per message")

    api = launch.free_port()
    timed: dict[int, list[list[float]]] = {0: [], 2: []}
    speeds: list[float] = []
    spark: Any = None
    with durable.running(subject(True, api)) as broker:
        durable_load.publish(broker.port, 1000, 50, options.records)
        print(f"\n{sum(stored(api).values()):,} records in the stream, {options.rate:g} msg/s")
        for _ in range(options.rounds):
            for readers, runs_of in timed.items():
                with reading(api, readers) as counter:
                    before, began = counter.value, time.perf_counter()
                    runs_of.append(latencies(broker.port, options.rate, options.seconds))
                    if readers:
                        speeds.append((counter.value - before) / (time.perf_counter() - began))
        print(f"{'readers':<8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}  p99 of each run")
        for readers, runs_of in timed.items():
            every_one = sorted(one for run in runs_of for one in run)
            parts = [every_one[int(len(every_one) * part)] * 1e3 for part in (0.5, 0.99)]
            each = " ".join(f"{run[int(len(run) * 0.99)] * 1e3:.1f}" for run in runs_of)
            print(
                f"{readers:<8} {parts[0]:>8.2f} {parts[1]:>8.2f} {every_one[-1] * 1e3:>8.2f}  {each}"
            )
        print(f"the two readers got {statistics.median(speeds):,.0f} records/s together")
        if spark_reading.there() and not options.no_spark:
            streams = pathlib.Path(f"/proc/{broker.pid}/cwd").readlink() / "spark"
            spark = spark_reading.report(broker.port, api, streams, options.rounds, options.spark)
        else:
            missing = (
                "" if options.no_spark else ": .venv-spark is missing (make .venv-spark/.synced)"
            )
            print(f"\nSpark is left out{missing}")
    if options.json is not None:
        shown = {
            "build": build(),
            "rates": rates,
            "cost_us": beyond,
            "p99": {k: [r[int(len(r) * 0.99)] for r in v] for k, v in timed.items()},
        }
        options.json.write_text(
            json.dumps(shown | {"records_per_second": speeds, "spark": spark}, indent=1)
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
