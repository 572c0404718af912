"""Targets for bench.sinks, and paho subscribers that write to the same targets for comparison.

Each server listens on a free port of 127.0.0.1. Its data is in a temporary folder of the working tree, because the
system's temporary folder may be in memory. Only processes started here are stopped.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import durable_load, launch, peers

USER = "hookmq"
QUIET = 30.0
"""Seconds without progress after which missing messages count as lost."""
CUT = 0.05
"""Seconds that a batching subscriber waits for more messages before it writes a batch."""


def program(name: str) -> str:
    """Return the path of a program. Raises PeerError if it is not installed."""
    found = shutil.which(name) or next(
        (str(one) for one in sorted(pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))),
        None,
    )
    if found is None:
        raise peers.PeerError(f"{name} is not installed")
    return found


@contextlib.contextmanager
def started(
    name: str, words: list[str], port: int, folder: pathlib.Path, **options: Any
) -> Iterator[int]:
    """Run a server while the block runs. Yield its process id. Raises PeerError if it does not start."""
    output = folder / f"{name}.output"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, **options
        )
    try:
        launch.await_listener(name, process, port, output)
        yield process.pid
    finally:
        # SIGINT makes PostgreSQL end at once, although there are clients.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# targets -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def postgres(folder: pathlib.Path) -> Iterator[str]:
    """Run a PostgreSQL server with an empty table `bench`. Yield its URL. PostgreSQL refuses to run as root, so root
    uses the user `postgres`."""
    import psycopg

    user = "postgres" if os.geteuid() == 0 else None
    data = folder / "postgres"
    data.mkdir()
    if user:
        for one in (
            data,
            *folder.parents[: len(folder.relative_to(peers.HERE.parent).parts)],
            folder,
        ):
            if one.stat().st_uid == 0:
                one.chmod(one.stat().st_mode | 0o711)
        shutil.chown(data, user)
    made = subprocess.run(
        [program("initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"],
        user=user, cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        raise peers.PeerError(f"initdb: {made.stderr.strip()}")
    port = launch.free_port()
    words = [
        program("postgres"), "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1",
        "-c", f"unix_socket_directories={data}",
    ]  # fmt: skip
    with started("postgres", words, port, folder, user=user, cwd="/"):
        url = f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("CREATE TABLE bench (topic text, payload bytea)")
                break
            time.sleep(0.05)  # between two attempts: PostgreSQL listens before it accepts clients
        yield url


@contextlib.contextmanager
def redis(folder: pathlib.Path) -> Iterator[str]:
    """Run a Redis server that syncs its file every second. Yield its URL."""
    port = launch.free_port()
    words = [
        program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
        "--appendonly", "yes", "--loglevel", "warning",
    ]  # fmt: skip
    with started("redis", words, port, folder):
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Listen on a port, accept connections and never answer. Yield the URL of a Redis server there."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        server.shutdown(socket.SHUT_RDWR)
    for one in kept:
        one.close()


def rows(url: str) -> int:
    """Return the number of rows in PostgreSQL."""
    import psycopg

    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM bench").fetchone()
    return int(found[0]) if found else 0


def entries(url: str) -> int:
    """Return the number of entries in the Redis stream."""
    from redis import Redis

    with Redis.from_url(url) as client:
        return int(client.xlen("bench"))


class Arrivals:
    """Counts the messages of `bench.durable_load` that a broker delivers, in a thread of its own. `count` is the count so
    far.
    """

    def __init__(self, port: int) -> None:
        self.count = 0
        self._connection = durable_load.connect(port, b"arrivals", True)
        self._connection.sendall(durable_load.packet(0x82, b"\0\1\0\7bench/#\0"))
        if self._connection.recv(5)[:1] != b"\x90":
            raise durable_load.Void("no SUBACK")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        size = durable_load.PUBLISH.size - 2  # QoS 0 has no packet id
        received = 0
        self._connection.settimeout(None)
        with contextlib.suppress(OSError):
            while data := self._connection.recv(1 << 18):
                received += len(data)
                self.count = received // size

    def close(self) -> None:
        """Disconnect."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


# subscribers ---------------------------------------------------------------------------------------------------------


def insert_rows(port: int, url: str) -> None:
    """Insert each message as a row and commit it."""
    import psycopg

    connection = psycopg.connect(url, autocommit=True)

    def write(topic: str, payload: bytes) -> None:
        connection.execute("INSERT INTO bench VALUES (%s, %s)", (topic, payload))

    _subscribe(port, write)


def insert_batches(port: int, url: str) -> None:
    """Insert messages in transactions of up to 1,000 rows."""
    import queue

    import psycopg

    waiting: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()

    def write() -> None:
        with psycopg.connect(url) as connection:
            while True:
                batch = [waiting.get()]
                with contextlib.suppress(queue.Empty):
                    while len(batch) < 1000:
                        batch.append(waiting.get(timeout=CUT))
                connection.cursor().executemany("INSERT INTO bench VALUES (%s, %s)", batch)
                connection.commit()

    threading.Thread(target=write, daemon=True).start()
    _subscribe(port, lambda topic, payload: waiting.put((topic, payload)))


def add_entries(port: int, url: str) -> None:
    """Add each message to a Redis stream."""
    from redis import Redis

    client = Redis.from_url(url)

    def write(topic: str, payload: bytes) -> None:
        client.xadd("bench", {"topic": topic, "payload": payload})

    _subscribe(port, write)


SUBSCRIBERS = {one.__name__: one for one in (insert_rows, insert_batches, add_entries)}


def _subscribe(port: int, write: Callable[[str, bytes], None]) -> None:
    """Subscribe with paho at QoS 1 and call `write` for each message. Does not return."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    client = Client(CallbackAPIVersion.VERSION2, "subscriber", clean_session=False)
    client.on_message = lambda _client, _data, message: write(message.topic, bytes(message.payload))
    client.on_subscribe = lambda *_: print("subscribed", flush=True)
    client.connect("127.0.0.1", port)
    client.subscribe("bench/#", 1)
    client.loop_forever()


@contextlib.contextmanager
def subscriber(name: str, port: int, url: str) -> Iterator[int]:
    """Run one of `SUBSCRIBERS` in its own process while the block runs. Yield its process id."""
    words = [sys.executable, "-m", "bench.sink_targets", name, str(port), url]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=peers.HERE.parent)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"subscribed\n":
            raise peers.PeerError(f"{name} ended")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    SUBSCRIBERS[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
