"""``python -m bench.durable``: measure durable publishes per second in several brokers, which alternate in one run.

Publishers at QoS 1 keep W messages unacknowledged, over one connection or 50. An offline session is subscribed to all
their topics. The rows differ in what an acknowledgement promises:

    hookmq group         the message is on the disk, after an fsync shared with other messages
    hookmq os            the operating system has the message, so it survives the end of the process
    mosquitto            the message is in memory; `persistence true` saves it every half hour and on exit
    fsync each           the message is on the disk, after an fsync of its own; not a broker but a short program that
                         appends each message to a file, runs fdatasync and sends PUBACK

After each run the offline session returns and must receive every acknowledged message. A run that lost one is void.
With `+ QoS 0`, another connection sends QoS 0 messages that nobody subscribes to, as fast as possible. The event loop
is then never idle.

CPU time covers all the broker's processes. It is more comparable between machines than the rate, which also depends on
the disk. Latency is measured for the first message in each write, from the write to the PUBACK. With one message in
flight, it is the time that a commit and a round trip take.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from . import durable_report, launch, peers
from .durable_load import Void, fetch, flood, publish, subscribe
from .durable_report import Run

HOOKMQ = """\
version: 1
listeners: [{{name: tcp, type: tcp, bind: "127.0.0.1:{port}"}}]
auth: {{default: allow}}
authz: {{default: allow}}
log: {{level: warning}}
broker: {{receive_maximum: 65535, max_queue_bytes: 64GiB}}
session: {{queue_messages: 1000000000, queue_bytes: 64GiB}}
plugins: [{{use: storage, config: {{path: data, durability: {durability}}}}}]
"""
MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
persistence true
persistence_location {folder}/
user {user}
log_dest none
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A broker to measure. `configuration` replaces the configuration in bench.peers."""

    name: str
    peer: str = ""
    configuration: str = ""


SUBJECTS = (
    Subject("hookmq group", "hookmq", HOOKMQ.replace("{durability}", "group")),
    Subject("hookmq os", "hookmq", HOOKMQ.replace("{durability}", "os")),
    Subject("mosquitto", "mosquitto", MOSQUITTO),
    Subject("fsync each"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A load: the messages in flight, the number of publishers, and whether QoS 0 messages are sent as well."""

    window: int
    publishers: int = 1
    flooded: bool = False

    def __str__(self) -> str:
        spread = f", {self.publishers} publishers" if self.publishers > 1 else ""
        return f"{self.window}{spread}{' + QoS 0' if self.flooded else ''}"


CASES = (
    Case(1),
    Case(50),
    Case(50, 50),
    Case(1000),
    Case(1000, 50),
    Case(1, flooded=True),
    Case(50, flooded=True),
)


@contextlib.contextmanager
def flooding(port: int, wanted: bool) -> Iterator[None]:
    """If `wanted`, send QoS 0 messages from another process while the block runs."""
    if not wanted:
        yield
        return
    words = [sys.executable, "-m", "bench.durable", "--flood", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=peers_root())
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def fsync_each(port: int, folder: pathlib.Path) -> None:
    """Serve the baseline: a bare Python program that runs an fsync per message. It understands only what `publish`
    sends."""
    file = os.open(folder / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            connection, _ = server.accept()
            # A publisher disconnects without waiting once its time is over.
            with connection, contextlib.suppress(ConnectionError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _serve(connection, file)


def _serve(connection: socket.socket, file: int) -> None:
    buffer = b""
    fetched = False
    while True:
        data = connection.recv(1 << 16)
        if not data:
            return
        buffer += data
        while len(buffer) >= 2 and len(buffer) >= buffer[1] + 2:
            size = buffer[1] + 2
            message, buffer = buffer[:size], buffer[size:]
            kind = message[0] >> 4
            if kind == 3:
                os.write(file, message)
                os.fdatasync(file)
                connection.sendall(b"\x40\x02" + message[11:13])
            elif kind == 1:
                connection.sendall(b"\x20\x02\0\0")
                fetched = message.endswith(b"offline")
            elif kind == 8:
                connection.sendall(b"\x90\x03\0\1\1")
                fetched = False
            elif kind == 14:
                return
        if fetched and not buffer:
            fetched = False
            size = os.fstat(file).st_size
            for start in range(0, size, 1 << 16):
                connection.sendall(os.pread(file, min(1 << 16, size - start), start))


def peers_root() -> pathlib.Path:
    """Return the folder that contains `bench`."""
    return pathlib.Path(__file__).parents[1]


@contextlib.contextmanager
def running(subject: Subject) -> Iterator[launch.Broker]:
    """Run a subject with its files in the working tree, because the system's temporary folder may be in memory."""
    with tempfile.TemporaryDirectory(dir=pathlib.Path(__file__).parent, prefix=".durable-") as name:
        folder = pathlib.Path(name)
        port = launch.free_port()
        if subject.peer:
            peer, program = peers.find(subject.peer)
            config = folder / peer.config_name
            # As root, mosquitto would switch to another user, which cannot write to this folder.
            user = "root" if os.getuid() == 0 else "mosquitto"
            config.write_text(subject.configuration.format(port=port, folder=folder, user=user))
            words = [program, *(word.format(config=config) for word in peer.arguments)]
        else:
            words = [sys.executable, "-m", "bench.durable", "--fsync-each", str(port), name]
        cwd = folder if subject.peer else peers_root()
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            launch.await_listener(subject.name, process, port, folder / "output")
            yield launch.Broker(port, process.pid)
        finally:
            process.send_signal(signal.SIGTERM if subject.peer else signal.SIGKILL)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(subject: Subject, case: Case, seconds: float) -> Run:
    """Measure one run. Raises Void if it does not count."""
    with running(subject) as broker:
        subscribe(broker.port)
        pids = broker.pids()
        with flooding(broker.port, case.flooded):
            before = [launch.cpu_seconds(pid) for pid in pids]
            own = time.process_time()
            acked, took, latencies = publish(broker.port, case.window, case.publishers, seconds)
            own = time.process_time() - own
            used = [
                launch.cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True)
            ]
        count = sum(acked)
        if not count:
            raise Void("nothing was acknowledged")
        fetch(broker.port, acked)
    each = 1e6 / count
    return Run(
        count / took, sum(used) * each, used[0] * each, latencies, used[0] / took, own / took
    )


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.durable",
        description="Durable QoS 1 publishes a second to an offline session: HookMQ, mosquitto with "
        "persistence, and an fsync for each message, alternating in one run. See bench/README.md.",
    )
    add = parser.add_argument
    add("--seconds", type=float, default=1.2, help="measured time of a run (%(default)s)")
    add("--runs", type=int, default=3, help="runs of each; the table has medians (%(default)s)")
    add("--cases", default="", help="names of rows in the table, separated by semicolons (all)")
    add("--subjects", default="", help="beginnings of names, separated by commas (all)")
    add("--json", type=pathlib.Path, metavar="FILE", help="also write every run to this file")
    add("--flood", type=int, help=argparse.SUPPRESS)
    add("--fsync-each", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Print the table. Return 0, 1 if a row is void, or 2 if nothing can be measured."""
    options = arguments()
    if options.flood:
        flood(options.flood)
    if options.fsync_each:
        fsync_each(int(options.fsync_each[0]), pathlib.Path(options.fsync_each[1]))
    starts = tuple(word.strip() for word in options.subjects.split(","))
    subjects = [one for one in SUBJECTS if one.name.startswith(starts)]
    versions = {}
    try:
        for name in {one.peer for one in subjects if one.peer}:
            peer, program = peers.find(name)
            versions[name] = peer.version(program)
    except peers.PeerError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    wanted = [word.strip() for word in options.cases.split(";") if word]
    cases = [case for case in CASES if not wanted or str(case) in wanted]
    runs: dict[tuple[Case, str], list[Run]] = {}
    void: dict[tuple[Case, str], str] = {}
    load = os.getloadavg()[0]
    for number in range(options.runs):
        for case in cases:
            # Reverse the order each time, because the machine's state changes over time.
            for one in subjects if number % 2 == 0 else reversed(subjects):
                if not one.peer and (case.flooded or case.publishers > 1):
                    continue  # the baseline has no event loop and serves only one connection
                try:
                    run = measure(one, case, options.seconds)
                except (Void, OSError, peers.PeerError) as error:
                    void[case, one.name] = str(error)
                    said = f"VOID: {error}"
                else:
                    runs.setdefault((case, one.name), []).append(run)
                    said = f"{run.rate:10,.0f}/s {run.cpu:8.1f} us {run.latency(0.5):8.2f} ms"
                print(f"{number + 1} {case!s:22} {one.name:14}{said}", file=sys.stderr)
    for name, version in sorted(versions.items()):
        print(f"{name}: {version}")
    print(durable_report.heading(options.runs, options.seconds, load))
    for case in cases:
        rival = runs.get((case, "mosquitto"), [])
        for one in subjects:
            key = case, one.name
            if key in void:
                print(f"| {case} | {one.name} | VOID: {void[key]} |" + " |" * 8)
            elif key in runs:
                print(durable_report.row(str(case), one.name, runs[key], rival))
    if options.json:
        rows = [
            {
                "subject": name,
                **dataclasses.asdict(case),
                "runs": [durable_report.figures(run) for run in found],
            }
            for (case, name), found in runs.items()
        ]
        document = {"format": 1, "versions": versions, "load": load, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if void else 0


if __name__ == "__main__":
    sys.exit(main())
