"""``python -m bench.spark_reading``: compare how fast Spark reads the log with how fast it reads files.

All sources contain the same messages, and the same query writes them to Parquet. The runs alternate. The table shows
rows a second, the seconds before the query's batch begins, and the CPU seconds of Java, of Spark's Python processes,
and of the reader process that serves the log.

    log         the stream, through the read API
    parquet     Parquet files, with Spark's own source
    json        JSON files, with Spark's own source
    prepared    a Python data source that passes on Arrow batches which are already in memory: no Python data source
                can be faster, whatever it reads

``--conf NAME=VALUE`` adds a setting of Spark, which applies to all of them, and ``--option NAME=VALUE`` an option of
the log's reader.

This module also contains the part of ``bench.spark_sink`` that requires Spark. That part measures rows a second from
the log into Parquet, compared with Spark's own source reading the same rows from Parquet files. It also measures the
time from a PUBLISH to the table, through the read API and through landed files.

The module needs .venv-spark (`make .venv-spark/.synced`) and Java.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import selectors
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from . import durable, durable_load, spark_log

ROOT = durable.peers_root()
SPARK = ROOT / ".venv-spark" / "bin"
PROGRAM = ROOT / "spark" / "tests" / "support" / "benching.py"
COMPILED = ROOT / ".venv-spark" / "spark"
"""Spark's home with compiled Python modules (`make .venv-spark/warm`). It is used if it exists."""
TOKEN = "bench-token-0123456789"
RATE = 5000
"""Messages a second during the latency measurement."""
WARM = 3
"""How many initial batches to ignore, with the messages sent meanwhile. During this time, Spark starts Python and Java
warms up."""
TAIL = 4.0
"""Seconds to wait for the last messages to arrive."""


def there() -> bool:
    """Return whether the Spark environment is installed."""
    return (SPARK / "python").exists()


def options(api: int) -> dict[str, str]:
    """Return the options for a Spark reader of the stream."""
    return {
        "url": f"http://127.0.0.1:{api}",
        "stream": "all",
        "token": TOKEN,
        "startingOffsets": "earliest",
        "minPartitions": "2",
    }


@contextlib.contextmanager
def spark(what: str, given: dict[str, Any]) -> Iterator[Iterator[Any]]:
    """Run the Spark program and yield an iterator over its output."""
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": str(SPARK / "python"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    if COMPILED.exists() and "SPARK_HOME" not in environ:
        environ["SPARK_HOME"] = str(COMPILED)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [SPARK / "python", PROGRAM, what, json.dumps(given)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environ,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            yield map(json.loads, process.stdout)
            if process.wait(1200):
                said.seek(0)
                raise durable_load.Void(
                    f"Spark failed: {said.read()[-20000:].decode(errors='replace')}"
                )
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def latest(api: int) -> str:
    """Return the current end offset of each partition, as JSON."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{api}/v1/streams/all/offsets",
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return json.dumps({place: one["latest"] for place, one in found["partitions"].items()})


def throughput(api: int, rounds: int) -> dict[str, list[float]]:
    """Measure rows per second for each source."""
    with tempfile.TemporaryDirectory(prefix="hookmq-bench-") as folder:
        given = {"read": options(api), "folder": folder, "rounds": rounds}
        with spark("throughput", given) as told:
            found: dict[str, list[float]] = next(told, {})
    if not found:
        raise durable_load.Void("Spark told nothing")
    return found


def latency(port: int, api: int, streams: pathlib.Path, landing: bool, seconds: float) -> Any:
    """Send messages at a steady rate. Return the p50, p99 and maximum of their latency, in milliseconds."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hookmq-bench-"))
        given: dict[str, Any] = {"folder": folder, "seconds": seconds, "warm": WARM}
        if landing:
            given |= {"read": None, "landed": f"{folder}/landed/all/*"}
            pathlib.Path(folder, "landed").mkdir()
            # Skip earlier records. Spark also requires a folder that contains a file when the query starts.
            export(streams, f"{folder}/landed", "--once", "--tail").wait(120)
            stack.enter_context(exporting(streams, f"{folder}/landed"))
        else:
            # Do not use Spark's `latest`: it is resolved only some time after the query starts.
            given |= {"read": options(api) | {"startingOffsets": latest(api)}, "landed": None}
        told = stack.enter_context(spark("latency", given))
        if next(told, None) == "started":
            _steady(port, seconds - TAIL)
        found = next(told, None)
    if found is None:
        raise durable_load.Void("Spark told nothing")
    return found


def export(streams: pathlib.Path, target: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a process in landing mode, with these arguments, and return it."""
    return subprocess.Popen(
        [SPARK / "hookmq", "spark", "export", str(streams), target, *words],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@contextlib.contextmanager
def exporting(streams: pathlib.Path, target: str) -> Iterator[None]:
    """Run landing mode while the block runs, with a new file every second."""
    process = export(streams, target, "--follow", "--tail", "--roll-time", "1s")
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def _steady(port: int, seconds: float) -> None:
    """Publish at the rate `RATE`. Each payload begins with its send time."""
    with (
        durable_load.connect(port, b"steady", True) as connection,
        selectors.DefaultSelector() as ready,
    ):
        connection.setblocking(False)
        ready.register(connection, selectors.EVENT_READ)
        began = time.perf_counter()
        sent = acknowledged = 0
        last = int(seconds * RATE)
        while acknowledged < last:
            due = min(last, int((time.perf_counter() - began) * RATE))
            if due > sent and sent - acknowledged < 30_000:
                now = time.time_ns()
                packets = (
                    durable_load.PUBLISH.pack(
                        durable_load.FIRST,
                        durable_load.TOPIC,
                        number % 65535 + 1,
                        now,
                        durable_load.REST,
                    )
                    for number in range(sent, due)
                )
                connection.setblocking(True)
                connection.sendall(b"".join(packets))
                connection.setblocking(False)
                sent = due
            ready.select(0.005)
            with contextlib.suppress(BlockingIOError):
                acknowledged += _acknowledgements(connection)


def _acknowledgements(connection: socket.socket) -> int:
    """Return how many acknowledgements have arrived. An incomplete one is left for the next call to read."""
    data = connection.recv(1 << 16, socket.MSG_PEEK)
    if not data:
        raise durable_load.Void("the publisher was disconnected")
    whole = len(data) // 4 * 4
    connection.recv(whole)
    return whole // 4


def report(port: int, api: int, streams: pathlib.Path, rounds: int, seconds: float) -> Any:
    """Print both tables and return the figures. The stream must already contain records."""
    found = throughput(api, rounds)
    [rows] = found["rows"]
    middle = {name: statistics.median(found[name]) for name in ("log", "files")}
    print(f"\n{rows:,.0f} rows into Parquet by Spark, local[2], rows/s (median, all)")
    for name, label in (("log", 'format("mqtt")'), ("files", "Parquet files")):
        every = " ".join(f"{one:,.0f}" for one in sorted(found[name]))
        print(
            f"{label:<18} {middle[name]:>9,.0f}  ({every}) {middle[name] / middle['files']:>6.2f}x"
        )
    print(f"\nfrom PUBLISH to the table at {RATE} msg/s, batches as soon as possible")
    print(
        f"{'':<18} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'batches':>8} {'first after s':>14}"
    )
    late = {}
    for name, landing in (("read API", False), ("landed files", True)):
        one = late[name] = latency(port, api, streams, landing, seconds)
        print(
            f"{name:<18} {one['p50']:>8.0f} {one['p99']:>8.0f} {one['max']:>8.0f} {one['batches']:>8}"
            f" {one['first_batch']:>14.1f}"
        )
    return {"rows_per_second": found, "latency": late}


def compare(
    messages: int, rounds: int, warm: int, settings: dict[str, str], extra: dict[str, str]
) -> dict[str, Any]:
    """Measure each source with these settings of Spark and options of the log's reader. Return the runs, grouped by
    source.
    """
    with tempfile.TemporaryDirectory(dir=pathlib.Path(__file__).parent, prefix=".spark-") as name:
        folder = pathlib.Path(name)
        size = spark_log.fill(folder / "streams", messages)
        print(f"{messages:,} messages, {size / messages:.0f} bytes each in the log", flush=True)
        with spark_log.serving(folder / "streams") as (port, reader):
            given = {
                "read": options(port) | extra, "folder": name, "rounds": rounds, "warm": warm, "reader": reader,
                "settings": settings,
            }  # fmt: skip
            with spark("comparison", given) as told:
                found: dict[str, Any] = next(told, {})
    if not found:
        raise durable_load.Void("Spark told nothing")
    return found


def show(rows: int, runs: dict[str, list[dict[str, float]]]) -> None:
    """Print the table of `compare`. Each source is compared with Parquet files that have the same columns."""
    middle = {
        name: {key: statistics.median(one[key] for one in every) for key in every[0]}
        for name, every in runs.items()
    }
    print(
        f"{'':<24} {'rows/s':>10} {'to Parquet':>11} {'start s':>8} {'batch s':>8} {'CPU s':>7} {'to Parquet':>11}"
        f" {'Java':>6} {'Python':>7} {'log':>5}"
    )
    for name, one in middle.items():
        files = middle[" ".join(["parquet", *name.split()[1:]])]
        used, theirs = (sum(x[k] for k in ("java", "python", "reader")) for x in (one, files))
        print(
            f"{name:<24} {rows / one['seconds']:>10,.0f} {files['seconds'] / one['seconds']:>10.2f}x"
            f" {one['seconds'] - one['batches']:>8.2f} {one['batches']:>8.2f} {used:>7.2f}"
            f" {theirs / used:>10.2f}x {one['java']:>6.2f} {one['python']:>7.2f} {one['reader']:>5.2f}"
        )
    print(f"load average: {os.getloadavg()[0]:.1f}")


def main() -> int:
    """Print the comparison and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_reading")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each source that count")
    parser.add_argument("--warm", type=int, default=2, help="runs of each source before those")
    parser.add_argument("--conf", action="append", default=[], help="a setting of Spark")
    parser.add_argument("--option", action="append", default=[], help="an option of the reader")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    given = parser.parse_args()
    settings, extra = (
        dict(one.split("=", 1) for one in words) for words in (given.conf, given.option)
    )
    found = compare(given.messages, given.rounds, given.warm, settings, extra)
    show(found["rows"], found["runs"])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
