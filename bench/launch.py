"""Start a broker for a single run, find its processes, and stop it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import resource
import socket
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

from .peers import CACHE, Peer, PeerError, find

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS = 60.0
STOP_SECONDS = 5.0


def raise_file_limit() -> int:
    """Raise the soft open-file limit to the hard limit, so that brokers inherit it. Return the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Pin the block, and the processes it starts, to one core. If `core` is None, change nothing."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds used by a process and all its threads, as clock_getcpuclockid counts them."""
    return time.clock_gettime((~pid << 3) | 2)


def ended_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's children that have ended and were waited for, in steps of 10 ms."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def process_tree(pid: int) -> list[int]:
    """Return `pid` and all its current descendants, read from /proc/*/stat."""
    parents: dict[int, int] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may contain anything, so parse the text after the last one.
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    tree = [pid]
    for member in tree:
        tree += [child for child, parent in parents.items() if parent == member]
    return tree


@dataclasses.dataclass(frozen=True, slots=True)
class Broker:
    """A running broker: the port on 127.0.0.1 where it listens, and its first process."""

    port: int
    pid: int

    def pids(self) -> list[int]:
        """Return the process ids of the broker and its descendants."""
        return process_tree(self.pid)


def free_port() -> int:
    """Find a TCP port on 127.0.0.1 that is currently free.

    The port is below the ephemeral range, so the kernel does not assign it before the broker uses it.
    """
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, low - 16_000), max(2048, low))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def await_listener(
    name: str, process: subprocess.Popen[bytes], port: int, output: pathlib.Path
) -> None:
    """Block until the port accepts connections. Raises PeerError with the last lines of output if it never does."""
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
            tail = "\n".join(output.read_text(errors="replace").splitlines()[-15:])
            raise PeerError(f"{name} {what}\n{tail}")
        time.sleep(0.02)  # between two attempts to connect


def stop(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> None:
    """Terminate a process, and kill it if it has not exited after `seconds`."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tls_folder() -> pathlib.Path:
    """Return a folder with cert.pem and key.pem for 127.0.0.1, creating the files if necessary. They are valid for a
    year.
    """
    folder = CACHE / "tls"
    certificate, key = folder / "cert.pem", folder / "key.pem"
    fresh = certificate.exists() and time.time() - certificate.stat().st_mtime < 300 * 86400
    if not (fresh and key.exists()):
        import trustme

        folder.mkdir(parents=True, exist_ok=True)
        made = trustme.CA().issue_cert("127.0.0.1")
        made.private_key_pem.write_to_path(str(key))
        made.cert_chain_pems[0].write_to_path(str(certificate))
        key.chmod(0o644)  # mosquitto may run as another user
    return folder


@contextlib.contextmanager
def configured(
    peer: Peer, program: str, config: str, folder: pathlib.Path, core: int | None
) -> Iterator[Broker]:
    """Run a peer on a free port and one core, with its configuration in `folder`. Stop it at the end of the block.

    Blocks until the broker accepts connections. Raises PeerError if it does not.
    """
    port = free_port()
    file = folder / peer.config_name
    tls = tls_folder() if "{tls}" in config or "tls" in config else CACHE
    file.write_text(config.format(port=port, folder=folder, tls=tls))
    output = folder / "output"
    command = [program, *(word.format(config=file) for word in peer.arguments)]
    with output.open("wb") as stream, on_core(core):
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**os.environ, **peer.environment},
        )
    try:
        await_listener(peer.name, process, port, output)
        yield Broker(port, process.pid)
    finally:
        stop(process)


@contextlib.contextmanager
def hookmq(folder: pathlib.Path, **settings: Any) -> Iterator[Broker]:
    """Run this environment's HookMQ with `settings` and one TCP listener. The broker's files are in `folder`.

    Blocks until the broker accepts connections. Raises PeerError if it does not.
    """
    peer, program = find("hookmq")
    document = {"version": 1, "listeners": [{"name": "tcp", "bind": "127.0.0.1:PORT"}], **settings}
    config = json.dumps(document).replace("{", "{{").replace("}", "}}").replace("PORT", "{port}")
    with configured(peer, program, config, folder, None) as broker:
        yield broker


@contextlib.contextmanager
def running(name: str, *, core: int | None, variant: str = "plain") -> Iterator[Broker]:
    """Run a broker with the given variant of its configuration. The broker's files are in a temporary folder.

    Raises PeerError if the broker is unknown, is not installed, does not listen, or has no such variant.
    """
    peer, program = find(name)
    config = peer.configs.get(variant)
    if config is None:
        raise PeerError(f"{name} has no variant {variant!r}")
    # A store must be on a disk, but /tmp may be in memory.
    parent = CACHE if variant in ("durable", "guards") else None
    if parent:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"hookmq-bench-{name}-", dir=parent) as folder:
        for file, text in peer.files.get(variant, {}).items():
            path = pathlib.Path(folder, file)
            path.write_text(text)
            path.chmod(0o600)
        with configured(peer, program, config, pathlib.Path(folder), core) as broker:
            yield broker
