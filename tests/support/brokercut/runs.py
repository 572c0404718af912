"""Record broker processes, then restart the broker on the folder contents that power cuts may leave."""

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

import mqttbytes as m
from brokercut.lines import kind, memory_line
from brokercut.load import WILL_DELAY, Load
from brokercut.memory import Memory
from brokercut.promises import Visit, wills
from byteclient import ByteClient, over_tcp
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness
from powercut.recording import Check, Cut, Recorder, Recording, Report, cut
from serving import HOOKMQ, WAIT, Served

SHUTTING_DOWN: Final = 0x8B
CONFIG: Final = """\
version: 1
listeners: [{{name: tcp, type: tcp, bind: "127.0.0.1:0"}}]
auth: {{default: allow}}
authz: {{default: allow}}
session: {{queue_messages: 1000000, queue_bytes: 1GiB}}
plugins:
  - {{use: storage, config: {{path: "{path}", durability: group, wal_size: 64KiB}}}}
  - {{use: delayed}}
"""
"""A configuration with a small log, so that the log is often merged into the database."""


@contextmanager
def broker(config: Path, environ: dict[str, str] | None = None) -> Iterator[Served]:
    """Run a broker. Its process is always killed on exit, even after an error."""
    process = subprocess.Popen(
        [*HOOKMQ, "serve", "--log-format", "json", "-c", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
    )
    served = Served(process)
    reader = threading.Thread(target=served.read, daemon=True)
    reader.start()
    try:
        started = served.wait_for("node.started")
        served.ports["tcp"] = int(started["listeners"]["tcp"].rpartition(":")[2])
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(WAIT)
        reader.join(WAIT)
        assert process.stderr is not None
        process.stderr.close()


def record(work: Path, seed: int, messages: int = 600, lives: int = 3) -> Recording:
    """Record `lives` broker processes and the marks of their clients. Each process is either stopped or killed."""
    recorder = Recorder(work / "disk", work)
    config = write_config(work, recorder.folder)
    load = Load(seed, recorder.mark, delays=True)
    random = Random(f"lives {seed}")
    for life in range(lives):
        with broker(config, dict(recorder.environ)) as served:
            load.arrive(served.ports["tcp"])
            load.run(messages // lives)
            load.leave()
            if life == lives - 1 or random.random() < 0.5:
                assert served.stop() == 0, served.errors
            else:
                # The store's writer process ends by itself, so that all its writes are recorded.
                served.process.send_signal(signal.SIGKILL)
        _free(recorder.folder)
    return recorder.recording()


def record_failure(work: Path, seed: int, failing: int) -> Recording:
    """Record a broker whose sync number `failing` fails. The broker must tell every client and exit with an error."""
    recorder = Recorder(work / "disk", work, failing)
    config = write_config(work, recorder.folder)
    load = Load(seed, recorder.mark, delays=True)
    with broker(config, dict(recorder.environ)) as served:
        load.arrive(served.ports["tcp"])
        load.run_until(lambda: served.process.poll() is not None)
        load.leave()
        assert served.process.returncode == 1, served.log[-3:]
    failed = [entry["reason"] for entry in served.log if entry["event"] == "store.failed"]
    assert len(failed) == 1, served.log[-3:]
    assert "I/O error" in failed[0], failed
    assert set(load.farewells) == {SHUTTING_DOWN}, load.farewells
    _free(recorder.folder)
    return recorder.recording(whole=False)


def write_config(work: Path, folder: Path) -> Path:
    """Write the configuration of a broker that stores its data in ``folder/data``."""
    config = work / "hookmq.yaml"
    config.write_text(CONFIG.format(path=folder / "data"))
    return config


def _free(folder: Path) -> None:
    """Wait until no process holds the folder's lock."""
    from hookmq_toolkit.state_folder import lock_holder

    end = time.monotonic() + WAIT
    while lock_holder(folder / "data") is not None:
        assert time.monotonic() < end, "the writer does not end"
        threading.Event().wait(0.01)


def in_memory(folder: Path, marks: list[bytes], cut: Cut) -> None:
    """Check a power cut within this process, by running a whole broker and the real store on a virtual clock."""
    memory = Memory(marks)
    # The time until a will or an expiry is the same as during the recording, however late this cut is checked.
    with _harness(folder, memory.time or time.time()) as harness:
        empty = Visit(memory, lambda: memory_line(harness)).check()
        harness.settle()
        store = harness.broker.store
        assert isinstance(store, SQLiteStore)
        _nothing_is_left(store, empty)
        _timers(harness, memory)
        willing = memory.readers.get("willing")
        if willing is not None and willing.known:
            line = memory_line(harness)
            line.send(m.connect("late") + m.subscribe(1, ("k/will", 1)))
            while kind(line.frame()) != 9:
                pass
            harness.advance(WILL_DELAY + 5)
            wills(line)


def _timers(harness: Harness, memory: Memory) -> None:
    """Assert that each acknowledged delayed message has a timer and that there are no other timers."""
    space = harness.broker.state.plugin_states.space("delayed")
    found = Counter(int(timer.data.rpartition(b"\n")[2]) for timer in space.timers.values())
    lost = memory.kept - found.keys()
    assert not lost, f"{len(lost)} acknowledged delayed messages are lost: {sorted(lost)[:8]}"
    strange = found.keys() - set(range(1, memory.delayed + 1))
    assert not strange, f"delayed messages that nobody sent: {sorted(strange)[:8]}"
    assert set(found.values()) <= {1}, f"a delayed message has several timers: {found}"
    assert all(timer.at > memory.time for timer in space.timers.values()), "a timer is due early"


def _nothing_is_left(store: SQLiteStore, empty: list[str]) -> None:
    """Assert that every stored message is in a queue, and that the queues of the clients in `empty` are empty."""
    assert store._engine is not None
    db = store._engine.db
    count = "SELECT count(*) FROM message WHERE id NOT IN (SELECT message FROM entry WHERE body IS NULL)"
    lost = db.execute(count).fetchone()[0]
    assert not lost, f"{lost} messages that no queue knows stay for ever"
    for name in empty:
        count = "SELECT count(*) FROM entry JOIN owner ON owner.id = owner WHERE name = ?"
        left = db.execute(count, (f"c/{name}",)).fetchone()[0]
        assert not left, f"{left} acknowledged messages stay in the queue of {name}"


@contextmanager
def _harness(folder: Path, base: float) -> Iterator[Harness]:
    harness = Harness(start=False)
    harness.store.close(lambda: None)
    setattr(harness.clock, "time", lambda: base + harness.clock.now())  # noqa: B010
    # The checking broker need not survive a power cut, so it does not sync.
    store = SQLiteStore(folder / "data", harness.clock, "os")
    try:
        harness.restart(store=store)
        yield harness
    finally:
        with suppress(Exception):
            harness.close()
        store.close(lambda: None)


def for_real(config: Path) -> Check:
    """Check a power cut by running ``hookmq serve`` and opening real connections."""

    def check(folder: Path, marks: list[bytes], cut: Cut) -> None:
        lines: list[ByteClient] = []
        with broker(config) as served:

            def open() -> ByteClient:
                line = over_tcp(served.ports["tcp"])
                lines.append(line)
                return line

            try:
                Visit(Memory(marks), open).check()
            finally:
                for line in lines:
                    line.close()
            assert served.stop() == 0, served.errors

    return check


def cut_and_check(
    recording: Recording,
    cuts: int,
    seed: int,
    first: int = 0,
    real: int = 0,
    most: int = 5,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Cut the power at various points in a recording, and check each cut.

    Every cut whose number is a multiple of `real` is checked with a broker in its own process; all others are checked in
    memory.
    """
    config = write_config(recording.work, recording.folder)
    really = for_real(config)

    def check(folder: Path, marks: list[bytes], one: Cut) -> None:
        (really if real and one.number % real == 0 else in_memory)(folder, marks, one)

    return cut(recording, check, cuts, seed, first=first, most=most, progress=progress)
