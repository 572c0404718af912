"""What one run is made of: knobs, drawn once (swarm), and a script of steps. Both are plain data, so that a failure can
be shrunk by leaving out steps and putting knobs back, and kept as a regression test.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from random import Random
from typing import Any, Final, NamedTuple

from hookmq.settings import (
    AuthSettings,
    AuthzSettings,
    BrokerSettings,
    SessionSettings,
    Settings,
)


class Step(NamedTuple):
    """At `at` seconds, `who` (a client's number; -1: the world) does `what` with `args`."""

    at: float
    what: str
    who: int
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Knobs:
    """How the world is. The defaults are a calm one, which is where shrinking goes."""

    seed: int = 0
    versions: tuple[int, ...] = (5, 5, 5, 4)
    """One for each client. The first watches wills and is never absent for long."""
    tainted: int = -1
    """The client whose id others use: only what holds for everybody is checked of it."""
    rude: int = 0
    duration: float = 20.0
    volatile: bool = False
    """A store that forgets; then the broker never crashes."""
    disk_latency: float = 0.005
    read_delay: float = 0.0
    latency: float = 0.002
    jitter: float = 0.002
    split: float = 0.0
    lag: float = 0.0
    high_water: int = 65536
    plugins: tuple[str, ...] = ()
    plugin_delay: float = 0.0
    plugin_fault: float = 0.0
    ack_delay: float = 0.0
    window: int = 20
    """What a client offers as Receive Maximum, and how many it has unfinished itself."""
    aliases: int = 0
    max_inflight: int = 256
    receive_maximum: int = 1024
    queue_messages: int = 10000
    queue_bytes: int = 16777216
    queue_drop: str = "newest"
    queue_page: int = 256
    queue_qos0: bool = False
    max_queue_bytes: int = 1 << 30
    overflow: str = "pending"
    fan_out_slice: int = 1000
    async_fan_out: bool = False
    hold_bytes: int = 262144
    retry_interval: float = 0.0
    strategy: str = "round_robin"
    authz_cache: int = 1024
    outbound_alias: int = 16
    second_client: str = "takeover"
    flapping: int = 10
    denied: str = "acknowledge"
    server_expiry: float = 60.0
    max_write_buffer: int = 1 << 20

    @property
    def evicts(self) -> bool:
        """Whether clients whose queue is full are disconnected."""
        small = (
            self.queue_messages < 10000
            or self.queue_bytes < 1 << 24
            or self.max_queue_bytes < 1 << 30
        )
        return small and self.queue_drop == "disconnect"

    def settings(self) -> Settings:
        """The broker's settings."""
        chosen: Any = self
        return Settings(
            BrokerSettings(
                receive_maximum=self.receive_maximum,
                async_fan_out=self.async_fan_out,
                fan_out_slice=self.fan_out_slice,
                hold_bytes=self.hold_bytes,
                shared_strategy=chosen.strategy,
                authz_cache=self.authz_cache,
                outbound_topic_alias=self.outbound_alias,
                second_client=chosen.second_client,
                flapping_takeovers=self.flapping,
                mqtt3_denied_publish=chosen.denied,
                max_queue_bytes=self.max_queue_bytes,
                max_write_buffer=self.max_write_buffer,
                hold_timeout=20.0,
            ),
            SessionSettings(
                max_expiry=self.server_expiry,
                max_inflight=self.max_inflight,
                queue_messages=self.queue_messages,
                queue_bytes=self.queue_bytes,
                queue_drop=chosen.queue_drop,
                queue_page=self.queue_page,
                queue_qos0=self.queue_qos0,
                inflight_overflow=chosen.overflow,
                backpressure_timeout=2.0,
                retry_interval=self.retry_interval,
            ),
            AuthSettings("allow"),
            AuthzSettings("allow"),
        )

    def changed(self) -> dict[str, Any]:
        """What is not at its default."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }


class Plan(NamedTuple):
    """One run."""

    knobs: Knobs
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        knobs = ", ".join(f"{name}={value!r}" for name, value in self.knobs.changed().items())
        steps = "\n".join(
            f"        Step({s.at}, {s.what!r}, {s.who}, {s.args!r})," for s in self.steps
        )
        return f"Plan(\n    Knobs({knobs}),\n    (\n{steps}\n    ),\n)"


PLUGINS: Final = ("gate", "acl", "shaper", "courier", "filter", "mourner", "watch")
TOPICS: Final = ("t/0", "t/1", "t/2", "t/0/x", "t/1/x")
RETAINED: Final = ("r/0", "r/1", "r/2/x")
SHARED: Final = ("s/0", "s/1")
SPECIAL: Final = ("deny/0", "drop/0", "boom/0", "mv/t/0", "echo/0")
FILTERS: Final = ("t/#", "t/0", "t/+", "t/1/#", "t/+/x", "r/#", "r/+", "r/0", "e/#")
SHARES: Final = ("$share/g/s/0", "$share/h/s/1")
"""They overlap with nothing, so that a copy tells by its topic why it came."""


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)
    knobs = _knobs(seed, random)
    return Plan(knobs, _steps(knobs, random))


def _knobs(seed: int, random: Random) -> Knobs:
    def some(*values: Any) -> Any:
        return random.choice(values)

    volatile = random.random() < 0.12
    plugins: tuple[str, ...] = ()
    if random.random() < 0.55:
        plugins = tuple(name for name in PLUGINS if random.random() < 0.4)
    clients = random.randrange(4, 8)
    window = some(1, 2, 3, 5, 20)
    narrow = random.random() < 0.35
    return Knobs(
        seed=seed,
        versions=(5, *(some(3, 4, 4, 5, 5, 5) for _ in range(clients - 1))),
        tainted=clients - 1 if random.random() < 0.3 else -1,
        rude=some(0, 0, 1, 2),
        duration=some(8.0, 20.0, 40.0),
        volatile=volatile,
        disk_latency=some(0.0, 0.005, 0.05, 0.3),
        read_delay=some(0.0, 0.0, 0.01, 0.2),
        latency=some(0.0005, 0.002, 0.02),
        jitter=some(0.0, 0.005, 0.05),
        split=some(0.0, 0.1, 0.5),
        lag=some(0.0, 0.0, 0.001, 0.02),
        high_water=some(65536, 2000, 200),
        plugins=plugins,
        plugin_delay=some(0.0, 0.1, 0.3),
        plugin_fault=some(0.0, 0.0, 0.03),
        ack_delay=some(0.0, 0.0, 0.05, 0.5),
        window=window,
        aliases=some(0, 0, 3, 20),
        max_inflight=some(256, 256, 1, 3),
        receive_maximum=some(1024, 20, 3),
        queue_messages=some(10000, 8) if narrow else 10000,
        queue_bytes=some(16777216, 16777216, 2000) if narrow else 16777216,
        queue_drop=some("newest", "newest", "oldest", "oldest", "oldest", "disconnect"),
        queue_page=some(256, 1, 3),
        queue_qos0=some(False, False, True),
        max_queue_bytes=some(1 << 30, 1 << 30, 4000) if narrow else 1 << 30,
        overflow=some("pending", "pending", "backpressure"),
        fan_out_slice=some(1000, 1, 2),
        async_fan_out=some(False, True),
        hold_bytes=some(262144, 1024),
        retry_interval=some(0.0, 0.0, 0.0, 1.5),
        strategy=some(
            "round_robin", "random", "sticky", "hash_client", "hash_topic", "least_inflight"
        ),
        authz_cache=some(1024, 2, 0),
        outbound_alias=some(16, 1, 0),
        second_client=some("takeover", "takeover", "takeover", "takeover", "reject"),
        flapping=some(10, 1000, 2),
        denied=some("acknowledge", "acknowledge", "disconnect"),
        server_expiry=some(60.0, 60.0, 6.0),
        max_write_buffer=some(1 << 20, 1024),
    )


def _steps(knobs: Knobs, random: Random) -> tuple[Step, ...]:
    clients = len(knobs.versions)
    steps: list[Step] = []
    for who in range(clients):
        steps.append(Step(0.0, "connect", who, _connect(knobs, random, who, first=True)))
        if who == 0:
            steps.append(Step(0.0, "subscribe", 0, (("w/#", 2, False, False, 0),)))
        steps += [
            Step(0.1, "subscribe", who, _subscribe(random)) for _ in range(random.randrange(1, 4))
        ]
    weights = _weights(knobs, random)
    names, chances = list(weights), list(weights.values())
    for at in _times(random, random.randrange(110, 190), knobs.duration):
        what = random.choices(names, chances)[0]
        who, args = _DRAW[what](knobs, random)
        if what == "publish":
            for _ in range(random.choice((1, 1, 2, 5))):
                steps.append(Step(at, what, who, args))
                args = _publish(random)
        else:
            steps.append(Step(_aside(random, at), what, who, args))
            if what == "connect" and random.random() < 0.3:
                # Straight after one another, before the first is answered.
                steps.append(Step(_aside(random, at), what, who, _connect(knobs, random, who)))
                if not knobs.volatile and random.random() < 0.2:
                    steps.append(Step(_aside(random, at), "crash", -1, (0.1,)))
    return tuple(sorted(steps, key=lambda step: step.at))


def _aside(random: Random, at: float) -> float:
    """The same moment, or a little later: while what happens then is under way."""
    return at if random.random() < 0.4 else round(at + random.random() * 0.1, 4)


def _times(random: Random, count: int, duration: float) -> list[float]:
    """Moments, some of them in bursts."""
    times = []
    at = 0.5
    mean = duration / count
    for _ in range(count):
        if random.random() < 0.6:
            at += random.expovariate(1 / (mean * 2.5))
        times.append(round(min(at, duration), 4))
    return times


def _weights(knobs: Knobs, random: Random) -> dict[str, float]:
    weights = {"publish": 60.0}
    faults = {
        "subscribe": 5.0, "unsubscribe": 2.0, "connect": 5.0, "leave": 4.0, "cut": 4.0, "dark": 2.0, "stall": 3.0,
        "mute": 3.0, "crash": 2.5, "kick": 1.0, "disk": 0.4, "reload": 0.5, "invalidate": 1.0, "slow": 1.0,
        "storm": 0.7, "drain": 0.3, "reauth": 1.0, "right": 1.0,
        "wrap": 2.0,
    }  # fmt: skip
    for name, weight in faults.items():
        if random.random() < 0.65:
            weights[name] = weight * random.choice((0.5, 1.0, 2.0))
    if knobs.rude:
        weights["rude"] = random.choice((5.0, 15.0, 30.0))
    if knobs.volatile:
        for name in ("crash", "disk", "slow", "drain"):
            weights.pop(name, None)
    return weights


def _connect(knobs: Knobs, random: Random, who: int, first: bool = False) -> tuple[Any, ...]:
    """(clean, expiry, will or None, receive maximum, keep alive, authenticates)."""
    if who == 0:
        return (first, 3600, None, 20, 0, False)
    expiry = random.choice((0, 0, 2, 10, 3600, 3600))
    clean = random.random() < (0.8 if first else 0.2)
    will = None
    if random.random() < 0.6:
        will = (random.choice((0, 1, 1, 2)), random.choice((0, 0, 1, 3, 12)))
    authenticates = "gate" in knobs.plugins and random.random() < 0.4
    keep_alive = random.choice((0, 0, 2))
    return (clean, expiry, will, random.choice((knobs.window, 65535)), keep_alive, authenticates)


_SHARED_QOS: Final = (0, *(1,) * 12, *(2,) * 6)


def _subscribe(random: Random) -> tuple[Any, ...]:
    """(filter, QoS, no local, retain as published, retain handling) of each."""
    made = []
    for _ in range(random.choice((1, 1, 2))):
        if random.random() < 0.3:
            made.append((random.choice(SHARES), random.choice(_SHARED_QOS), False, False, 0))
        else:
            plain = random.random() < 0.8
            made.append(
                (
                    random.choice(FILTERS),
                    random.choice((0, 1, 2, 2)),
                    not plain and random.random() < 0.5,
                    not plain and random.random() < 0.5,
                    0 if plain else random.randrange(3),
                )
            )
    return tuple(made)


def _publish(random: Random) -> tuple[Any, ...]:
    """(topic, QoS, retain, size, expiry); size 0 clears a retained message."""
    kind = random.random()
    qos = random.choice((0, 1, 1, 2, 2))
    size = random.choice((10, 10, 10, 40, 300))
    expiry = random.choice((1, 4)) if random.random() < 0.08 else 0
    if kind < 0.55:
        return (random.choice(TOPICS), qos, False, size, expiry)
    if kind < 0.72:
        return (random.choice(RETAINED), qos, True, random.choice((0, size, size)), expiry)
    if kind < 0.92:
        return (random.choice(SHARED), qos, False, size, expiry)
    return (random.choice(SPECIAL), qos, False, size, 0)


CELLS: Final = 75
RUDE: Final = (
    "cell", "cell", "cell", "cell", "garbage", "acks", "ids", "steal", "flood", "vanish", "slow", "huge", "mutate",
)  # fmt: skip


def _other(knobs: Knobs, random: Random) -> int:
    """A client that may be absent."""
    return random.randrange(1, len(knobs.versions))


Draw = Callable[[Knobs, Random], tuple[int, tuple[Any, ...]]]


def _any(knobs: Knobs, random: Random) -> int:
    return random.randrange(len(knobs.versions))


def _rude(knobs: Knobs, random: Random) -> tuple[int, tuple[Any, ...]]:
    kind = random.choice(RUDE)
    number = random.randrange(CELLS) if kind == "cell" else random.randrange(1 << 30)
    if kind == "cell" and "gate" in knobs.plugins and random.random() < 0.4:
        number = 30 + random.randrange(15)  # no other run gets as far as a challenge
    return random.randrange(knobs.rude), (kind, number, random.choice((3, 4, 5, 5)))


_DRAW: Final[dict[str, Draw]] = {
    "publish": lambda k, r: (_any(k, r), _publish(r)),
    "subscribe": lambda k, r: (_other(k, r), _subscribe(r)),
    "unsubscribe": lambda k, r: (_other(k, r), (r.choice((*FILTERS, *SHARES)),)),
    "connect": lambda k, r: (lambda who: (who, _connect(k, r, who)))(_other(k, r)),
    "leave": lambda k, r: (_other(k, r), (r.choice(("normal", "normal", "will", "expiry")),)),
    "cut": lambda k, r: (_any(k, r), (r.random() < 0.7,)),
    "dark": lambda k, r: (_any(k, r), (round(r.uniform(0.1, 6.0), 2),)),
    "stall": lambda k, r: (_any(k, r), (round(r.uniform(0.1, 4.0), 2),)),
    "mute": lambda k, r: (_any(k, r), (round(r.uniform(0.1, 4.0), 2),)),
    "crash": lambda k, r: (-1, (round(r.uniform(0.01, 1.5), 2),)),
    "kick": lambda k, r: (_other(k, r), ()),
    "disk": lambda k, r: (-1, (r.choice(("error", "unknown", "raise")),)),
    "wrap": lambda k, r: (_any(k, r), ()),
    "reload": lambda k, r: (-1, ()),
    "invalidate": lambda k, r: (_any(k, r), (r.random() < 0.5,)),
    "slow": lambda k, r: (-1, (round(r.uniform(0.5, 3.0), 2), r.choice((0.5, 1.0)))),
    "storm": lambda k, r: (-1, ()),
    "drain": lambda k, r: (-1, (round(r.uniform(0.01, 1.0), 2),)),
    "reauth": lambda k, r: (_other(k, r), ()),
    "right": lambda k, r: (_other(k, r), (r.choice(("t/#", "r/#", "s/#")), r.random() < 0.5)),
    "rude": _rude,
}
