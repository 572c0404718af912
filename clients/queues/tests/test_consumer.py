"""Test consuming from a real broker's queues, over a network that loses data and connections."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from crashing import crashing
from hookmq_queues_client import AlreadySettled, Backoff, Client, NotAvailable
from lossy_network import Network

Connect = Callable[..., Client]
SOON = Backoff(0.01, 1.0, 0.01)
MORE = """\
  - use: queues
    config:
      path: "{path}"
      queues: [{{name: jobs, dedupe_window: 10m, groups: [{{name: workers, settle: {settle}}}]}}]
"""


async def test_prefetch_limits_what_a_consumer_has(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    for number in range(4):
        await queue.publish(b"%d" % number)
    slow, fast = queue.consume(prefetch=1), queue.consume(prefetch=1)
    one = await anext(slow)
    two = [await anext(fast)]
    for _ in range(2):
        await two[-1].ack()
        two.append(await anext(fast))
    assert [message.offset for message in (one, *two)] == [0, 1, 2, 3]


async def test_a_filter_chooses_messages(connect: Connect, name: str) -> None:
    queue = connect().queue(name)
    for topic in ("print/1", "resize/1", "resize/2"):
        await queue.publish(topic, topic=topic)
    messages = queue.consume(filter="resize/+")
    found = [await anext(messages) for _ in range(2)]
    assert [one.payload for one in found] == [b"resize/1", b"resize/2"]
    assert (await anext(queue.consume(filter="print/#"))).source_topic == f"$queue/{name}/print/1"


async def test_a_lost_acknowledgement_delivers_again(
    connect: Connect, network: Network, name: str
) -> None:
    client = connect(network.url)
    queue = client.queue(name)
    await queue.publish(b"x")
    messages = queue.consume()
    message = await anext(messages)
    network.lose_from_client = True
    assert await message.ack()
    await network.cut()
    again = await anext(messages)
    assert (again.id, again.delivery_count) == (message.id, 2)
    assert message.lost
    assert not again.lost
    assert await again.ack()


async def test_an_acknowledgement_after_the_connection_returns_false(
    connect: Connect, network: Network, name: str
) -> None:
    client = connect(network.url)
    queue = client.queue(name)
    for payload in (b"one", b"two"):
        await queue.publish(payload)
    messages = queue.consume()
    first, second = await anext(messages), await anext(messages)
    await network.cut()
    found = [await anext(messages) for _ in range(2)]
    assert not await first.ack()
    assert not await second.ack()
    # The old packet identifiers must not settle what the new connection delivered.
    assert {(one.payload, one.delivery_count) for one in found} == {(b"one", 2), (b"two", 2)}
    await network.cut()
    found = [await anext(messages) for _ in range(2)]
    assert {(one.payload, one.delivery_count) for one in found} == {(b"one", 3), (b"two", 3)}


async def test_messages_of_a_lost_connection_are_not_returned(
    connect: Connect, network: Network, name: str
) -> None:
    client = connect(network.url)
    queue = client.queue(name)
    await queue.publish(b"0")
    messages = queue.consume(prefetch=10)
    await (await anext(messages)).ack()
    await asyncio.gather(*(queue.publish(b"%d" % number) for number in range(1, 6)))
    taken = await anext(messages)  # the others wait in this process
    await network.cut()
    found = []
    for _ in range(5):
        found.append(await anext(messages))
        assert not found[-1].lost
    assert taken.lost
    assert sorted(one.offset for one in found) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["name", "explicit"])
async def test_stop_keeps_what_was_returned(
    connect: Connect, kind: str, request: pytest.FixtureRequest
) -> None:
    client = connect()
    queue = client.queue(request.getfixturevalue(kind))
    for number in range(3):
        await queue.publish(b"%d" % number)
    async with queue.consume() as messages:
        message = await anext(messages)
        await messages.stop()
        assert [one async for one in messages] == []
        assert await message.ack()
    found = queue.consume()
    assert [(await anext(found)).payload for _ in range(2)] == [b"1", b"2"]


@pytest.mark.parametrize("kind", ["name", "explicit"])
async def test_closing_gives_messages_to_another_consumer(
    connect: Connect, kind: str, request: pytest.FixtureRequest
) -> None:
    client = connect()
    queue = client.queue(request.getfixturevalue(kind))
    await queue.publish(b"x")
    async with queue.consume() as messages:
        assert (await anext(messages)).delivery_count == 1
    again = await anext(queue.consume())
    assert (again.payload, again.delivery_count) == (b"x", 2)


async def test_reconnecting_gives_messages_back(connect: Connect, name: str) -> None:
    queue = connect().queue(name)
    await queue.publish(b"x")
    messages = queue.consume()
    await anext(messages)
    await messages.reconnect()
    assert (await anext(messages)).delivery_count == 2


async def test_a_group_that_settles_by_puback_says_so(connect: Connect, name: str) -> None:
    queue = connect().queue(name)
    await queue.publish(b"x")
    message = await anext(queue.consume())
    assert not message.explicit
    with pytest.raises(
        NotAvailable, match=rf"message {name}:0 cannot be given back .*settle: explicit"
    ):
        await message.nack(delay=5)
    with pytest.raises(NotAvailable):
        await message.reject()
    with pytest.raises(ValueError, match="delay must be at least 0"):
        await message.nack(delay=-1)
    assert not message.settled
    await message.ack()
    with pytest.raises(AlreadySettled, match="was settled already"):
        await message.ack()


async def test_a_dead_letter_tells_where_it_comes_from(connect: Connect) -> None:
    client = connect()
    await client.queue("failing").publish(b"x", topic="resize")
    messages = client.queue("failing").consume()
    for _ in range(2):
        await anext(messages)
        await messages.reconnect()
    message = await anext(client.queue("failed").consume())
    dead = message.dead_letter
    assert dead is not None
    assert dead.time is not None
    assert (dead.queue, dead.group, dead.id, dead.count) == ("failing", "default", "failing:0", 2)
    assert (dead.topic, dead.reason) == ("$queue/failing/resize", "delivery-limit")
    assert not [header for header in message.headers if header.startswith("dead-letter")]
    await message.ack()


async def test_one_message_may_be_settled_after_a_break(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    await queue.publish(b"x")
    async for message in queue.consume():
        found = message
        break
    assert await found.ack()


async def test_a_task_that_waits_is_cancelled(connect: Connect, name: str) -> None:
    messages = connect().queue(name).consume()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(messages)
    await messages.aclose()
    assert [one async for one in messages] == []


@pytest.mark.slow
@pytest.mark.parametrize("settle", ["puback", "explicit"])
async def test_publishing_and_consuming_go_on_after_kills_of_the_broker(
    tmp_path: Path, settle: str, caplog: pytest.LogCaptureFixture
) -> None:
    more = MORE.format(path=tmp_path / "queues", settle=settle)
    with crashing(tmp_path, more=more) as broker:
        async with Client(f"mqtt://127.0.0.1:{broker.port}", reconnect=SOON) as client:
            queue = client.queue("jobs")
            done: dict[int, set[int]] = {}
            """The delivery counts seen for each message, by its number."""
            complete = asyncio.Event()

            async def consume() -> None:
                async for message in queue.consume(prefetch=5):
                    counts = done.setdefault(int(message.payload), set())
                    assert message.delivery_count not in counts, message
                    counts.add(message.delivery_count)
                    await message.ack()
                    if len(done) == 60:
                        complete.set()

            consuming = asyncio.create_task(consume())
            for part in range(3):
                numbers = range(part * 20, part * 20 + 20)
                publishing = [asyncio.create_task(queue.publish(b"%d" % n)) for n in numbers]
                if part < 2:
                    await publishing[0]
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                await asyncio.gather(*publishing)
            async with asyncio.timeout(60):
                await complete.wait()
            assert set(done) == set(range(60))
            assert not consuming.done()
            assert "consumer of $queue/jobs: connection lost; next attempt" in caplog.text
            consuming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await consuming
