"""Kill a broker with SIGKILL while a publisher sends each message twice and delays some of them.

Each message must be in the queue exactly once, and messages with the same key must be in order.
"""

import asyncio
from pathlib import Path

import pytest
from crashing import Crashing, crashing
from hookmq.mqtt_api import Publish
from hookmq_testing import AsyncioClient

pytestmark = pytest.mark.slow

EACH = 40
KILLS = 2
KEYS = "abc"
JOBS = "$queue/jobs"
QUEUES = """\
  - use: queues
    config:
      path: "{path}"
      queues:
        - {{name: jobs, dedupe_window: 10m, dedupe_scope: queue, order: by_key, lookahead: 16, memory: 2KiB}}
"""


async def publish(client: AsyncioClient, numbers: range) -> None:
    """Publish each number with an id of its own. Every fourth message is delayed and has no key."""

    def one(number: int) -> tuple[tuple[str, str], ...]:
        more = ("delay", "0.4") if number % 4 == 3 else ("key", KEYS[number % len(KEYS)])
        return (("message-id", f"{number}"), more)

    await asyncio.gather(
        *(client.publish(JOBS, b"%d" % number, 1, expect=0, user_property=one(number)) for number in numbers)
    )  # fmt: skip


def round_of(broker: Crashing, number: int) -> None:
    """Publish some messages. Kill the broker when it has acknowledged none, some or all of them."""
    numbers = range(number * EACH, (number + 1) * EACH)

    async def send(seconds: float) -> None:
        client = await AsyncioClient(f"round{number}-{seconds}", clean_start=True).connect(broker.port)  # fmt: skip
        sending = asyncio.ensure_future(publish(client, numbers))
        await asyncio.wait([sending], timeout=seconds)
        sending.cancel()
        client.disconnect()
        await client.wait_closed()

    broker.thread.run(send(0.02 + 0.1 * number))
    broker.kill()
    broker.start()


def offset_of(message: Publish) -> int:
    return int(dict(message.properties.user_property or ())["offset"])


async def finish(broker: Crashing) -> list[Publish]:
    """Publish everything again. Return what a consumer has received once everything has arrived."""
    client = await AsyncioClient("publisher").connect(broker.port)
    for number in (*range(KILLS), *range(KILLS)):
        await publish(client, range(number * EACH, (number + 1) * EACH))
    got: list[Publish] = []
    consumer = await AsyncioClient("consumer", on_message=got.append).connect(broker.port)
    assert (await consumer.subscribe(JOBS, 1)).codes == (1,)
    assert await consumer.until(lambda: len({one.payload for one in got}) == KILLS * EACH, 30)
    await asyncio.sleep(0.6)  # nothing is left that is delayed
    for one in (client, consumer):
        one.disconnect()
        await one.wait_closed()
    return got


def test_messages_that_are_sent_again_are_stored_once(tmp_path: Path) -> None:
    with crashing(tmp_path, more=QUEUES.format(path=tmp_path / "queues")) as broker:
        for number in range(KILLS):
            round_of(broker, number)
        got = broker.thread.run(finish(broker))
        assert broker.stop() == 0
    numbers = [int(one.payload) for one in got]
    assert sorted(numbers) == list(range(KILLS * EACH))
    for key in KEYS:
        offsets = [offset_of(one) for one in got if ("key", key) in (one.properties.user_property or ())]  # fmt: skip
        assert offsets == sorted(offsets)
