"""Starting a broker for one run, watching its processes, stopping it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import resource
import socket
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from .peers import CACHE, Peer, PeerError, find

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS = 60.0
STOP_SECONDS = 5.0


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
    """A TCP port on 127.0.0.1 that was free a moment ago; below those that the kernel hands out, so that nobody is given
    it before its broker is there."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, low - 16_000), max(2048, low))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def await_listener(
    name: str, process: subprocess.Popen[bytes], port: int, output: pathlib.Path
) -> None:
    """Block until somebody listens. Raises PeerError with the end of its output if nobody ever does."""
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
        time.sleep(0.02)


def stop(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> None:
    """Terminate a process, and kill it if that takes longer."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tls_folder() -> pathlib.Path:
    """A folder with cert.pem and key.pem for 127.0.0.1, made at the first use and for a year."""
    folder = CACHE / "tls"
    certificate, key = folder / "cert.pem", folder / "key.pem"
    fresh = certificate.exists() and time.time() - certificate.stat().st_mtime < 300 * 86400
    if not (fresh and key.exists()):
        import trustme

        folder.mkdir(parents=True, exist_ok=True)
        made = trustme.CA().issue_cert("127.0.0.1")
        made.private_key_pem.write_to_path(str(key))
        made.cert_chain_pems[0].write_to_path(str(certificate))
        key.chmod(0o644)  # mosquitto may have become another user when it reads it
    return folder


@contextlib.contextmanager
def configured(
    peer: Peer, program: str, config: str, folder: pathlib.Path, core: int | None
) -> Iterator[Broker]:
    """Start a peer with a configuration in a folder, on a free port and that core; stop it at the end.

    Blocks until it accepts connections. Raises PeerError if it does not.
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
def running(name: str, *, core: int | None, variant: str = "plain") -> Iterator[Broker]:
    """Start a broker as that variant of its configuration; its files live in a temporary folder.

    Raises PeerError if it is unknown, not installed, does not listen, or has no such variant.
    """
    peer, program = find(name)
    config = peer.configs.get(variant)
    if config is None:
        raise PeerError(f"{name} has no variant {variant!r}")
    # A store is on a disk: /tmp may be in memory.
    parent = CACHE if variant == "durable" else None
    if parent:
        parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"hookmq-bench-{name}-", dir=parent) as folder,
        configured(peer, program, config, pathlib.Path(folder), core) as broker,
    ):
        yield broker
