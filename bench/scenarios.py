"""The scenarios: what load each puts on a broker, and what HookMQ is to reach in it."""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import Literal

Mode = Literal["closed", "open", "connect", "idle"]
Topology = Literal["all", "pairs"]


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One load; the fields are the keys of load.c.

    `window` counts the messages that each publisher may have outstanding end to end; `rate` is
    messages a second of all publishers together. `least_ratio` is the milestone's bar: mosquitto's
    CPU time per message divided by HookMQ's. `most_kib` is the bar of the idle scenario.
    """

    name: str
    title: str
    mode: Mode = "closed"
    topology: Topology = "pairs"
    pubs: int = 50
    subs: int = 50
    qos: int = 0
    window: int = 1
    rate: int = 0
    clients: int = 0
    least_ratio: float | None = None
    most_kib: float | None = None

    @property
    def unit(self) -> str:
        """What is counted: a delivered message, or a connection."""
        return {"connect": "connect", "idle": "connection"}.get(self.mode, "message")

    def arguments(
        self, *, payload: int, level: int, seconds: float, warmup: float
    ) -> dict[str, str]:
        """The words for load.c, without the port and the broker's process numbers."""
        words: dict[str, object] = {
            "mode": self.mode,
            "level": level,
            "seconds": seconds,
            "warmup": warmup,
        }
        if self.mode in ("closed", "open"):
            words |= {
                "topology": self.topology,
                "pubs": self.pubs,
                "subs": self.subs,
                "qos": self.qos,
                "payload": payload,
            }
        if self.mode == "closed":
            # A publisher writes again when a quarter of its window is free: what a client does that
            # is woken by its acknowledgements in batches. Measured with 1 instead: no difference
            # beyond the noise.
            words |= {"window": self.window, "refill": max(1, self.window // 4)}
        if self.mode == "open":
            words["rate"] = self.rate
        if self.mode == "idle":
            words["clients"] = self.clients
        return {key: str(value) for key, value in words.items()}


def _fanin(window: int, bar: float) -> Scenario:
    return Scenario(
        f"fanin-q0-w{window}",
        f"fan-in 50 to 1, QoS 0, W{window}",
        topology="all",
        subs=1,
        window=window,
        least_ratio=bar,
    )


def _fanout(window: int, bar: float) -> Scenario:
    return Scenario(
        f"fanout-q0-w{window}",
        f"fan-out 1 to 500, QoS 0, W{window}",
        topology="all",
        pubs=1,
        subs=500,
        window=window,
        least_ratio=bar,
    )


def _pairs(qos: int, window: int, bar: float | None) -> Scenario:
    return Scenario(
        f"pairs-q{qos}-w{window}",
        f"pairs 50 x 50, QoS {qos}, W{window}",
        qos=qos,
        window=window,
        least_ratio=bar,
    )


def _light(qos: int) -> Scenario:
    return Scenario(
        f"light-q{qos}",
        f"light load, 10 pairs, 10,000 msg/s, QoS {qos}",
        mode="open",
        pubs=10,
        subs=10,
        qos=qos,
        rate=10_000,
    )


SCENARIOS: tuple[Scenario, ...] = (
    _fanin(20, 8.0),
    _fanin(1, 1.0),
    _pairs(0, 20, 8.0),
    _pairs(0, 1, 1.0),
    _fanout(10, 6.0),
    _fanout(1, 1.0),
    _pairs(1, 20, 5.0),
    _pairs(1, 1, 0.9),
    _pairs(2, 20, None),
    _pairs(2, 1, None),
    Scenario("connect", "connect, CONNACK, close", mode="connect"),
    Scenario("idle", "5000 idle connections", mode="idle", clients=5000, most_kib=6.0),
    _light(0),
    _light(1),
)


def select(patterns: str) -> list[Scenario]:
    """The scenarios whose names match one of the comma-separated shell patterns, in table order.

    Raises ValueError when a pattern matches none.
    """
    chosen: set[str] = set()
    for pattern in patterns.split(","):
        names = fnmatch.filter([s.name for s in SCENARIOS], pattern.strip())
        if not names:
            known = ", ".join(s.name for s in SCENARIOS)
            raise ValueError(f"no scenario matches {pattern!r}; there are: {known}")
        chosen.update(names)
    return [s for s in SCENARIOS if s.name in chosen]
