"""Scenarios with more load than the broker or its subscribers can handle, and the guarantees that must hold during and
after it.

Each scenario adds its findings to `Outcome.broken`. A finding may be an acknowledged message that was lost, or a message
that was neither delivered nor counted as dropped. Other findings are excessive memory use, a well-behaved client that
was not served, and a gauge that did not return to its initial value.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiohttp import web
from hookmq.mqtt.packets import Publish
from hookmq_testing import AsyncioClient
from serving import WAIT

from pressure.client import connect, subscribe
from pressure.target import Target, target
from pressure.witness import Seen, witness

MEGABYTE = 1 << 20
CONFIG = """\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:0", max_connections: 30000, backlog: 4096}}
  - {{name: http, type: http, bind: "127.0.0.1:0"}}
auth: {{default: allow}}
authz: {{default: allow}}
broker: {{max_queue_bytes: {all}, queue_memory: 16MiB, max_write_buffer: 256KiB, max_connections: 30000}}
session: {{queue_bytes: {each}, queue_messages: {count}, max_expiry: 1h}}
plugins: [{plugins}]
"""
MEMORY = CONFIG.format(all="32MiB", each="1MiB", count=10000, plugins="")
SLOW = (
    '{{use: auth_http, config: {{timeout: 60s, authorize: {{url: "http://127.0.0.1:{port}/"}}}}}}'
)
STORAGE = '{{use: storage, config: {{path: "{folder}/data"}}}}'
BODY = bytes(1024)
STORM = 20_000
"""Number of clients in a storm at scale 1."""
GROWTH = 192 * MEGABYTE
"""The memory that a scenario may use on top of the idle broker's.

It covers the queue limit of 32 MiB, the same again for fragmentation and write buffers, messages in sockets, and the
scenario's own share.
"""


@dataclass
class Outcome:
    """The measurements and findings of a scenario."""

    numbers: dict[str, float] = field(default_factory=dict)
    drops: dict[str, float] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)
    growth: int = 0
    broken: list[str] = field(default_factory=list)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Add the finding `otherwise` unless `holds` is true."""
        if not holds:
            self.broken.append(otherwise)


@asynccontextmanager
async def pressed(
    folder: Path,
    outcome: Outcome,
    growth: int = GROWTH,
    config: str = MEMORY,
    patience: float = WAIT,
) -> AsyncIterator[Target]:
    """Run a broker and a well-behaved client while the block generates load.

    When the block ends, check the memory, the well-behaved client and the recovery, and record the dropped messages.
    """
    with target(folder, config) as broker:
        before = await asyncio.to_thread(broker.state)
        base = broker.resident()
        stopped = asyncio.Event()

        async def look() -> None:
            while not stopped.is_set():
                broker.resident()
                await asyncio.sleep(0.1)

        looking = asyncio.create_task(look())
        try:
            async with witness(broker.port) as outcome.seen:
                yield broker
        finally:
            stopped.set()
            await looking
        outcome.drops = await asyncio.to_thread(broker.dropped)
        outcome.growth = broker.highest - base
        outcome.expect(
            outcome.growth <= growth,
            f"memory grew by {outcome.growth / MEGABYTE:.0f} MiB, {growth / MEGABYTE:.0f} at most",
        )
        outcome.expect(outcome.seen.well, f"who behaved well was not served: {vars(outcome.seen)}")
        latest: dict[str, float] = {}

        def recovered() -> bool:
            latest.update(broker.state())
            return latest == before

        outcome.expect(
            await broker.becomes(recovered, patience), f"not as before: {latest}, before: {before}"
        )


async def for_a_time(seconds: float, turn: Callable[[], Awaitable[None]]) -> None:
    """Call `turn` repeatedly for `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await turn()


async def _blast(
    client: AsyncioClient,
    topic: str,
    qos: int,
    seconds: float,
    window: int = 0,
    enough: asyncio.Event | None = None,
) -> int:
    """Publish as fast as the broker accepts, with at most `window` messages unacknowledged. Return the number sent.

    Stop after `seconds` or once `enough` is set.
    """
    sent = 0

    async def turn() -> None:
        nonlocal sent
        await client.drain()
        if window:
            await client.until(lambda: sent - client.acknowledged < window, 60)
        if client.closed:
            raise AssertionError("a publisher was thrown out")
        room = min(64, window - (sent - client.acknowledged)) if window else 64
        for _ in range(room):
            client.send_publish(topic, BODY, qos)
        sent += room
        await asyncio.sleep(0)

    if enough is None:
        await for_a_time(seconds, turn)
    else:
        while not enough.is_set():
            await turn()
    return sent


async def _settled(broker: Target, clients: list[AsyncioClient], due: int) -> None:
    """Wait until `due` messages have been received or counted as dropped, and then until no more have arrived for a
    while.
    """

    def received() -> int:
        return sum(client.received for client in clients)

    await broker.becomes(lambda: received() + sum(broker.dropped().values()) >= due, 3 * WAIT)
    last = -1
    while (now := received()) != last:
        last = now
        await asyncio.sleep(0.5)


async def flood(folder: Path, seconds: float, scale: float) -> Outcome:
    """Publish at QoS 0 as fast as TCP allows, to subscribers that cannot keep up."""
    outcome = Outcome()
    async with pressed(folder, outcome) as broker:
        readers = [await connect(broker.port, f"reader-{n}") for n in range(4)]
        for reader in readers:
            await subscribe(reader, "flood", qos=0)
        writers = [await connect(broker.port, f"writer-{n}") for n in range(8)]
        sent = sum(await asyncio.gather(*(_blast(one, "flood", 0, seconds) for one in writers)))
        for writer in writers:
            writer.disconnect()
        await asyncio.gather(*(writer.wait_closed() for writer in writers))
        await _settled(broker, readers, sent * len(readers))
        received = sum(reader.received for reader in readers)
        for reader in readers:
            reader.disconnect()
    dropped = sum(outcome.drops.values())
    outcome.numbers = {"sent": sent, "received": received, "dropped": dropped}
    outcome.expect(
        received + dropped == sent * len(readers),
        f"{sent * len(readers)} were due: {received} came and {dropped:.0f} are counted as dropped",
    )
    return outcome


async def slow_readers(folder: Path, seconds: float, scale: float) -> Outcome:
    """Publish to QoS 1 subscribers that read nothing, and then let them read."""
    outcome = Outcome()
    async with pressed(folder, outcome) as broker:
        readers = [await connect(broker.port, f"slow-{n}") for n in range(20)]
        for reader in readers:
            await subscribe(reader, "slow", qos=1)
            reader.pause()
        writers = [await connect(broker.port, f"writer-{n}") for n in range(4)]
        each = await asyncio.gather(*(_blast(one, "slow", 1, seconds, 100) for one in writers))
        sent = sum(each)
        for writer, count in zip(writers, each, strict=True):
            # A client that leaves with an unread PUBACK resets the connection, and unread bytes are lost.
            await writer.until(partial(_acknowledged, writer, count))
            writer.disconnect()
        for reader in readers:
            reader.resume()
        await _settled(broker, readers, sent * len(readers))
        received = sum(reader.received for reader in readers)
        for reader in readers:
            reader.disconnect()
    dropped = sum(outcome.drops.values())
    outcome.numbers = {"sent": sent, "received": received, "dropped": dropped}
    outcome.expect(dropped > 0, "nothing was dropped: that was no overload")
    outcome.expect(
        received + dropped == sent * len(readers),
        f"{sent * len(readers)} were due: {received} came and {dropped:.0f} are counted as dropped",
    )
    return outcome


def _acknowledged(client: AsyncioClient, count: int) -> bool:
    return client.acknowledged >= count


async def _served(client: AsyncioClient, messages: int = 20) -> bool:
    """Return whether messages that the client publishes to itself are acknowledged and delivered."""
    for _ in range(messages):
        came, acknowledged = client.received + 1, client.acknowledged + 1
        client.send_publish("bystander", BODY, 1)
        if not await client.until(
            lambda came=came, acknowledged=acknowledged: (  # type: ignore[misc]
                client.received >= came and client.acknowledged >= acknowledged
            ),
            WAIT,
        ):
            return False
    return True


async def slow_disk(folder: Path, seconds: float, scale: float) -> Outcome:
    """Stall the disk while clients publish to durable sessions, and then let it continue."""
    outcome = Outcome()
    config = CONFIG.format(
        all="4GiB", each="4GiB", count=100000000, plugins=STORAGE.format(folder=folder)
    )
    async with pressed(folder, outcome, config=config) as broker:
        keeper = await connect(broker.port, "keeper", clean=False)
        await subscribe(keeper, "kept", qos=1)
        keeper.drop()
        await keeper.wait_closed()
        (disk,) = broker.children()
        writers = [await connect(broker.port, f"writer-{n}") for n in range(8)]
        bystander = await connect(broker.port, "bystander")
        await subscribe(bystander, "bystander", qos=1)
        # They continue until the disk recovers: a broker that did not wait for it would keep acknowledging.
        enough = asyncio.Event()
        blasts = [
            asyncio.create_task(_blast(one, "kept", 1, seconds, 100, enough)) for one in writers
        ]
        await writers[0].until(lambda: writers[0].acknowledged > 0)
        os.kill(disk, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds / 2)
            still, turns = -1, 0
            # On a busy machine, earlier writes take a while to be acknowledged, but not this long.
            while still != (now := sum(one.acknowledged for one in writers)) and turns < 20:
                still, turns = now, turns + 1
                await asyncio.sleep(seconds / 4)
            outcome.expect(turns < 20, "something was acknowledged while the disk stood still")
            outcome.expect(await _served(bystander), "a client that needs no disk waited for it")
        finally:
            enough.set()
            os.kill(disk, signal.SIGCONT)
        bystander.disconnect()
        each = await asyncio.gather(*blasts)
        sent = sum(each)
        for one, count in zip(writers, each, strict=True):
            await one.until(partial(_acknowledged, one, count))
            one.disconnect()
        acknowledged = sum(one.acknowledged for one in writers)
        outcome.expect(acknowledged == sent, f"{sent - acknowledged} were never acknowledged")
        dropped = sum((await asyncio.to_thread(broker.dropped)).values())
        keeper = await connect(broker.port, "keeper", clean=False)
        outcome.expect(keeper.session_present, "the session was not kept")
        await keeper.until(lambda: keeper.received + dropped >= acknowledged, 60)
        received = keeper.received
        keeper.disconnect()
        keeper = await connect(broker.port, "keeper", clean=True)
        keeper.disconnect()
    outcome.numbers = {"sent": sent, "received": received, "dropped": dropped}
    outcome.expect(
        received + dropped == acknowledged,
        f"{acknowledged} were acknowledged: {received} came and {dropped:.0f} are counted as dropped",
    )
    return outcome


async def slow_plugin(folder: Path, seconds: float, scale: float) -> Outcome:
    """Publish each message to a new topic, so that the broker has to ask a slow authorization service every time."""
    outcome = Outcome()
    each = max(1, int(seconds * 10))
    asked = 0

    async def decide(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        answer = web.json_response({"result": "allow"})
        answer.force_close()  # otherwise, idle connections would count as leaked descriptors
        return answer

    application = web.Application()
    application.router.add_post("/", decide)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    came: dict[str, list[int]] = {}

    def message(message: Publish) -> None:
        _, index, number = message.topic.split("/")
        came.setdefault(index, []).append(int(number))

    try:
        config = CONFIG.format(
            all="32MiB", each="8MiB", count=1000_000, plugins=SLOW.format(port=port)
        )
        async with pressed(folder, outcome, config=config) as broker:
            reader = await connect(broker.port, "reader", message)
            await subscribe(reader, "slow/#", qos=1)
            writers = [await connect(broker.port, f"writer-{n}") for n in range(50)]
            for index, writer in enumerate(writers):
                for number in range(each):
                    writer.send_publish(f"slow/{index}/{number}", BODY, 1)
            for writer in writers:
                await writer.until(lambda w=writer: w.acknowledged >= each, 240)  # type: ignore[misc]
            await reader.until(lambda: reader.received >= each * len(writers))
            for client in (reader, *writers):
                client.disconnect()
    finally:
        await runner.cleanup()
    sent = each * len(writers)
    dropped = sum(outcome.drops.values())
    outcome.numbers = {
        "sent": sent,
        "received": reader.received,
        "asked": asked,
        "dropped": dropped,
    }
    outcome.expect(
        reader.received == sum(writer.acknowledged for writer in writers) == sent,
        f"{sent} were due, {sum(w.acknowledged for w in writers)} acknowledged: {reader.received} came",
    )
    outcome.expect(
        all(numbers == sorted(numbers) for numbers in came.values()), "a publisher's order is lost"
    )
    return outcome


async def storm(folder: Path, seconds: float, scale: float) -> Outcome:
    """Connect thousands of clients with sessions, cut all their connections at once, and reconnect them."""
    outcome = Outcome()
    count = int(STORM * scale)
    places = asyncio.Semaphore(1000)

    async def arrive(broker: Target, number: int) -> AsyncioClient:
        async with places:
            client = await connect(broker.port, f"storm-{number}", clean=False)
            if not client.session_present:
                await subscribe(client, f"storm/{number}")
            return client

    async with pressed(folder, outcome, growth=GROWTH + count * 16384) as broker:
        for turn in range(3):
            clients = await asyncio.gather(*(arrive(broker, n) for n in range(count)))
            outcome.expect(
                sum(client.session_present for client in clients) == (count if turn else 0),
                f"turn {turn}: {sum(client.session_present for client in clients)} found their session",
            )
            for client in clients:
                client.drop()
            await asyncio.gather(*(client.wait_closed() for client in clients))
        for number in range(count):
            async with places:
                client = await connect(broker.port, f"storm-{number}", clean=True)
                client.disconnect()
        outcome.numbers = {"connected": 4 * count}
    outcome.expect(not outcome.drops, f"dropped: {outcome.drops}")
    return outcome
