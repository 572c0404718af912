"""A slow disk delays only acknowledgements.

PINGRESP and QoS 0 messages are still sent, even to the client whose acknowledgement is waiting. The test blocks the
disk with a gate instead of measuring time.
"""

import os
import signal
from pathlib import Path

import mqttbytes as m
from byteclient import over_tcp
from bytememory import join
from crashing import crashing
from hookmq_testing import DurableStore, Harness, SlowStore

ROUNDS = 50


def round_of(name: str, number: int) -> tuple[bytes, bytes]:
    """Return the bytes that a client sends in a round, and the bytes it must receive before anything is written to
    disk.
    """
    kept = m.publish("kept", b"%d" % number, 1, number, level=4)
    echo = m.publish(f"live/{name}", b"%d" % number, level=4)
    return kept + m.PINGREQ + echo, m.PINGRESP + echo


def test_in_memory_with_a_slow_store() -> None:
    store = SlowStore(DurableStore(), slow=False)
    with Harness(store=store) as harness:
        away = join(harness, "away", 4, clean=False)
        away.subscribe(("kept", 1))
        away.send(m.packet(0xE0))
        clients = {name: join(harness, name, 4) for name in ("one", "two")}
        for name, client in clients.items():
            client.subscribe((f"live/{name}", 0))
        store.slow = True
        for number in range(1, ROUNDS + 1):
            for name, client in clients.items():
                sent, expected = round_of(name, number)
                client.send(sent).expect(expected)
        assert store.committing
        store.slow = False
        store.finish()
        harness.settle()
        acknowledged = b"".join(m.puback(number) for number in range(1, ROUNDS + 1))
        for client in clients.values():
            client.expect(acknowledged)


def test_a_real_broker_whose_writer_stands_still(tmp_path: Path) -> None:
    with crashing(tmp_path) as broker:
        with over_tcp(broker.port, 4) as away:
            away.join("away", clean=False).subscribe(("kept", 1))
        with over_tcp(broker.port, 4) as one, over_tcp(broker.port, 4) as two:
            clients = {"one": one, "two": two}
            for name, each in clients.items():
                each.join(name).subscribe((f"live/{name}", 0))
            writer = broker.writer()
            os.kill(writer, signal.SIGSTOP)
            for number in range(1, ROUNDS + 1):
                for name, each in clients.items():
                    each.tell(*round_of(name, number))
            os.kill(writer, signal.SIGCONT)
            for each in clients.values():
                each.get(b"".join(m.puback(n) for n in range(1, ROUNDS + 1)))
        with over_tcp(broker.port, 4) as away:
            away.join("away", clean=False, present=True)
            numbers = [number for number in range(1, ROUNDS + 1) for _ in clients]
            away.get(
                b"".join(
                    m.publish("kept", b"%d" % number, 1, packet_id, level=4)
                    for packet_id, number in enumerate(numbers, 1)
                )
            )
        assert broker.stop() == 0
