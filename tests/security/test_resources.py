"""Test attacks on the memory, file descriptors and connections of a real ``hookmq serve``: CVE-2021-33175 (EMQX),
CVE-2021-33176 (VerneMQ), CVE-2020-13849 (SlowITe), CVE-2025-56352 (tinyMQTT) and CVE-2026-95845 (Moquette).

During an attack, other clients are served. Afterwards, all gauges return to their initial values. The tests assert
counts and order, never times.
"""

import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import mqttbytes as m
import pytest
from attacks import PAYLOAD, SECRET, check_entries
from byteclient import ByteClient, SocketTransport, over_tcp
from serving import WAIT, Served, serving

MEGABYTE = 1 << 20
CONFIG = """\
version: 1
listeners:
  - {name: tcp, bind: "127.0.0.1:0", connect_timeout: CONNECT, close_timeout: 1s, max_connections: 400, backlog: 1024}
  - {name: ws, type: ws, bind: "127.0.0.1:0", connect_timeout: CONNECT, close_timeout: 1s}
  - {name: http, type: http, bind: "127.0.0.1:0"}
auth: {default: allow}
authz: {default: allow}
broker: {max_retained_bytes: 32MiB, max_queue_bytes: 64MiB, max_write_buffer: 256KiB}
session: {queue_bytes: 4MiB}
loop: LOOP
"""


class Target:
    """A broker under attack, as an operator sees it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.port = served.ports["tcp"]
        self.witness = over_tcp(self.port).join("witness")
        self.witness.send(m.subscribe(1, ("witness", 1)))
        assert self.witness.frame()[0] == 0x90
        self.count = 0
        self.before = self.counters()

    def resident(self) -> int:
        """Return the resident memory in bytes."""
        pages = Path(f"/proc/{self.served.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def descriptors(self) -> int:
        """Return the number of open file descriptors."""
        return len(os.listdir(f"/proc/{self.served.process.pid}/fd"))

    def counters(self) -> dict[str, int]:
        """Return the gauges that must return to their initial values."""
        with socket.create_connection(("127.0.0.1", self.served.ports["http"]), WAIT) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            data = b""
            while piece := sock.recv(65536):
                data += piece
        wanted = ("connections", "sessions", "subscriptions", "queue_bytes")
        found = {}
        for line in data.decode().splitlines():
            name, _, value = line.partition(" ")
            if name.removeprefix("hookmq_") in wanted:
                found[name.removeprefix("hookmq_")] = int(float(value))
        assert set(found) == set(wanted)
        return {**found, "descriptors": self.descriptors()}

    def well(self) -> None:
        """Assert that a well-behaved client is served in order."""
        for _ in range(3):
            self.count += 1
            self.witness.send(m.publish("witness", b"%d" % self.count, 1, 1))
            frames = [self.witness.frame(), self.witness.frame()]
            got = next(frame for frame in frames if frame[0] >> 4 == 3)
            assert got.endswith(b"%d" % self.count)
            self.witness.send(m.puback(int.from_bytes(got[11:13], "big")))

    def recovers(self) -> None:
        """Wait until all gauges have their initial values. Fail after a long time."""
        end = time.monotonic() + WAIT
        while (now := self.counters()) != self.before:
            assert time.monotonic() < end, f"{now}, before {self.before}"
        self.well()

    def close(self) -> None:
        """Close the well-behaved client."""
        self.witness.close()


Attack = Callable[[Target], None]


def attack(
    tmp_path: Path, loop: str, what: Attack, connect: str = "1s", memory: int = 0, rounds: int = 1
) -> None:
    """Run an attack `rounds` times. Between the first and the last round, memory may grow by at most `memory` bytes."""
    path = tmp_path / "f.yaml"
    path.write_text(CONFIG.replace("LOOP", loop).replace("CONNECT", connect))
    with serving("-c", str(path)) as served, closing(Target(served)) as target:
        sizes = []
        for _ in range(rounds):
            what(target)
            target.well()
            target.recovers()
            sizes.append(target.resident())
        assert sizes[-1] - sizes[0] <= memory, [size // MEGABYTE for size in sizes]
        served.signal(signal.SIGUSR1)
        state = served.wait_for("node.state")
        assert state["sessions"] == 1
        check_entries(served.log)


def peers(target: Target, count: int) -> Iterator[ByteClient]:
    for _ in range(count):
        yield over_tcp(target.port)


def slow_connects(target: Target) -> None:
    """Send incomplete CONNECT packets, and nothing at all on other connections."""
    data = m.connect("slow" * 100, username="u", password=SECRET.encode())
    waiting = list(peers(target, 200))
    for number, peer in enumerate(waiting):
        peer.send(data[: number % (len(data) - 1)])
    target.well()
    for peer in waiting:
        peer.ends()


def flood(target: Target) -> None:
    """Open more connections than the listener accepts."""
    waiting = list(peers(target, 700))
    target.well()
    for peer in waiting:
        peer.close()


def announced_and_never_sent(target: Target) -> None:
    """Announce large packets without sending them, before and after CONNECT."""
    waiting = []
    for number in range(100):
        peer = over_tcp(target.port)
        peer.send(b"\x10" + m.varint(60_000 if number % 2 else 268_435_455))
        waiting.append(peer)
    for number in range(100):
        peer = over_tcp(target.port).join(f"big{number}")
        peer.send(b"\x32" + m.varint(MEGABYTE - 10))
        waiting.append(peer)
    target.well()
    for peer in waiting:
        peer.close()


UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def gathered(target: Target) -> None:
    """Send 2 MB WebSocket messages without their last byte, from clients that are not accepted yet."""
    size = 2 * MEGABYTE - 1000
    before = target.resident()
    waiting = []
    for _ in range(60):
        sock = socket.create_connection(("127.0.0.1", target.served.ports["ws"]), WAIT)
        waiting.append(sock)
        sock.sendall(UPGRADE)
        while not sock.recv(4096).endswith(b"\r\n\r\n"):
            pass
        with suppress(OSError):  # the server may have closed the connection by then
            sock.sendall(b"\x82\xff" + size.to_bytes(8, "big") + bytes(4) + bytes(size - 1))
    target.well()
    assert target.resident() - before < 30 * MEGABYTE
    for sock in waiting:
        sock.close()


def levels_and_properties(target: Target) -> None:
    """Send 65,000 topic levels, as many user properties as fit, and thousands of filters."""
    deep = "/" * 65_000
    bombs = [
        m.publish(deep, PAYLOAD, 1, 1), m.subscribe(1, (deep + "#", 1)), m.unsubscribe(1, deep),
        m.publish("t", PAYLOAD, 1, 1, properties=m.user("", "") * 100_000),
        m.subscribe(1, *[("t", 0)] * 100_000), m.unsubscribe(1, *["t"] * 100_000),
        m.publish("t", PAYLOAD, 1, 1, properties=m.user("k" * 65_535, "v" * 65_535) * 7),
    ]  # fmt: skip
    for bomb in bombs * 3:
        peer = over_tcp(target.port).join("bomber")
        peer.offer(bomb)
        target.well()
        peer.close()
    early = over_tcp(target.port)
    early.offer(m.connect("c", properties=m.user("", "") * 10_000))
    early.rest()


def ids(target: Target) -> None:
    """Use all packet ids at QoS 2 without completing them, and acknowledge ids that were never used."""
    greedy = over_tcp(target.port, 4).join("greedy")
    for start in range(1, 65_536, 1000):
        numbers = range(start, min(start + 1000, 65_536))
        greedy.send(*(m.publish("ids", b"", 2, number, level=4) for number in numbers))
        for _ in numbers:
            greedy.frame()
    greedy.send(
        *(make(number) for make in (m.puback, m.pubrec, m.pubcomp) for number in range(1, 2000))
    )
    target.well()
    greedy.close()


def never_acknowledging(target: Target) -> None:
    """Connect durable subscribers that never acknowledge messages and then leave forever."""
    lazy = []
    for number in range(20):
        peer = over_tcp(target.port).join(f"lazy{number}", properties=m.session_expiry(1000))
        peer.send(m.subscribe(1, ("load/#", 1)))
        peer.frame()
        lazy.append(peer)
    sender = over_tcp(target.port).join("sender")
    for number in range(600):
        sender.send(m.publish(f"load/{number}", PAYLOAD + bytes(20_000), 1, 1))
        sender.frame()
        if number % 100 == 0:
            target.well()
    assert target.counters()["queue_bytes"] <= 64 * MEGABYTE
    for number, peer in enumerate(lazy):
        peer.close()
        over_tcp(target.port).join(f"lazy{number}").close()
    sender.close()


def never_reading(target: Target) -> None:
    """Connect subscribers that do not read, under load from many publishers and with retained messages."""
    senders = [over_tcp(target.port).join(f"sender{number}") for number in range(4)]
    for number in range(30):
        senders[0].send(m.publish(f"kept/{number}", bytes(500_000), retain=True))
    deaf = []
    for number in range(30):
        peer = ByteClient(SocketTransport(target.port, buffer=4096)).join(f"deaf{number}")
        peer.send(m.subscribe(1, ("load/#", number % 2), ("kept/#", number % 2)))
        deaf.append(peer)
    target.well()
    for number in range(200):
        for sender in senders:
            sender.send(m.publish("load/x", PAYLOAD + bytes(50_000)))
        if number % 50 == 0:
            target.well()
    for peer in deaf:
        peer.offer(m.PINGREQ * 10_000)  # responses that are not read either
    target.well()
    for peer in (*deaf, *senders[1:]):
        peer.close()
    for number in range(30):
        senders[0].send(m.publish(f"kept/{number}", b"", retain=True))
    senders[0].send(m.PINGREQ)
    while senders[0].frame() != m.PINGRESP:
        pass
    senders[0].close()


def rejected(target: Target) -> None:
    """Send ten thousand CONNECT packets that are refused, some with a will, some malformed."""
    wrong = [
        m.connect("c", level=9), m.connect("c", will=("a/#", PAYLOAD)), m.connect("c", flags=1), m.connect("", level=3),
        m.connect("c", will=("t", PAYLOAD), will_properties=m.alias(1)), m.publish("t"), b"\x10\xff\xff\xff\xff\x01",
    ]  # fmt: skip
    for number in range(3400):
        peer = over_tcp(target.port)
        peer.send(wrong[number % len(wrong)])
        peer.rest()
    target.well()


ATTACKS = [
    (gathered, "20s", 8), (slow_connects, "1s", 8), (flood, "20s", 8), (announced_and_never_sent, "1s", 8),
    (levels_and_properties, "20s", 16),
    (ids, "1s", 16), (never_acknowledging, "1s", 48), (never_reading, "1s", 64), (rejected, "1s", 8),
]  # fmt: skip


@pytest.mark.parametrize(("what", "connect", "_"), ATTACKS[:4])
def test_once(tmp_path: Path, what: Attack, connect: str, _: int) -> None:
    attack(tmp_path, "uvloop", what, connect)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("what", "connect", "memory"), ATTACKS)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_again_and_again(
    tmp_path: Path, what: Attack, connect: str, memory: int, loop: str
) -> None:
    """Each attack can be repeated on both event loops without memory growing in each round."""
    attack(tmp_path, loop, what, connect, memory * MEGABYTE, rounds=3)


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(resource, "prlimit"),
    reason="only Linux lets a test take descriptors from a process",
)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_no_descriptors_left(tmp_path: Path, loop: str) -> None:
    """Connected clients are still served, and the listener recovers once descriptors are free.

    The log reports the shortage at most once per second.
    """
    path = tmp_path / "f.yaml"
    path.write_text(CONFIG.replace("LOOP", loop).replace("CONNECT", "20s"))
    with serving("-c", str(path)) as served, closing(Target(served)) as target:
        limits = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(
            served.process.pid, resource.RLIMIT_NOFILE, (target.descriptors() + 20, limits[1])
        )
        waiting = list(peers(target, 100))
        target.well()
        for peer in waiting:
            peer.close()
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, limits)
        target.recovers()
        over_tcp(target.port).join("later").close()
        target.recovers()
        refused = [entry for entry in served.log if entry["event"] == "listener.accept_failed"]
        assert len(refused) <= 10
        assert len(served.log) < 500
        for entry in refused:
            served.log.remove(entry)  # the only expected error
