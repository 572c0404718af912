"""Clients that connect and disconnect in many ways for a long time. No round of them may leave anything behind.

A round consists of several hundred clients with their sessions, subscriptions, wills and retained messages. After the
last client has gone, the gauges and the number of open descriptors must have their initial values. The first rounds
fill memory pools. After these, the number of objects and the memory must stay constant.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median_low

from hookmq_testing import AsyncioClient
from hookmq_testing import will as make_will

from pressure.client import connect, subscribe
from pressure.overload import MEGABYTE, STORAGE
from pressure.target import Target, target

CONFIG = """\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:0"}}
  - {{name: http, type: http, bind: "127.0.0.1:0"}}
auth: {{default: allow}}
authz: {{default: allow}}
session: {{max_expiry: 1h}}
plugins: [{plugins}]
"""
CLIENTS = 300
"""Number of clients per round."""
WARM = 3
"""Number of rounds before the first measurement."""
OBJECTS = 0.1
MEMORY = 300
"""Bytes of growth per client above which a leak is reported."""


@dataclass(frozen=True)
class Round:
    """The objects and memory that remained after a round, once all clients were gone."""

    resident: int
    objects: int
    state: dict[str, float]


@dataclass
class Soak:
    """A run, with its rounds and findings."""

    rounds: list[Round] = field(default_factory=list)
    clients: int = 0
    broken: list[str] = field(default_factory=list)


async def clean(port: int, name: str) -> None:
    """Connect a client that subscribes, publishes to itself and disconnects."""
    client = await connect(port, name)
    await subscribe(client, f"soak/{name}", f"soak/{name}/+", f"$share/g/soak/{name}")
    for qos in (0, 1):
        client.send_publish(f"soak/{name}", b"x" * 100, qos)
    assert await client.until(lambda: client.received >= 4 and client.acknowledged >= 1)
    client.disconnect()
    await client.wait_closed()


async def durable(port: int, name: str) -> None:
    """Create a session, publish to it while its client is offline, resume the session and end it."""
    client = await connect(port, name, clean=False)
    await subscribe(client, f"soak/{name}")
    client.drop()
    sender = await connect(port, f"{name}-s")
    for _ in range(10):
        sender.send_publish(f"soak/{name}", b"x" * 200, 1)
    assert await sender.until(lambda: sender.acknowledged >= 10)
    sender.disconnect()
    client = await connect(port, name, clean=False)
    assert client.session_present
    assert await client.until(lambda: client.received >= 10)
    client.disconnect()
    await client.wait_closed()
    client = await connect(port, name)
    client.disconnect()
    await client.wait_closed()


async def will(port: int, name: str) -> None:
    """Publish a retained will and clear it."""
    got: list[bytes] = []
    watcher = await connect(port, f"{name}-w", lambda message: got.append(message.payload))
    await subscribe(watcher, f"soak/will/{name}")
    client = await connect(port, name, will=make_will(f"soak/will/{name}", b"gone", 1, True))
    client.drop()
    assert await watcher.until(lambda: got == [b"gone"])
    watcher.send_publish(f"soak/will/{name}", b"", 1, retain=True)
    assert await watcher.until(lambda: watcher.acknowledged >= 1)
    watcher.disconnect()
    await watcher.wait_closed()


async def expiring(port: int, name: str) -> None:
    """Publish, replace and clear retained messages that do not expire for years.

    The client uses MQTT 5. One topic has 150 levels, and another is shared by all clients.
    """
    client = await connect(port, name, version=5)
    # Use few topics, because the broker caches the routes of topics without subscribers too.
    own = f"soak/retained/{len(name)}/{name[-1]}"
    topics = (own, own + "/x" * 150, "soak/retained/all")
    sent = 0
    for payload in (b"x" * 100, b"y" * 100, b""):
        for topic in topics:
            sent += 1
            interval = 0xFFFFFFFF - sent
            client.send_publish(topic, payload, 1, True, message_expiry_interval=interval)
    assert await client.until(lambda: client.acknowledged >= sent)
    client.disconnect()
    await client.wait_closed()


async def taken_over(port: int, name: str) -> None:
    """Connect three times with the same client id."""
    last: AsyncioClient | None = None
    for _ in range(3):
        client = await connect(port, name)
        if last is not None:
            await last.wait_closed()
        last = client
    assert last is not None
    last.drop()


async def rude(port: int, name: str) -> None:
    """Send part of a packet and disconnect."""
    client = await connect(port, name)
    client.raw(b"\x30\xff\x01abc")
    client.drop()


KINDS: tuple[Callable[[int, str], Awaitable[None]], ...] = (
    clean, durable, will, expiring, taken_over, rude,
)  # fmt: skip


async def churn(broker: Target, number: int, clients: int, choice: random.Random) -> None:
    """Run one round."""
    places = asyncio.Semaphore(30)

    async def one(index: int) -> None:
        async with places:
            await choice.choice(KINDS)(broker.port, f"c{number}-{index}")

    await asyncio.gather(*(one(index) for index in range(clients)))


async def soak(
    folder: Path, seconds: float, say: Callable[[str], None], clients: int = CLIENTS, least: int = 9
) -> Soak:
    """Run rounds for `seconds`, but at least `least` rounds after the `WARM` warm-up rounds."""
    run = Soak()
    choice = random.Random(1)
    config = CONFIG.format(plugins=STORAGE.format(folder=folder))
    with target(folder, config) as broker:
        loop = asyncio.get_running_loop()
        before = await asyncio.to_thread(broker.state)
        end = loop.time() + seconds
        number = 0
        state: dict[str, float] = {}

        def recovered() -> bool:
            state.update(broker.state())
            return state == before

        while loop.time() < end or number < WARM + least:
            number += 1
            await churn(broker, number, clients, choice)
            run.clients += clients
            if not await broker.becomes(recovered):
                run.broken.append(f"round {number}: {state}, before: {before}")
                break
            objects = await asyncio.to_thread(broker.objects)
            run.rounds.append(Round(broker.resident(), objects, dict(state)))
            say(
                f"round {number}: {run.clients:,} clients, {objects:,} objects, "
                f"{run.rounds[-1].resident / MEGABYTE:.1f} MiB"
            )
    run.broken += judge(run.rounds[WARM:], clients)
    return run


def judge(rounds: list[Round], clients: int) -> list[str]:
    """Return everything that grew with the number of clients.

    The second third of the rounds is compared with the first, and the last with the second. The smaller growth counts. A
    pool or a lazily imported module grows in only one of the two comparisons. A leak grows with every client.
    """
    third = len(rounds) // 3
    if not third:
        return ["too few rounds to compare"]
    between = third * clients
    parts = [rounds[third * n : third * (n + 1)] for n in range(3)]
    objects = min(
        median_low(r.objects for r in after) - median_low(r.objects for r in before)
        for before, after in pairwise(parts)
    )
    memory = min(
        median_low(r.resident for r in after) - median_low(r.resident for r in before)
        for before, after in pairwise(parts)
    )
    found = []
    if objects > OBJECTS * between:
        found.append(f"{objects / between:.2f} more objects for each client that had connected")
    if memory > MEMORY * between:
        found.append(f"{memory / between:.0f} more bytes for each client that had connected")
    return found
