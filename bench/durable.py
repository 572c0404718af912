"""``python -m bench.durable``: durable publishes a second, through whole brokers that alternate in one run.

Publishers of QoS 1 keep W messages unacknowledged, one of them all or 50 of them a part each; a session that is offline
has subscribed to all of them. What an
acknowledgement promises differs, and is what the rows are about:

    hookmq group         on the disk, by an fsync that it shares
    hookmq os            in the operating system: survives the end of the process
    mosquitto            in memory; `persistence true` saves every half hour and at the end
    fsync each           on the disk, by an fsync of its own: a program of a few lines that appends to a file, runs
                         fdatasync and sends PUBACK, one message after the other; no broker

After each run the offline session comes, and must be given every message that was acknowledged: a run that lost one is
void. `+ QoS 0`: meanwhile another connection sends QoS 0 messages, to nobody, as fast as they are taken, so that the
event loop is never idle.

The CPU time is that of all the broker's processes. It travels between machines better than the rate, which is the
disk's as well. Latency is that of the first message of each write of the publisher, from the write to its PUBACK; with
one in flight it is the time of a commit and a round trip.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator

from . import peers

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
log_dest none
"""
PAYLOAD = 64
TOPIC = b"\x00\x07bench/t"
PUBLISH = struct.Struct(f">2s9sHQ{PAYLOAD - 8}s")
FIRST = bytes((0x32, PUBLISH.size - 2))
REST = bytes(PAYLOAD - 8)
FLOOD = (b"\x30\x46\x00\x04none" + bytes(64)) * 800
GAP = 5.0
"""Seconds of silence after which what did not come is lost."""


class Void(Exception):
    """A run that counts for nothing; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: `configuration` makes it a broker of bench.peers."""

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
    """How it is loaded: messages in flight, over how many publishers, with QoS 0 beside or not."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One run: acknowledged messages a second, microseconds of CPU time for each (all of the broker, and of that its
    first process), sorted latencies in seconds, and shares of a core."""

    rate: float
    cpu: float
    main: float
    latencies: list[float]
    busy: float
    generator: float

    def latency(self, part: float) -> float:
        """A quantile, in milliseconds."""
        return self.latencies[int(len(self.latencies) * part)] * 1e3


def cpu(pid: int) -> float:
    """Seconds of CPU time of a process and all its threads (clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def packet(first: int, body: bytes) -> bytes:
    """A control packet of less than 128 bytes."""
    return bytes((first, len(body))) + body


def connect(port: int, client_id: bytes, clean: bool) -> socket.socket:
    """A connection of MQTT 3.1.1."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(60)
    flags = bytes((2 if clean else 0, 0, 0))
    head = b"\x00\x04MQTT\x04" + flags + len(client_id).to_bytes(2, "big")
    connection.sendall(packet(0x10, head + client_id))
    answer = b""
    while len(answer) < 4:
        answer += connection.recv(4 - len(answer)) or b"closed"
    if answer[:2] != b"\x20\x02" or answer[3]:
        raise Void(f"CONNACK {answer.hex(' ')}")
    return connection


def subscribe(port: int) -> None:
    """Make the session that is offline."""
    with connect(port, b"offline", False) as connection:
        connection.sendall(packet(0x82, b"\0\1\0\7bench/#\1"))
        if connection.recv(100)[:1] != b"\x90":
            raise Void("no SUBACK")
        connection.sendall(b"\xe0\0")
        while connection.recv(100):
            pass


class Publisher:
    """One connection that publishes, `window` messages unacknowledged."""

    def __init__(self, port: int, number: int, window: int) -> None:
        self.connection = connect(port, b"pub-%d" % number, True)
        self.base = number << 32
        self.window = window
        self.sent = self.acked = 0
        self._waiting: deque[tuple[int, float]] = deque()
        self._buffer = b""

    def write(self) -> None:
        """Fill the window, once a quarter of it is free."""
        sent, room = self.sent, self.window - (self.sent - self.acked)
        if room >= max(1, self.window // 4):
            batch = [
                PUBLISH.pack(FIRST, TOPIC, number % 65535 + 1, self.base + number, REST)
                for number in range(sent, sent + room)
            ]
            self._waiting.append((sent, time.perf_counter()))
            self.sent += room
            self.connection.sendall(b"".join(batch))

    def read(self, latencies: list[float]) -> None:
        """Take what was acknowledged, which must be in order."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise Void("a publisher was disconnected")
        buffer = self._buffer + data
        whole = len(buffer) & ~3
        acked = self.acked
        for at in range(0, whole, 4):
            if buffer[at : at + 4] != b"\x40\x02" + (acked % 65535 + 1).to_bytes(2, "big"):
                raise Void(f"not the PUBACK of message {acked}")
            acked += 1
        self.acked = acked
        self._buffer = buffer[whole:]
        now = time.perf_counter()
        waiting = self._waiting
        while waiting and waiting[0][0] < acked:
            latencies.append(now - waiting.popleft()[1])


def publish(
    port: int, window: int, publishers: int, seconds: float
) -> tuple[list[int], float, list[float]]:
    """Publish for some seconds: how many of each publisher were acknowledged, within how many seconds, and how long the
    first of each write took."""
    latencies: list[float] = []
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        made = [Publisher(port, number, window // publishers) for number in range(publishers)]
        for one in made:
            stack.enter_context(one.connection)
            selector.register(one.connection, selectors.EVENT_READ, one)
        began = now = time.perf_counter()
        for one in made:
            one.write()
        while now < began + seconds:
            for key, _ in selector.select(0.1):
                key.data.read(latencies)
                key.data.write()
            now = time.perf_counter()
        took = now - began
        # Whatever was sent and not acknowledged may be queued or not.
        return [one.acked for one in made], took, sorted(latencies)


def fetch(port: int, acked: list[int]) -> None:
    """Have the offline session given what is queued for it; raises Void if something acknowledged is missing."""
    there = [bytearray(count) for count in acked]
    left = sum(acked)
    with connect(port, b"offline", False) as connection:
        connection.settimeout(GAP)
        buffer = b""
        while left:
            try:
                data = connection.recv(1 << 18)
            except TimeoutError:
                data = b""
            if not data:
                raise Void(f"{left} acknowledged messages are lost")
            buffer += data
            whole = len(buffer) - len(buffer) % PUBLISH.size
            answers = []
            for first, _, packet_id, number, _ in PUBLISH.iter_unpack(buffer[:whole]):
                if first[0] & 0xF6 != 0x32:
                    raise Void(f"a packet that begins {first.hex(' ')}")
                answers.append(b"\x40\x02" + packet_id.to_bytes(2, "big"))
                seen, index = there[number >> 32], number & 0xFFFFFFFF
                if index < len(seen):
                    left -= not seen[index]
                    seen[index] = 1
            buffer = buffer[whole:]
            connection.sendall(b"".join(answers))


@contextlib.contextmanager
def flooding(port: int, wanted: bool) -> Iterator[None]:
    """Another connection that sends QoS 0 messages all the time, from a process of its own."""
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


def flood(port: int) -> None:
    """What that process does."""
    connection = connect(port, b"flood", True)
    print("connected", flush=True)
    while True:
        connection.sendall(FLOOD)


def fsync_each(port: int, folder: pathlib.Path) -> None:
    """The baseline: what a message and an fsync each cost in Python and nothing else. It keeps to what `publish` does."""
    file = os.open(folder / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            connection, _ = server.accept()
            # A publisher that has measured enough goes without waiting.
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
    """The folder that `bench` is in."""
    return pathlib.Path(__file__).parents[1]


@contextlib.contextmanager
def running(subject: Subject) -> Iterator[peers.Broker]:
    """The subject, with its files beside the code rather than in a temporary file system."""
    with tempfile.TemporaryDirectory(dir=pathlib.Path(__file__).parent, prefix=".durable-") as name:
        folder = pathlib.Path(name)
        port = peers.free_port()
        if subject.peer:
            peer, program = peers.find(subject.peer)
            config = folder / peer.config_name
            config.write_text(subject.configuration.format(port=port))
            words = [program, *(word.format(config=config) for word in peer.arguments)]
            if subject.peer == "mosquitto":
                config.write_text(
                    config.read_text() + f"persistence_location {folder}/\n"
                    f"user {'root' if os.getuid() == 0 else 'mosquitto'}\n"
                )
        else:
            words = [sys.executable, "-m", "bench.durable", "--fsync-each", str(port), name]
        cwd = folder if subject.peer else peers_root()
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            _listening(process, port, folder / "output")
            yield peers.Broker(port, process.pid)
        finally:
            process.send_signal(signal.SIGTERM if subject.peer else signal.SIGKILL)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listening(process: subprocess.Popen[bytes], port: int, output: pathlib.Path) -> None:
    end = time.monotonic() + peers.START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if process.poll() is not None or time.monotonic() > end:
            raise peers.PeerError(f"does not listen: {output.read_text()[-500:]}")
        time.sleep(0.02)


def measure(subject: Subject, case: Case, seconds: float) -> Run:
    """One run. Raises Void."""
    with running(subject) as broker:
        subscribe(broker.port)
        pids = broker.pids()
        with flooding(broker.port, case.flooded):
            before = [cpu(pid) for pid in pids]
            own = time.process_time()
            acked, took, latencies = publish(broker.port, case.window, case.publishers, seconds)
            own = time.process_time() - own
            used = [cpu(pid) - start for pid, start in zip(pids, before, strict=True)]
        count = sum(acked)
        if not count:
            raise Void("nothing was acknowledged")
        fetch(broker.port, acked)
    each = 1e6 / count
    return Run(
        count / took, sum(used) * each, used[0] * each, latencies, used[0] / took, own / took
    )


def spread(values: list[float], form: str) -> str:
    """The median, and the lowest and the highest."""
    middle = statistics.median(values)
    if len(values) < 2:
        return f"{middle:{form}}"
    return f"{middle:{form}} ({min(values):{form}}-{max(values):{form}})"


def row(subject: Subject, case: Case, runs: list[Run], rival: list[Run]) -> str:
    """A row of the table; its ratio is that of the medians."""
    rates = [run.rate for run in runs]
    ratio = ""
    if rival:
        theirs = statistics.median(run.rate for run in rival)
        ratio = f"{statistics.median(rates) / theirs:.2f}x"
    cells = [
        str(case),
        subject.name,
        spread(rates, ",.0f"),
        ratio,
        f"{1e6 / statistics.median(rates):,.1f}",
        spread([run.cpu for run in runs], ".1f"),
        f"{statistics.median(run.cpu - run.main for run in runs):.1f}",
        f"{statistics.median(run.latency(0.5) for run in runs):.2f}",
        f"{statistics.median(run.latency(0.99) for run in runs):.2f}",
        f"{statistics.median(run.busy for run in runs):.2f}",
        f"{statistics.median(run.generator for run in runs):.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEADING = (
    "| in flight | | PUBACK/s | to mosquitto | wall us | CPU us | of it writer | p50 ms | p99 ms | core | gen. |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.durable",
        description="Durable QoS 1 publishes a second to a session that is offline: HookMQ, mosquitto with "
        "persistence, and an fsync for each message, alternating in one run. See bench/README.md.",
    )
    add = parser.add_argument
    add("--seconds", type=float, default=1.2, help="measured time of a run (%(default)s)")
    add("--runs", type=int, default=3, help="runs of each; the table has medians (%(default)s)")
    add("--cases", default="", help="as the table names them, by semicolons (all)")
    add("--subjects", default="", help="names that begin so, by commas (all)")
    add("--json", type=pathlib.Path, metavar="FILE", help="write every run there as well")
    add("--flood", type=int, help=argparse.SUPPRESS)
    add("--fsync-each", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Print the table. Exit code 1 when a row is void, 2 when it cannot run at all."""
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
            # In the other order every time, since the machine is not the same all the time.
            for one in subjects if number % 2 == 0 else reversed(subjects):
                if not one.peer and (case.flooded or case.publishers > 1):
                    continue  # it has no loop, and serves one
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
    print(
        f"{PAYLOAD} B of payload, MQTT 3.1.1; medians (lowest-highest) of {options.runs} x {options.seconds:g} s; load"
        f" average before {load:.2f}, after {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores\n\n{HEADING}"
    )
    for case in cases:
        rival = runs.get((case, "mosquitto"), [])
        for one in subjects:
            key = case, one.name
            if key in void:
                print(f"| {case} | {one.name} | VOID: {void[key]} |" + " |" * 8)
            elif key in runs:
                print(row(one, case, runs[key], rival))
    if options.json:
        rows = [
            {"subject": name, **dataclasses.asdict(case), "runs": [_figures(run) for run in found]}
            for (case, name), found in runs.items()
        ]
        document = {"format": 1, "versions": versions, "load": load, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if void else 0


def _figures(run: Run) -> dict[str, float]:
    return {
        "rate": round(run.rate),
        "cpu_us": round(run.cpu, 2),
        "writer_us": round(run.cpu - run.main, 2),
        "p50_ms": round(run.latency(0.5), 3),
        "p99_ms": round(run.latency(0.99), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
