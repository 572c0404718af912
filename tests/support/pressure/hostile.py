"""Attacks by accepted clients. The checks limit how much memory and output each byte from a client may cause, and how
much an attack may affect other clients.

`amplification` sends many copies of each packet that an untrusted client can send, over connections that never read. For
each byte received, the number of bytes held and sent must stay below a limit. Data that the configuration allows to be
queued for a client does not count. `hostile` runs several such attackers at once. Stalls are measured in the broker's
own CPU time between a request and its answer, so other work on the machine does not count.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import mqttbytes as m
from hookmq.mqtt.packets import Disconnect
from hookmq_testing import AsyncioClient

from pressure.overload import MEGABYTE, MEMORY, Outcome, pressed
from pressure.pinger import pinger
from pressure.target import Target

HELD_FACTOR = 200
"""Maximum bytes held for each byte received. A SUBSCRIBE of eight bytes creates a subscription and an index entry."""
SENT_FACTOR = 4
"""Maximum bytes passed to the transports of connections that do not read, for each byte received."""
WAITS = 2 * 262144 + MEGABYTE
"""Bytes that may wait for one client: its transport's buffer, the output of one turn and its queue."""
RECEIVES = 65536
"""The receive buffer of an attacker's socket. The kernel doubles it."""
SENDS = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])
"""The limit of the broker's send buffer for one connection in the kernel, usually 4 MiB."""
UNREAD = SENDS + 2 * RECEIVES + 2 * 262144
"""Bytes that may be sent to one client that does not read: the kernel's buffers at both ends, the transport's buffer
and the output of one turn.

No packet below sends that much to both clients.
"""
SPARE = 24 * MEGABYTE
"""Memory for the allocator and the broker's caches, independent of the load."""
WITNESS = 8192
"""Maximum bytes that the broker receives from or sends to the well-behaved client in 0.15 s."""
STALL = 0.2
"""Maximum seconds of CPU time that the broker may use between a PINGREQ and its PINGRESP.

The tests of each stage count the steps of a slice. This limit finds work that is not sliced at all, which takes seconds
here. It is far above the time of a slice, which took 25 to 65 ms on machines of different speeds.
"""
LONG = "t/" + "x" * 60_000
DEEP = "/".join("d" * 199)
CONFIG = MEMORY.replace("broker: {", "broker: {hold_timeout: 5s, ", 1)
"""A configuration with a short `hold_timeout`, because a connection that is not read does not reveal that its peer has
left."""


class Attacker:
    """An MQTT 5 client that sends bytes and does not read the responses."""

    def __init__(self, client: AsyncioClient) -> None:
        self.client = client

    async def send(self, data: bytes, patience: float = 0.5) -> None:
        """Send as many bytes as the broker accepts within `patience` seconds."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            self.client.raw(data)
            await self.client.drain(patience)

    def drop(self) -> None:
        """Close the connection without DISCONNECT."""
        self.client.drop()


async def attacker(port: int, name: str, **options: Any) -> Attacker:
    """Connect a client that stops reading after CONNACK. `options` are those of `AsyncioClient`."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVES)
    link.setblocking(False)
    await asyncio.get_running_loop().sock_connect(link, ("127.0.0.1", port))
    client = await AsyncioClient(name, **options).connect(sock=link)
    client.pause()
    made = Attacker(client)
    _MADE.append(made)
    return made


_MADE: list[Attacker] = []


def overlapping(levels: int) -> Iterator[str]:
    """Yield every filter that consists of `levels` levels, each ``a`` or ``+``. All of them match ``a/a/...``."""
    return ("/".join(parts) for parts in product("a+", repeat=levels))


def _subscriptions(filters: Iterator[str], qos: int = 0, identified: bool = False) -> bytes:
    return b"".join(
        m.subscribe(1, (name, qos), properties=m.identifier(number) if identified else b"")
        for number, name in enumerate(filters, 1)
    )


PACKETS: dict[str, Callable[[], bytes]] = {
    "PINGREQ": lambda: m.PINGREQ * 100_000,
    "PUBLISH to oneself": lambda: m.publish("own", b"x") * 20_000,
    "PUBLISH, QoS 1": lambda: b"".join(m.publish("own", b"", 1, n) for n in range(1, 1000)),
    "PUBLISH, QoS 2": lambda: b"".join(m.publish("own", b"", 2, n) for n in range(1, 1000)),
    "PUBLISH with an alias of a long topic": lambda: (
        m.publish(LONG, properties=m.alias(1)) + m.publish("", properties=m.alias(1)) * 3000
    ),
    "PUBLISH, aliases set again": lambda: m.publish(LONG, properties=m.alias(1)) * 40,
    "PUBLISH, retained": lambda: b"".join(
        m.publish(f"r/{n}", b"x", retain=True) for n in range(20_000)
    ),
    "PUBLISH, retained, deep": lambda: b"".join(
        m.publish(f"{DEEP}/{n}", b"x", retain=True) for n in range(2000)
    ),
    "PUBLISH, retained, expiring": lambda: b"".join(
        m.publish("r/one", b"x", retain=True, properties=m.expiry(0xFFFFFFFF))
        for _ in range(10_000)
    ),
    "PUBREL": lambda: m.pubrel(7) * 20_000,
    "PUBACK": lambda: m.puback(7) * 20_000,
    "SUBSCRIBE": lambda: _subscriptions(f"s/{n}" for n in range(10_000)),
    "SUBSCRIBE, deep": lambda: _subscriptions(f"{n}/{DEEP}" for n in range(2000)),
    "SUBSCRIBE, wildcards": lambda: _subscriptions(overlapping(12), identified=True),
    "SUBSCRIBE, the same again": lambda: m.subscribe(1, ("many/#", 0)) * 20_000,
    "SUBSCRIBE for retained messages": lambda: b"".join(
        m.subscribe(1, (name, 0)) for _ in range(300) for name in ("many/#", "+/#", "many/+")
    ),
    "SUBSCRIBE, groups": lambda: _subscriptions((f"$share/g{n}/own" for n in range(2000)), 1),
    "UNSUBSCRIBE": lambda: m.unsubscribe(1, "nothing") * 10_000,
    "AUTH": lambda: m.auth(0x19, m.auth_method("x")),
}
"""Functions that return the bytes that one client sends at once, by name."""


async def _many_retained(port: int) -> None:
    """Publish 1.2 MB of retained messages."""
    one = await attacker(port, "retainer")
    await one.send(b"".join(m.publish(f"many/{n}", bytes(60_000), retain=True) for n in range(20)))
    one.drop()


async def _settled(broker: Target) -> None:
    """Wait until the broker receives and sends nothing but the witness's traffic."""
    quiet, before = 0, (0.0, 0.0)
    while quiet < 3:
        metrics = await asyncio.to_thread(broker.metrics)
        now = (metrics["bytes_received_total", ""], metrics["bytes_sent_total", ""])
        rose = max(after - earlier for after, earlier in zip(now, before, strict=True))
        quiet = quiet + 1 if rose < WITNESS else 0
        before = now
        await asyncio.sleep(0.15)


async def amplification(folder: Path, seconds: float, scale: float) -> Outcome:
    """For each packet that an untrusted client can send, measure the bytes held and sent for each byte received."""
    outcome = Outcome()
    async with pressed(folder, outcome, growth=1 << 40, config=CONFIG) as broker:
        await _many_retained(broker.port)
        for name, make in PACKETS.items():
            await _settled(broker)
            base = broker.resident()
            broker.highest = 0
            victim = await attacker(broker.port, "victim")
            await victim.send(m.subscribe(1, ("t/#", 0), ("own", 1)))
            one = await attacker(broker.port, "hostile", session_expiry_interval=60)
            await one.send(m.subscribe(1, ("own", 1)))
            before = (await asyncio.to_thread(broker.metrics))["bytes_sent_total", ""]
            data = make()
            await one.send(data, 10)
            await _settled(broker)
            after = (await asyncio.to_thread(broker.metrics))["bytes_sent_total", ""]
            held, sent = broker.highest - base, after - before
            outcome.numbers[f"{name}: held"] = held
            outcome.numbers[f"{name}: sent"] = sent
            most = SPARE + 2 * WAITS + HELD_FACTOR * len(data)
            outcome.expect(held <= most, f"{name}: {len(data)} bytes made it hold {held}")
            most = UNREAD + SENT_FACTOR * len(data)
            outcome.expect(sent <= most, f"{name}: {len(data)} bytes made it send {sent:.0f}")
            one.drop()
            victim.drop()
            again = await attacker(broker.port, "hostile")
            again.drop()
        await _forget_retained(broker.port)
    outcome.drops = {}
    return outcome


async def _forget_retained(port: int) -> None:
    one = await attacker(port, "cleaner")
    topics = [f"many/{n}" for n in range(20)] + [f"r/{n}" for n in range(20_000)] + ["r/one"]
    topics += [f"{DEEP}/{n}" for n in range(2000)]
    await one.send(b"".join(m.publish(topic, retain=True) for topic in topics), 30)
    one.client.send(Disconnect())
    one.client.resume()
    await one.client.wait_closed()


# --- several at once ----------------------------------------------------------------------------------------------------


async def _wildcards(port: int) -> None:
    one = await attacker(port, "wildcards")
    await one.send(_subscriptions(overlapping(13), identified=True), 10)
    other = await attacker(port, "wildcards-p")
    topic = "/".join("a" * 13)
    while True:
        await other.send(m.publish(topic, b"x" * 8) * 60)
        await asyncio.sleep(0.05)


async def _deep(port: int) -> None:
    one = await attacker(port, "deep")
    await one.send(_subscriptions(f"{n}/{DEEP}" for n in range(1000)), 10)
    while True:
        await one.send(b"".join(m.publish(f"{DEEP}/{n}", b"x", retain=True) for n in range(300)))
        await one.send(b"".join(m.publish(f"{n}/{DEEP}", b"x") for n in range(300)))
        await asyncio.sleep(0.05)


async def _aliases(port: int) -> None:
    victim = await attacker(port, "aliases-v")
    await victim.send(m.subscribe(1, ("t/#", 0)))
    one = await attacker(port, "aliases")
    await one.send(m.publish(LONG, properties=m.alias(1)))
    while True:
        await one.send(m.publish("", properties=m.alias(1)) * 3000)
        await asyncio.sleep(0.05)


async def _retained(port: int) -> None:
    for turn in count():
        one = await attacker(port, f"retained-{turn % 4}")
        await one.send(PACKETS["SUBSCRIBE for retained messages"]())
        await asyncio.sleep(0.2)
        one.drop()


async def _groups(port: int) -> None:
    one = await attacker(port, "groups", session_expiry_interval=60)
    await one.send(_subscriptions((f"$share/g{n}/g" for n in range(5000)), 1), 10)
    other = await attacker(port, "groups-p")
    while True:
        await other.send(m.publish("g", b"x", 1, 1) * 5)
        await asyncio.sleep(0.1)


async def _batches(port: int) -> None:
    filters = [(f"b/{n}/+", 0) for n in range(1000)]
    names = [name for name, _ in filters]
    data = m.PINGREQ * 50_000 + m.subscribe(1, *filters) + m.unsubscribe(2, *names)
    data += b"".join(m.publish(f"new/{n}", b"x") for n in range(5000))
    for turn in count():
        one = await attacker(port, f"batches-{turn % 4}")
        await one.send(data + m.subscribe(1, *filters), 5)
        await asyncio.sleep(0.2)
        one.drop()


Attack = Callable[[int], Coroutine[Any, Any, None]]
ATTACKS: tuple[Attack, ...] = (_wildcards, _deep, _aliases, _retained, _groups, _batches)


@contextlib.asynccontextmanager
async def _raging(port: int, attacks: Sequence[Attack]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(attack(port)) for attack in attacks]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in _MADE:
            one.drop()
        _MADE.clear()


async def hostile(
    folder: Path, seconds: float, scale: float, attacks: Sequence[Attack] = ATTACKS
) -> Outcome:
    """Run six kinds of hostile clients at once, alongside one client that only sends PINGREQ."""
    outcome = Outcome()
    async with pressed(folder, outcome, growth=512 * MEGABYTE, config=CONFIG) as broker:
        await _many_retained(broker.port)
        async with (
            pinger(broker.port, broker.served.process.pid) as stalls,
            _raging(broker.port, attacks),
        ):
            await asyncio.sleep(seconds)
        again = await attacker(broker.port, "groups")
        again.drop()
        await _forget_retained(broker.port)
    outcome.drops = {}
    stalls.sort()
    outcome.numbers = {
        "pings": len(stalls),
        "half of them microseconds": stalls[len(stalls) // 2] * 1e6,
        "99 of 100": stalls[len(stalls) * 99 // 100] * 1e6,
        "longest": stalls[-1] * 1e6,
    }
    outcome.expect(
        stalls[-1] < STALL, f"the loop stalled for {stalls[-1] * 1e3:.0f} ms of its CPU time"
    )
    return outcome
