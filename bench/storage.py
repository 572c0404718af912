"""``python -m bench.storage``: compare methods of writing to SQLite while the event loop is busy.

Each method commits batches of queued messages, one batch at a time. Every queued message is two rows: the message and a
queue entry. Meanwhile, plain Python code keeps the event loop busy, as in a saturated broker. The table shows rows a
second, how long a commit takes, and how much of its own work the loop still gets done. The rest is lost to encoding
batches and waiting for the interpreter lock.

With an idle loop, the table instead shows the CPU time per message in the broker's own process, with all its threads.
That is how much time a busy loop loses, regardless of other work on the machine. Runs of the methods alternate.

    executemany, thread   one row at a time; each row takes and releases the interpreter lock
    statement, thread     one pre-encoded statement with many rows for each table
    process               frames are sent to another process, as in hookmq-storage
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hookmq.model.message import Message
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import CommitId, Enqueue, PutMessage, Record
from hookmq_storage.batch import reduce
from hookmq_storage.database import connect, open_store
from hookmq_storage.engine import INLINE, queue_rows
from hookmq_storage.inline import Heads
from hookmq_storage.rows import operations
from hookmq_storage.store import SQLiteStore

SPIN = 0.001
"""Seconds of plain Python work in each turn of the busy loop."""
Results = dict[bool, list[tuple[list[float], float]]]
"""The runs with a busy loop (True) and with an idle one (False).

Each run has its commit times, and the loop's share of its own work or the CPU time.
"""
Commit = Callable[[list[Record], Callable[[], None]], None]


def batches(size: int, payload: int) -> Iterator[list[Record]]:
    """Yield batches of `size` messages queued for an offline session."""
    numbers = itertools.count(1)
    data = bytes(payload)
    while True:
        batch: list[Record] = []
        for number in itertools.islice(numbers, size):
            batch.append(PutMessage(number, Message("bench/topic", data, 1)))
            batch.append(Enqueue("c/offline", number, number, 1, payload))
        yield batch


class Threaded:
    """A writer thread in this process. It accepts one batch at a time."""

    def __init__(
        self, folder: Path, durability: Any, runtime: AsyncioRuntime, single: bool
    ) -> None:
        db, _ = open_store(folder, durability=durability)
        db.close()
        self._folder = folder
        self._durability = durability
        self._single = single
        self._loop = runtime.loop
        self._ready = threading.Semaphore(0)
        self._work: tuple[Any, Callable[[], None]] | None = None
        self._heads = Heads()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def commit(self, records: list[Record], done: Callable[[], None]) -> None:
        """Encode `records` on the event loop, then have the thread write them and call `done`."""
        plan = reduce(operations(records))
        _, _, entries = queue_rows(plan, lambda name: 1, self._heads)
        work: Any = [_statement(entries) if self._single else (_INSERT + _marks(INLINE), entries)]
        self._work = (work, done)
        self._ready.release()

    def _run(self) -> None:
        db = connect(self._folder, durability=self._durability)
        while True:
            self._ready.acquire()
            if self._work is None:
                db.close()
                return
            work, done = self._work
            db.execute("BEGIN IMMEDIATE")
            for statement, rows in work:
                if self._single:
                    db.execute(statement, rows)
                else:
                    db.executemany(statement, rows)
            db.execute("COMMIT")
            self._loop.call_soon_threadsafe(done)

    def close(self) -> None:
        """Stop the writer thread."""
        self._work = None
        self._ready.release()
        self._thread.join()


_INSERT = f"INSERT INTO entry ({INLINE}) VALUES "


def _marks(columns: str) -> str:
    return "(" + ", ".join("?" for _ in columns.split(",")) + ")"


def _statement(rows: list[tuple[Any, ...]]) -> tuple[str, list[Any]]:
    text = _INSERT + ", ".join([_marks(INLINE)] * len(rows))
    return text, [value for row in rows for value in row]


async def measure(
    commit: Commit | None, size: int, payload: int, seconds: float, busy: bool
) -> tuple[list[float], float]:
    """Return how long each commit took, and a second figure.

    If `busy`, the second figure is how many units of other work the loop did per second. Otherwise it is this process's
    CPU microseconds per message.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    times: list[float] = []
    source = batches(size, payload)
    end = time.perf_counter() + seconds
    began = 0.0
    units = 0

    def start() -> None:
        nonlocal began
        assert commit is not None
        batch = next(source)
        began = time.perf_counter()
        commit(batch, done)

    def done() -> None:
        now = time.perf_counter()
        times.append(now - began)
        if now < end:
            start()
        elif not ended.done():
            ended.set_result(None)

    def spin() -> None:
        nonlocal units
        until = time.perf_counter() + SPIN
        while time.perf_counter() < until:
            units += 1
        if not ended.done():
            loop.call_soon(spin)

    if busy:
        loop.call_soon(spin)
    if commit is not None:
        start()
    else:
        loop.call_later(seconds, ended.set_result, None)
    since, used = time.perf_counter(), time.process_time()
    await ended
    if not busy:
        return times, (time.process_time() - used) / max(1, len(times) * size) * 1e6
    return times, units / (time.perf_counter() - since)


async def run(
    way: str, durability: Any, size: int, payload: int, seconds: float, busy: bool
) -> tuple[list[float], float]:
    """Measure once, in a new folder in the working tree, because the system's temporary folder may be in memory."""
    runtime = AsyncioRuntime()
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".storage-") as name:
        folder = Path(name) / "data"
        if way == "process":
            store = SQLiteStore(folder, runtime, durability)
            list(store.load())

            def commit(records: list[Record], done: Callable[[], None]) -> None:
                def told(result: CommitId | StoreFailed) -> None:
                    assert isinstance(result, CommitId), result
                    done()

                store.commit(records, told)

            try:
                return await measure(commit, size, payload, seconds, busy)
            finally:
                closed = runtime.loop.create_future()
                store.close(lambda: closed.set_result(None))
                await closed
        threaded = Threaded(folder, durability, runtime, way.startswith("statement"))
        try:
            return await measure(threaded.commit, size, payload, seconds, busy)
        finally:
            threaded.close()


def row(durability: str, size: int, way: str, found: Results) -> str:
    """Format a row of the table: the medians of the runs, and the quantiles of all their commits."""
    times = sorted(time for taken, _ in found[True] for time in taken)
    rates = [2 * len(taken) * size / sum(taken) for taken, _ in found[True]]
    p50, p99 = (times[int(len(times) * part)] * 1e3 for part in (0.5, 0.99))
    share = statistics.median(units for _, units in found[True])
    cost = statistics.median(units for _, units in found[False])
    return (
        f"| {durability} | {size} | {way} | {statistics.median(rates):,.0f} | {p50:.2f} | {p99:.2f}"
        f" | {share:.0%} | {cost:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.storage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--sizes", default="1,50,1000")
    parser.add_argument("--ways", default="executemany thread,statement thread,process")
    parser.add_argument("--durability", default="group,os")
    options = parser.parse_args()
    ways = options.ways.split(",")
    print(
        f"SQLite {sqlite3.sqlite_version}, {options.payload} B, medians of {options.runs} x"
        f" {options.seconds:g} s; load average {os.getloadavg()[0]:.2f}"
    )
    print(
        "| durability | messages in a commit | writer | loop busy: rows/s | commit p50 ms | p99 ms"
        " | left to the loop | loop idle: CPU us a message |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for durability in options.durability.split(","):
        for size in map(int, options.sizes.split(",")):
            found: dict[str, Results] = {way: {True: [], False: []} for way in ways}
            for number in range(options.runs):
                for way in ways if number % 2 == 0 else reversed(ways):
                    for busy in (True, False):
                        _, alone = asyncio.run(measure(None, 0, 0, 0.2, True))
                        times, units = asyncio.run(
                            run(way, durability, size, options.payload, options.seconds, busy)
                        )
                        found[way][busy].append((times, units / alone if busy else units))
            for way in ways:
                print(row(durability, size, way, found[way]), flush=True)


if __name__ == "__main__":
    main()
