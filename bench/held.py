"""`python -m bench.held N`: print as JSON how much memory the broker itself needs for N connections, without sockets.

The connections curve uses this module for values above the open-file limit. It runs an in-memory broker whose clients
have sent CONNECT over transports that do nothing. A real connection also needs memory for a socket and its transport.
"""

from __future__ import annotations

import json
import pathlib
import sys

from hookmq.model.client import Peer, Scope
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect, Publish
from hookmq_testing import Harness


class NoWire:
    """A transport that discards everything written to it."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent = 0

    def write(self, data: bytes) -> None:
        """Count the bytes and discard them."""
        self.sent += len(data)

    def close(self) -> None:
        """Do nothing: there is no socket to close."""

    abort = pause_reading = resume_reading = close


def resident() -> int:
    """Return this process's resident memory in KiB."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise OSError("/proc/self/status has no VmRSS")


def hold(count: int) -> dict[str, float]:
    """Connect `count` clients. Return the memory per client in KiB and the whole process's memory in MiB."""
    with Harness() as harness:
        accept, turn = harness.broker.accept, harness.clock.run_until_idle
        scope, made = Scope(), []

        def connect(number: int) -> NoWire:
            wire = NoWire()
            connection = accept(wire, Peer("127.0.0.1", number % 60_000, "tcp"), scope)
            connection.feed(encode(Connect(f"client{number}", 4, True, 600), 4))
            made.append(connection)
            return wire

        for number in range(100):
            connect(-number)
        turn()
        before = resident()
        wires = [connect(number) for number in range(count)]
        turn()
        after = resident()
        assert all(wire.sent == 4 for wire in wires), "not every CONNECT got its CONNACK"
        made[-1].feed(encode(Publish("bench", b"x"), 4))
        turn()
        return {"count": count, "kib_each": (after - before) / count, "rss_mib": after / 1024}


def main() -> int:
    """Print the memory as a JSON object and return the exit code."""
    print(json.dumps(hold(int(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
