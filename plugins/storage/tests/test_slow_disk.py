"""A disk that takes its time withholds acknowledgements and nothing else: the answer to PINGREQ and traffic of QoS 0 go
on, of the very client that waits as of others. The disk is held by a gate that the test opens: no time is measured."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import mqttbytes as m
from crashing import Crashing, crashing
from hookmq.testing import DurableStore, Harness, SlowStore
from rawclient import RawClient
from serving import WAIT

ROUNDS = 50
CONNACK, PRESENT = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"


def round_of(name: str, number: int) -> tuple[bytes, bytes]:
    """What a client sends in a round, and what it must get before the disk has written anything."""
    kept = m.publish("kept", b"%d" % number, 1, number, level=4)
    echo = m.publish(f"live/{name}", b"%d" % number, level=4)
    return kept + m.PINGREQ + echo, m.PINGRESP + echo


def test_in_memory_with_a_slow_store() -> None:
    store = SlowStore(DurableStore(), slow=False)
    with Harness(store=store) as harness:
        away = RawClient(harness, 4).connect("away", clean=False)
        away.arrived = b""
        away.subscribe(("kept", 1))
        away.send(m.packet(0xE0))
        clients = {name: RawClient(harness, 4).connect(name) for name in ("one", "two")}
        for name, client in clients.items():
            assert client.arrived == CONNACK
            client.arrived = b""
            client.subscribe((f"live/{name}", 0))
        store.slow = True
        for number in range(1, ROUNDS + 1):
            for name, client in clients.items():
                sent, expected = round_of(name, number)
                client.send(sent)
                assert client.arrived == expected
                client.arrived = b""
        assert store.committing
        store.slow = False
        store.finish()
        harness.settle()
        acknowledged = b"".join(m.puback(number) for number in range(1, ROUNDS + 1))
        for client in clients.values():
            assert client.arrived == acknowledged


class Bytes:
    """A client that speaks bytes to a real broker, and gets as many as it expects."""

    def __init__(self, broker: Crashing, name: str, clean: bool, connack: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), WAIT)
        self.tell(m.connect(name, level=4, clean=clean), connack)

    def tell(self, data: bytes, expected: bytes) -> None:
        """Send, and get exactly that."""
        self.socket.sendall(data)
        self.get(expected)

    def get(self, expected: bytes) -> None:
        """Get exactly that."""
        got = b""
        while len(got) < len(expected):
            more = self.socket.recv(len(expected) - len(got))
            assert more, f"closed after {got!r}"
            got += more
        assert got == expected

    def subscribe(self, filter: str, qos: int) -> None:
        self.tell(m.subscribe(1000, (filter, qos), level=4), m.suback(1000, qos, level=4))


@contextmanager
def client(
    broker: Crashing, name: str, clean: bool = True, connack: bytes = CONNACK
) -> Iterator[Bytes]:
    made = Bytes(broker, name, clean, connack)
    with closing(made.socket):
        yield made


def test_a_real_broker_whose_writer_stands_still(tmp_path: Path) -> None:
    with crashing(tmp_path) as broker:
        with client(broker, "away", clean=False) as away:
            away.subscribe("kept", 1)
        with client(broker, "one") as one, client(broker, "two") as two:
            clients = {"one": one, "two": two}
            for name, each in clients.items():
                each.subscribe(f"live/{name}", 0)
            writer = broker.writer()
            os.kill(writer, signal.SIGSTOP)
            for number in range(1, ROUNDS + 1):
                for name, each in clients.items():
                    each.tell(*round_of(name, number))
            os.kill(writer, signal.SIGCONT)
            for each in clients.values():
                each.get(b"".join(m.puback(n) for n in range(1, ROUNDS + 1)))
        with client(broker, "away", clean=False, connack=PRESENT) as away:
            numbers = [number for number in range(1, ROUNDS + 1) for _ in clients]
            away.get(
                b"".join(
                    m.publish("kept", b"%d" % number, 1, packet_id, level=4)
                    for packet_id, number in enumerate(numbers, 1)
                )
            )
        assert broker.stop() == 0
