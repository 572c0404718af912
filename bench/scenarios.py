"""The scenarios, each with its load and HookMQ's goal."""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import Literal

Mode = Literal["closed", "open", "connect", "idle", "retained", "offline"]
Topology = Literal["all", "pairs", "wildcard", "shared"]


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """HookMQ's goal in a scenario, for each build.

    `compiled` and `pure` are the lowest acceptable ratio of mosquitto's cost to HookMQ's. With `kib`, they are the
    highest acceptable cost in KiB. With `relative_to`, they limit HookMQ's cost relative to its cost in the named
    scenario.
    """

    compiled: float
    pure: float
    kib: bool = False
    relative_to: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A load. The fields up to `transport` are arguments of the native generator (load/arguments.c).

    `window` is how many messages each publisher may have outstanding, end to end. `rate` is messages a second, for all
    publishers together. `payload` and `level` (4 or 5) default to the command-line options. `variant` selects the
    broker's configuration (bench.peers).
    """

    name: str
    title: str
    group: str
    mode: Mode = "closed"
    topology: Topology = "pairs"
    pubs: int = 50
    subs: int = 50
    qos: int = 0
    window: int = 1
    rate: int = 0
    clients: int = 0
    topics: int = 0
    filters: int = 0
    idle: int = 0
    clean: int = 1
    properties: int = 0
    payload: int | None = None
    level: int | None = None
    transport: Literal["tcp", "tls", "ws"] = "tcp"
    variant: str = "plain"
    goal: Goal | None = None

    @property
    def unit(self) -> str:
        """The unit of the cost: one delivered message or one connection."""
        return {"connect": "connect", "idle": "connection"}.get(self.mode, "message")

    def arguments(
        self, *, payload: int, level: int, seconds: float, warmup: float
    ) -> dict[str, str]:
        """Return the generator's arguments, except for the port and the broker's process ids."""
        words: dict[str, object] = {
            "mode": self.mode,
            "level": self.level or level,
            "seconds": seconds,
            "warmup": warmup,
            "transport": self.transport,
            "payload": self.payload or payload,
            "properties": self.properties,
        }
        if self.mode in ("closed", "open"):
            words |= {
                "topology": self.topology,
                "pubs": self.pubs,
                "subs": self.subs,
                "qos": self.qos,
                "topics": self.topics,
                "filters": self.filters,
                "idle": self.idle,
                "clean": self.clean,
            }
        if self.mode == "closed":
            # A publisher resumes writing when a quarter of its window is free, like a client that gets its
            # acknowledgements in batches. With 1 message instead of a quarter, the figures differ only by noise.
            words |= {"window": self.window, "refill": max(1, self.window // 4)}
        if self.mode == "open":
            words["rate"] = self.rate
        if self.mode == "idle":
            words["clients"] = self.clients
        if self.mode in ("retained", "offline"):
            words["drain"] = 15
        if self.mode == "retained":
            words |= {"topics": self.topics, "qos": self.qos}
        if self.mode == "offline":
            words |= {"clients": self.clients, "topics": self.topics, "window": self.window}
        return {key: str(value) for key, value in words.items()}


def _fanin(window: int, goal: Goal | None = None) -> Scenario:
    return Scenario(
        f"fanin-q0-w{window}",
        f"fan-in 50 to 1, QoS 0, W{window}",
        "throughput",
        topology="all",
        subs=1,
        window=window,
        goal=goal,
    )


def _fanout(window: int, goal: Goal | None = None) -> Scenario:
    return Scenario(
        f"fanout-q0-w{window}",
        f"fan-out 1 to 500, QoS 0, W{window}",
        "throughput",
        topology="all",
        pubs=1,
        subs=500,
        window=window,
        goal=goal,
    )


def _pairs(qos: int, window: int, goal: Goal | None = None) -> Scenario:
    return Scenario(
        f"pairs-q{qos}-w{window}",
        f"pairs 50 x 50, QoS {qos}, W{window}",
        "throughput",
        qos=qos,
        window=window,
        goal=goal,
    )


def _light(qos: int, rate: int, goal: Goal | None = None) -> Scenario:
    return Scenario(
        f"light-q{qos}-{rate // 1000}k",
        f"light load, 10 pairs, {rate:,} msg/s, QoS {qos}",
        "latency",
        mode="open",
        pubs=10,
        subs=10,
        qos=qos,
        rate=rate,
        goal=goal,
    )


def sized(payload: int) -> Scenario:
    """Return a scenario with 10 pairs and `payload` bytes per message. At most 16 MiB are outstanding."""
    name = f"{payload >> 20}m" if payload >> 20 else f"{payload >> 10}k" if payload >> 10 else ""
    window = max(1, min(20, (16 << 20) // (10 * payload)))
    return Scenario(
        f"payload-{name or payload}",
        f"10 pairs, {name.replace('k', ' Ki').replace('m', ' Mi') or f'{payload} '}B, QoS 0, W{window}",
        "payload",
        pubs=10,
        subs=10,
        window=window,
        payload=payload,
    )


_PLAIN, _SURE = _pairs(0, 20, Goal(20, 10)), _pairs(1, 20, Goal(14, 7))


def _like(base: Scenario, name: str, title: str, group: str, **changes: object) -> Scenario:
    changed: dict[str, object] = {"goal": None, **changes}
    return dataclasses.replace(
        base,
        name=name,
        title=f"{title}, pairs QoS {base.qos} W{base.window}",
        group=group,
        **changed,  # type: ignore[arg-type]
    )


def plugged(count: int) -> Scenario:
    """Return a scenario with pairs of clients, with `count` plugins that are called for each message."""
    title = f"{count} plugin{'s' if count > 1 else ''} in on_publish"
    return _like(_PLAIN, f"plugins-{count}", title, "plugins", variant=f"plugins-{count}")


SCENARIOS: tuple[Scenario, ...] = (
    _fanin(200),
    _fanin(20, Goal(20, 13)),
    _fanin(1, Goal(2.3, 2)),
    _pairs(0, 200),
    _PLAIN,
    _pairs(0, 1, Goal(1.4, 1.1)),
    _fanout(10, Goal(9, 7)),
    _fanout(1, Goal(1.4, 1.3)),
    _pairs(1, 200),
    _SURE,
    _pairs(1, 1, Goal(1.4, 1.1)),
    _pairs(2, 200),
    _pairs(2, 20, Goal(15, 8)),
    _pairs(2, 1),
    Scenario("connect", "connect, CONNACK, close", "connections", mode="connect"),
    Scenario(
        "connect-auth",
        "connect, with a cheap on_connect",
        "connections",
        mode="connect",
        variant="auth",
        goal=Goal(0.8, 0.7),
    ),
    Scenario(
        "idle",
        "5000 idle connections",
        "connections",
        mode="idle",
        clients=5000,
        goal=Goal(3, 4, kib=True),
    ),
    _light(0, 1000),
    _light(1, 1000),
    _light(0, 10_000),
    _light(1, 10_000, Goal(round(1 / 1.4, 3), round(1 / 1.6, 3))),
    Scenario(
        "wildcard",
        "5000 wildcard filters, fan-out 2, QoS 0, W20",
        "routing",
        topology="wildcard",
        pubs=10,
        subs=51,
        topics=5000,
        window=20,
    ),
    Scenario(
        "shared",
        "shared subscription 10 x 10, QoS 0, W20",
        "routing",
        topology="shared",
        pubs=10,
        subs=10,
        window=20,
    ),
    Scenario("retained", "50,000 retained, fetched", "stored", mode="retained", topics=50_000),
    Scenario(
        "offline",
        "100 x 1000 queued, QoS 1, drained",
        "stored",
        mode="offline",
        clients=100,
        topics=1000,
        window=20,
    ),
    _like(
        _SURE,
        "durable-q1-w20",
        "durable sessions",
        "stored",
        clean=0,
        variant="durable",
        goal=Goal(5, 4),
    ),
    sized(16),
    sized(1 << 10),
    sized(16 << 10),
    sized(1 << 20),
    _like(
        _PLAIN,
        "v5-q0",
        "MQTT 5, 4 properties",
        "mqtt5",
        level=5,
        properties=1,
        goal=Goal(1.3, 1.3, relative_to=_PLAIN.name),
    ),
    _like(
        _SURE,
        "v5-q1",
        "MQTT 5, 4 properties",
        "mqtt5",
        level=5,
        properties=1,
        goal=Goal(1.3, 1.3, relative_to=_SURE.name),
    ),
    _like(
        _PLAIN,
        "tls-q0",
        "TLS 1.3",
        "transport",
        transport="tls",
        variant="tls",
        goal=Goal(2, 2, relative_to=_PLAIN.name),
    ),
    _like(_PLAIN, "ws-q0", "WebSocket", "transport", transport="ws", variant="ws"),
    _like(
        _PLAIN,
        "authorize",
        "a cheap authorize",
        "plugins",
        variant="authorize",
        goal=Goal(1.2, 1.2, relative_to=_PLAIN.name),
    ),
    plugged(1),
    plugged(5),
    _like(
        _PLAIN,
        "plugins-filtered",
        "a plugin in on_publish for other topics",
        "plugins",
        variant="plugins-filtered",
        goal=Goal(1.1, 1.1, relative_to=_PLAIN.name),
    ),
    _like(
        _PLAIN,
        "plugins-published",
        "1 plugin in on_published",
        "plugins",
        variant="plugins-published",
    ),
    _like(
        _PLAIN, "plugins-deliver", "1 plugin in on_deliver", "plugins", variant="plugins-deliver"
    ),
    _like(
        _PLAIN,
        "guards-q0",
        "passwords, access file, rate limit, storage",
        "plugins",
        variant="guards",
        goal=Goal(7, 7),
    ),
    _like(
        _SURE,
        "guards-q1",
        "passwords, access file, rate limit, storage",
        "plugins",
        variant="guards",
        goal=Goal(7, 7),
    ),
)
GROUPS = tuple(dict.fromkeys(scenario.group for scenario in SCENARIOS))


def select(patterns: str) -> list[Scenario]:
    """Return the scenarios whose name or group matches any of the comma-separated shell patterns, in table order.

    Raises ValueError if a pattern matches nothing.
    """
    chosen: set[str] = set()
    for pattern in map(str.strip, patterns.split(",")):
        names = [
            s.name
            for s in SCENARIOS
            if fnmatch.fnmatch(s.name, pattern) or fnmatch.fnmatch(s.group, pattern)
        ]
        if not names:
            known = ", ".join((*GROUPS, *(s.name for s in SCENARIOS)))
            raise ValueError(f"no scenario matches {pattern!r}; there are: {known}")
        chosen.update(names)
    return [s for s in SCENARIOS if s.name in chosen]
