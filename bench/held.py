"""`python -m bench.held N`: what the broker itself keeps for N connections, without a socket, as JSON.

The curve of connections asks here about more of them than a process may have descriptors: one broker in memory, whose
connections have sent CONNECT over wires that do nothing. Beyond this a connection costs a socket and its transport.
"""

from __future__ import annotations

import json
import pathlib
import sys

from hookmq.codec import Connect, Publish, encode
from hookmq.testing import Harness
from hookmq.types import Peer, Scope


class NoWire:
    """A wire to nobody."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent = 0

    def write(self, data: bytes) -> None:
        """Forget it."""
        self.sent += len(data)

    def close(self) -> None:
        """Nothing to close."""

    abort = pause_reading = resume_reading = close


def resident() -> int:
    """KiB of this process in memory."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise OSError("/proc/self/status has no VmRSS")


def hold(count: int) -> dict[str, float]:
    """Connect so many clients; KiB for each, and for all of the process."""
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
    """Print one JSON object."""
    print(json.dumps(hold(int(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
