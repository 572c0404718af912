"""Generate the plan of a seed.

The features of each world are drawn once (swarm testing). Most worlds contain a little of everything. Focused worlds
have few clients, one topic, tight limits and only a few kinds of faults, which occur often.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final, NamedTuple

from simulator.journal import JOURNALS
from simulator.plan import Knobs, Plan, Step
from simulator.queues import SEED as QUEUES_SEED
from simulator.queues import TOPICS as QUEUE_TOPICS
from simulator.queues import WORKERS

PLUGINS: Final = ("gate", "acl", "shaper", "courier", "filter", "mourner", "watch")
TOPICS: Final = ("t/0", "t/1", "t/2", "t/0/x", "t/1/x")
RETAINED: Final = ("r/0", "r/1", "r/2/x")
SHARED: Final = ("s/0", "s/1")
SPECIAL: Final = ("deny/0", "drop/0", "boom/0", "mv/t/0", "echo/0")
FILTERS: Final = ("t/#", "t/0", "t/+", "t/1/#", "t/+/x", "r/#", "r/+", "r/0", "e/#")
SHARES: Final = ("$share/g/s/0", "$share/h/s/1")
"""Shared filters that overlap no other filter, so that a copy's topic shows which subscription it came from."""
CELLS: Final = 75
RUDE: Final = (
    "cell", "cell", "cell", "cell", "garbage", "acks", "ids", "steal", "flood", "vanish", "slow", "huge", "mutate",
)  # fmt: skip
FOCUSED: Final = 0.4
"""Fraction of worlds that are focused. Half of those are tight: one message in flight, short queues and slow clients."""

_FAULTS: Final = {
    "subscribe": 5.0, "unsubscribe": 2.0, "connect": 5.0, "leave": 4.0, "cut": 4.0, "dark": 2.0, "stall": 3.0,
    "mute": 3.0, "crash": 2.5, "kick": 1.0, "disk": 0.4, "reload": 0.5, "invalidate": 1.0, "slow": 1.0,
    "storm": 0.7, "drain": 0.3, "reauth": 1.0, "right": 1.0, "wrap": 2.0, "journal": 0.4, "want": 1.0,
}  # fmt: skip
"""The kinds of faults, each with its frequency per 60 messages."""
_KEEPER_SEED: Final = 0x6B656570
"""A seed offset that separates the random numbers of the keeper from all others."""
_DURABLE_ONLY: Final = ("crash", "disk", "slow", "drain", "journal")
_SHARED_QOS: Final = (0, *(1,) * 12, *(2,) * 6)


def make_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(seed)
    focused = random.random() < FOCUSED
    tight = focused and random.random() < 0.5
    knobs = _knobs(seed, random, focused, tight)
    return Plan(knobs, _Script(knobs, random, _taste(random, focused, tight)).steps())


def make_queue_plan(seed: int) -> Plan:
    """Return the plan of a seed, with queues and fewer other steps. The store is durable, and no other plugin has a
    journal.
    """
    plan = make_plan(seed)
    random = Random(seed ^ QUEUES_SEED)
    knobs = replace(plan.knobs, queues=True, volatile=False, journals=(), keeper=0.0)
    kept = {what: random.random() for what in sorted({step.what for step in plan.steps})}
    steps = [
        step
        for step in plan.steps
        if step.at < 0.3 or (step.what not in ("journal", "want") and random.random() < 0.3 * kept[step.what])
    ]  # fmt: skip
    clients = 1 + WORKERS + 1
    for _ in range(random.randrange(40, 120)):
        at = round(random.uniform(0.5, knobs.duration), 4)
        what = random.choices(("publish", "leave", "come", "crash", "disk"), (60, 12, 20, 6, 2))[0]
        who = random.randrange(clients)
        if what == "publish":
            topic, count = random.choice(QUEUE_TOPICS), random.choice((1, 1, 2, 8))
            steps.append(Step(at, "queue_publish", -1, (topic, count)))
            if random.random() < 0.1:  # while this is being written to disk
                steps.append(Step(round(at + random.random() * 0.2, 4), "crash", -1, (0.1,)))
        elif what == "leave":
            steps.append(Step(at, "queue_leave", who, (random.random() < 0.5,)))
        elif what == "come":
            steps.append(Step(at, "queue_come", who))
        elif what == "disk":
            steps.append(Step(at, "queue_disk", -1, (random.choice(("error", "unknown")),)))
        else:
            steps.append(Step(at, "crash", -1, (random.choice((0.1, 1.0)),)))
    return Plan(knobs, tuple(sorted(steps, key=lambda step: step.at)))


def _knobs(seed: int, random: Random, focused: bool, tight: bool) -> Knobs:
    def some(*values: Any) -> Any:
        return random.choice(values)

    volatile = random.random() < (0.04 if focused else 0.12)
    plugins: tuple[str, ...] = ()
    if random.random() < (0.25 if focused else 0.55):
        plugins = tuple(name for name in PLUGINS if random.random() < 0.4)
    journals: tuple[str, ...] = ()
    if random.random() < (0.2 if focused else 0.4):
        journals = tuple(random.sample(list(JOURNALS), some(1, 1, 2)))
    clients = 4 if focused else random.randrange(4, 8)
    window = some(1, 2, 3, 5, 20)
    narrow = random.random() < (0.6 if focused else 0.35)
    apart = Random(seed ^ _KEEPER_SEED)
    keeper = apart.choice((0.02, 0.1, 0.5)) if apart.random() < 0.2 else 0.0
    return Knobs(
        seed=seed,
        versions=(5, *(some(3, 4, 4, 5, 5, 5) for _ in range(clients - 1))),
        tainted=clients - 1 if random.random() < 0.3 and not focused else -1,
        rude=0 if focused else some(0, 1, 1, 2),
        duration=some(20.0, 40.0) if focused else some(8.0, 20.0, 40.0),
        volatile=volatile,
        disk_latency=some(0.005, 0.05, 0.3) if focused else some(0.0, 0.005, 0.05, 0.3),
        read_delay=some(0.0, 0.0, 0.01, 0.2),
        max_records=some(20000, 20000, 20000, 1, 5),
        journals=journals,
        keeper=keeper,
        journal_latency=some(0.0, 0.005, 0.05, 0.3),
        latency=some(0.0005, 0.002, 0.02),
        jitter=some(0.0, 0.005, 0.05),
        split=some(0.0, 0.1, 0.5),
        lag=some(0.0, 0.0, 0.001, 0.02),
        high_water=200 if tight else some(65536, 2000, 200),
        plugins=plugins,
        plugin_delay=some(0.0, 0.1, 0.3),
        plugin_fault=some(0.0, 0.0, 0.03),
        ack_delay=some(0.0, 0.0, 0.05, 0.5),
        window=window,
        aliases=some(0, 0, 3, 20),
        max_inflight=1 if tight else some(256, 256, 1, 3),
        receive_maximum=some(1024, 20, 3),
        queue_messages=8 if tight else some(10000, 8) if narrow else 10000,
        queue_bytes=some(16777216, 16777216, 2000) if narrow else 16777216,
        queue_drop=some("newest", "newest", "oldest", "oldest", "oldest", "disconnect"),
        queue_page=some(256, 1, 3),
        queue_qos0=some(False, False, True),
        max_queue_bytes=some(1 << 30, 1 << 30, 4000) if narrow else 1 << 30,
        overflow=some("pending", "pending", "backpressure"),
        fan_out_batch=some(1000, 1, 2),
        async_fan_out=some(False, True),
        max_held_inbound_bytes=some(262144, 1024),
        retry_interval=some(0.0, 0.0, 0.0, 1.5),
        strategy=some(
            "round_robin", "random", "sticky", "hash_client", "hash_topic", "least_inflight"
        ),
        authz_cache=some(1024, 2, 0),
        outbound_alias=some(16, 1, 0),
        duplicate_client_id=some("takeover", "takeover", "takeover", "takeover", "reject"),
        flapping=some(10, 1000, 2),
        denied=some("acknowledge", "acknowledge", "disconnect"),
        server_expiry=some(60.0, 60.0, 6.0),
        max_write_buffer=some(1 << 20, 1024),
        crash_at_turns=some(0.0, 0.3, 0.3) if focused and not volatile else 0.0,
    )


class _Taste(NamedTuple):
    """The preferences of the clients in one world.

    `kinds` sets how often they publish on each group of topics: `topics`, `retained`, `shared` and the special ones.
    `share` is the fraction of shared subscriptions. The other fields say how often clients ask for a clean start or
    reconnect at once, how often the broker then crashes, how long sessions last, and how long clients may be slow.
    """

    faults: dict[str, float]
    moments: int
    topics: tuple[str, ...] = TOPICS
    retained: tuple[str, ...] = RETAINED
    shared: tuple[str, ...] = SHARED
    kinds: tuple[float, ...] = (0.55, 0.17, 0.2, 0.08)
    filters: tuple[str, ...] = FILTERS
    shares: tuple[str, ...] = SHARES
    share: float = 0.3
    clean: float = 0.2
    again: float = 0.3
    crash: float = 0.2
    expiries: tuple[int, ...] = (0, 0, 2, 10, 3600, 3600)
    slow: float = 4.0
    sleepy: bool = False
    """Whether many clients start without acknowledging messages."""
    apart: bool = False
    """Whether the first client, whose session never ends, avoids the other clients' topics."""


def _taste(random: Random, focused: bool, tight: bool) -> _Taste:
    faults = {
        name: weight * random.choice((0.5, 1.0, 2.0))
        for name, weight in _FAULTS.items()
        if random.random() < 0.65
    }
    if not focused:
        return _Taste(faults, random.randrange(110, 190))
    favoured = random.sample(
        ("connect", "leave", "unsubscribe", "cut", "stall", "mute", "crash"), 3
    )
    # A client with a new session has no subscriptions.
    favoured += ("subscribe", "mute", "stall") if tight else ("subscribe",)
    for name in favoured:
        faults[name] = _FAULTS[name] * random.choice((2.0, 4.0))
    common = _Taste(
        faults,
        random.randrange(190, 250),
        clean=random.choice((0.1, 0.6)),
        again=random.choice((0.1, 0.3, 0.7)),
        crash=random.choice((0.1, 0.4)),
        expiries=random.choice(((0, 0, 2, 10, 3600, 3600), (0, 0, 2), (0, 0, 3600))),
        slow=20.0 if tight else 4.0,
        sleepy=tight,
        apart=random.random() < 0.8,
    )
    kind = random.choice((0, 1, 2, 2, 3, 3, 4))
    if kind == 0:
        filters = random.choice((("t/0",), ("t/#",), ("t/0", "t/+", "t/#")))
        return common._replace(
            topics=TOPICS[:1], kinds=(0.96, 0.0, 0.0, 0.04), filters=filters, share=0.0
        )
    if kind == 1:
        filters = random.choice((("r/0",), ("r/#",)))
        return common._replace(
            retained=RETAINED[:1], kinds=(0.0, 0.96, 0.0, 0.04), filters=filters, share=0.0
        )
    if kind == 2:
        return common._replace(
            shared=SHARED[:1],
            kinds=(0.0, 0.0, 0.96, 0.04),
            filters=FILTERS[:1],
            shares=SHARES[:1],
            share=0.9,
        )
    if kind == 3:
        faults["connect"] = 30.0
        return common._replace(again=0.7, crash=0.6, clean=0.6, expiries=(0, 0, 3600))
    return common


class _Script:
    """The steps of one plan, drawn one after another."""

    def __init__(self, knobs: Knobs, random: Random, taste: _Taste) -> None:
        self.knobs = knobs
        self.random = random
        self.taste = taste

    def steps(self) -> tuple[Step, ...]:
        """Return all steps in order."""
        knobs, random, taste = self.knobs, self.random, self.taste
        steps: list[Step] = []
        for who in range(len(knobs.versions)):
            steps.append(Step(0.0, "connect", who, self._connect(who, first=True)))
            if who == 0:
                steps.append(Step(0.0, "subscribe", 0, (("w/#", 2, False, False, 0),)))
                if taste.apart:
                    continue
            if taste.sleepy and random.random() < 0.5:
                steps.append(Step(0.2, "mute", who, (self._seconds(0.1, taste.slow),)))
            steps += [
                Step(0.1, "subscribe", who, self._subscribe())
                for _ in range(random.randrange(1, 4))
            ]
        weights = self._weights()
        names, chances = list(weights), list(weights.values())
        for at in self._times(taste.moments):
            what = random.choices(names, chances)[0]
            who, args = _DRAW[what](self)
            if what == "publish":
                for _ in range(random.choice((1, 1, 2, 5))):
                    steps.append(Step(at, what, who, args))
                    args = self._publish()
                continue
            at = self._aside(at)
            steps.append(Step(at, what, who, args))
            if what == "connect" and random.random() < taste.again:
                # Connect again immediately, before CONNACK.
                at = self._aside(at)
                steps.append(Step(at, what, who, self._connect(who)))
                if not knobs.volatile and random.random() < taste.crash:
                    steps.append(Step(self._aside(at), "crash", -1, (0.1,)))
        return tuple(sorted(steps, key=lambda step: step.at))

    def _aside(self, at: float) -> float:
        """Return `at`, or a time up to 0.1 s later, while the effects of the step at `at` may still be in progress."""
        return at if self.random.random() < 0.3 else round(at + self.random.random() * 0.1, 4)

    def _times(self, count: int) -> list[float]:
        """Return random moments, some of them in bursts."""
        random, duration = self.random, self.knobs.duration
        times = []
        at = 0.5
        mean = duration / count
        for _ in range(count):
            if random.random() < 0.6:
                at += random.expovariate(1 / (mean * 2.5))
            times.append(round(min(at, duration), 4))
        return times

    def _weights(self) -> dict[str, float]:
        knobs = self.knobs
        weights = {"publish": 60.0, **self.taste.faults}
        if knobs.rude:
            weights["rude"] = self.random.choice((5.0, 15.0, 30.0))
        if knobs.volatile:
            for name in _DURABLE_ONLY:
                weights.pop(name, None)
        if not knobs.journals:
            for name in ("journal", "want"):
                weights.pop(name, None)
        return weights

    def _any(self) -> int:
        return self.random.randrange(len(self.knobs.versions))

    def _other(self) -> int:
        """Return a random client, which may be offline."""
        return self.random.randrange(1, len(self.knobs.versions))

    def _connect(self, who: int, first: bool = False) -> tuple[Any, ...]:
        """Return (clean, expiry, will or None, receive maximum, keep alive, authenticates)."""
        if who == 0:
            return (first, 3600, None, 20, 0, False)
        knobs, random = self.knobs, self.random
        expiry = random.choice(self.taste.expiries)
        clean = random.random() < (0.8 if first else self.taste.clean)
        will = None
        if random.random() < 0.6:
            will = (random.choice((0, 1, 1, 2)), random.choice((0, 0, 1, 3, 12)))
        authenticates = "gate" in knobs.plugins and random.random() < 0.4
        keep_alive = random.choice((0, 0, 2))
        return (
            clean, expiry, will, random.choice((knobs.window, 65535)), keep_alive, authenticates
        )  # fmt: skip

    def _subscribe(self) -> tuple[Any, ...]:
        """Return (filter, QoS, no local, retain as published, retain handling) for each filter."""
        random, taste = self.random, self.taste
        made = []
        for _ in range(random.choice((1, 1, 2))):
            if random.random() < taste.share:
                made.append(
                    (random.choice(taste.shares), random.choice(_SHARED_QOS), False, False, 0)
                )
                continue
            plain = random.random() < 0.8
            made.append(
                (
                    random.choice(taste.filters),
                    random.choice((0, 1, 2, 2)),
                    not plain and random.random() < 0.5,
                    not plain and random.random() < 0.5,
                    0 if plain else random.randrange(3),
                )
            )
        return tuple(made)

    def _publish(self) -> tuple[Any, ...]:
        """Return (topic, QoS, retain, size, expiry). A size of 0 clears a retained message."""
        random, taste = self.random, self.taste
        kind = random.choices((0, 1, 2, 3), taste.kinds)[0]
        qos = random.choice((0, 1, 1, 2, 2))
        size = random.choice((10, 10, 10, 40, 300))
        expiry = random.choice((1, 4)) if random.random() < 0.08 else 0
        if kind == 0:
            return (random.choice(taste.topics), qos, False, size, expiry)
        if kind == 1:
            size = random.choice((0, size, size))
            return (random.choice(taste.retained), qos, True, size, expiry)
        if kind == 2:
            return (random.choice(taste.shared), qos, False, size, expiry)
        return (random.choice(SPECIAL), qos, False, size, 0)

    def _unsubscribe(self) -> tuple[Any, ...]:
        return (self.random.choice((*self.taste.filters, *self.taste.shares)),)

    def _reconnect(self) -> tuple[int, tuple[Any, ...]]:
        who = self._other()
        return who, self._connect(who)

    def _rude(self) -> tuple[int, tuple[Any, ...]]:
        knobs, random = self.knobs, self.random
        kind = random.choice(RUDE)
        number = random.randrange(CELLS) if kind == "cell" else random.randrange(1 << 30)
        if kind == "cell" and "gate" in knobs.plugins and random.random() < 0.4:
            number = 30 + random.randrange(15)  # otherwise, no run would reach a challenge
        return random.randrange(knobs.rude), (kind, number, random.choice((3, 4, 5, 5)))

    def _seconds(self, least: float, most: float) -> float:
        return round(self.random.uniform(least, most), 2)


_WAYS: Final = ("normal", "normal", "will", "expiry")
_TROUBLES: Final = ("error", "unknown", "raise")
_WANTS: Final = (("#",), ("t/#",), ("s/#", "w/#"), ())

_DRAW: Final[dict[str, Callable[[_Script], tuple[int, tuple[Any, ...]]]]] = {
    "publish": lambda s: (s._any(), s._publish()),
    "subscribe": lambda s: (s._other(), s._subscribe()),
    "unsubscribe": lambda s: (s._other(), s._unsubscribe()),
    "connect": _Script._reconnect,
    "leave": lambda s: (s._other(), (s.random.choice(_WAYS),)),
    "cut": lambda s: (s._any(), (s.random.random() < 0.7,)),
    "dark": lambda s: (s._any(), (s._seconds(0.1, 6.0),)),
    "stall": lambda s: (s._any(), (s._seconds(0.1, s.taste.slow),)),
    "mute": lambda s: (s._any(), (s._seconds(0.1, s.taste.slow),)),
    "crash": lambda s: (-1, (s._seconds(0.01, 1.5),)),
    "kick": lambda s: (s._other(), ()),
    "disk": lambda s: (-1, (s.random.choice(_TROUBLES),)),
    "journal": lambda s: (-1, (s.random.randrange(2), s.random.choice((*_TROUBLES, "append")))),
    "want": lambda s: (-1, (s.random.randrange(2), s.random.choice(_WANTS))),
    "wrap": lambda s: (s._any(), ()),
    "reload": lambda s: (-1, ()),
    "invalidate": lambda s: (s._any(), (s.random.random() < 0.5,)),
    "slow": lambda s: (-1, (s._seconds(0.5, 3.0), s.random.choice((0.5, 1.0)))),
    "storm": lambda s: (-1, ()),
    "drain": lambda s: (-1, (s._seconds(0.01, 1.0),)),
    "reauth": lambda s: (s._other(), ()),
    "right": lambda s: (s._other(), (s.random.choice(("t/#", "r/#", "s/#")), s.random.random() < 0.5)),
    "rude": _Script._rude,
}  # fmt: skip
"""How to choose the client and the arguments for each kind of step."""
