"""Stand-ins for sockets in tests of `hookmq bench`: an event loop that tests advance, a transport that records writes,
and a plan that tests vary.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hookmq.cli.options import ConnectTarget
from hookmq_bench.connection import Connection, Turn
from hookmq_bench.plan import Plan
from hookmq_bench.tally import Tally

PLAN = Plan(
    scenario="pair", target=ConnectTarget("127.0.0.1", 1883, 4, 60, True), run=0xABCDEF, publishers=2, subscribers=2,
    clients=0, processes=1, rate=0.0, window=4, qos=0, payload=b"filler", topic="t/{run}/{i}", retain=False,
    shared=False, duration=10.0, count=0, warm_up=1.0, ramp_up=0.0, drain=2.0, connect_rate=0.0, connecting=64,
    storm=0.0, abrupt=False, keep=False, prefix="bench",
)  # fmt: skip


def vary(version: int = 4, target: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """Return the standard plan with changes. The changes in `target` apply to its target."""
    aimed = replace(PLAN.target, version=version, **(target or {}))
    return replace(PLAN, target=aimed, **changes)


class Loop:
    """An event loop that runs its callbacks only when the test calls `run`."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def run(self) -> None:
        """Run callbacks until none are left."""
        while self.soon:
            self.soon.pop(0)()


class Wire:
    """A transport that records what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.ended = ""

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        data = b"".join(self.writes)
        self.writes.clear()
        return data


class Bench:
    """An event loop, a turn, a tally and a clock for connections without sockets."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.turn = Turn(self.loop)  # type: ignore[arg-type]
        self.tally = Tally(since=0)
        self.now = 1_000

    def wire(self, connection: Connection) -> Wire:
        """Give the connection a new transport. Bytes that the connection wrote earlier are discarded."""
        wire = Wire()
        connection.transport = wire  # type: ignore[assignment]
        return wire
