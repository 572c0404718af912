"""Test groups with explicit settlement, and workers that use them."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hookmq_queues_client import Backoff, Client, DeadLetter, Message, Reject, Retry, Worker
from hookmq_queues_client.errors import Refused
from lossy_network import Network

Connect = Callable[..., Client]


async def dead_letter(client: Client, explicit: str) -> tuple[Message, DeadLetter]:
    """Return a queue's first dead letter."""
    async with client.queue(explicit.replace("e", "dead")).consume() as messages:
        message = await anext(messages)
        await message.ack()
    assert message.dead_letter is not None
    return message, message.dead_letter


async def test_ack_settles(connect: Connect, explicit: str) -> None:
    queue = connect().queue(explicit)
    for payload in (b"one", b"two"):
        await queue.publish(payload)
    async with queue.consume() as messages:
        message = await anext(messages)
        assert message.explicit
        assert "settle" not in message.headers
        assert await message.ack()
    again = await anext(queue.consume())
    assert again.payload == b"two"


async def test_prefetch_counts_what_is_not_settled(connect: Connect, explicit: str) -> None:
    queue = connect().queue(explicit)
    for payload in (b"one", b"two"):
        await queue.publish(payload)
    messages = queue.consume(prefetch=1)
    first = await anext(messages)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(messages)
    assert await first.ack()
    assert (await anext(messages)).payload == b"two"


async def test_nack_delivers_again_after_the_delay(connect: Connect, explicit: str) -> None:
    queue = connect().queue(explicit)
    await queue.publish(b"one")
    messages = queue.consume(prefetch=1)
    message = await anext(messages)
    given_back = time.monotonic()
    assert await message.nack(delay=0.5, reason="not yet")
    await queue.publish(b"two")
    other = await anext(messages)
    assert other.payload == b"two"
    assert await other.ack()
    again = await anext(messages)
    assert (again.payload, again.delivery_count) == (b"one", 2)
    assert time.monotonic() - given_back >= 0.4
    assert await again.ack()


async def test_nacked_too_often_is_a_dead_letter(connect: Connect, explicit: str) -> None:
    client = connect()
    queue = client.queue(explicit)
    await queue.publish(b"x", headers={"kind": "picture"})
    messages = queue.consume()
    for count in range(1, 5):
        message = await anext(messages)
        assert message.delivery_count == count
        assert await message.nack(reason=f"attempt {count}")
    message, dead = await dead_letter(client, explicit)
    assert (dead.id, dead.group, dead.count) == (f"{explicit}:0", "workers", 4)
    assert (dead.reason, dead.description) == ("delivery-limit", "attempt 4")
    assert message.headers == {"kind": "picture"}


async def test_reject_makes_a_dead_letter_at_once(connect: Connect, explicit: str) -> None:
    client = connect()
    queue = client.queue(explicit)
    await queue.publish(b"x")
    message = await anext(queue.consume())
    assert await message.reject(reason="no such picture")
    _, dead = await dead_letter(client, explicit)
    assert (dead.reason, dead.description, dead.count) == ("rejected", "no such picture", 1)


async def test_a_message_of_another_consumer_cannot_be_settled(
    connect: Connect, explicit: str
) -> None:
    queue = connect().queue(explicit)
    await queue.publish(b"x")
    slow, fast = queue.consume(prefetch=1), queue.consume(prefetch=1)
    message = await anext(slow)
    assert (await anext(fast)).delivery_count == 2  # after the visibility timeout
    with pytest.raises(
        Refused, match=rf"the broker refused to accept a message to \$queue/{explicit}/\$ack"
    ):
        await message.ack()
    assert not message.settled
    # The refused message no longer counts against the consumer's prefetch.
    await queue.publish(b"y")
    assert (await anext(slow)).payload == b"y"


async def test_a_refused_delay_can_be_corrected(connect: Connect, explicit: str) -> None:
    queue = connect().queue(explicit)
    await queue.publish(b"x")
    messages = queue.consume()
    message = await anext(messages)
    with pytest.raises(Refused, match="expected seconds from 0 to"):
        await message.nack(delay=1e6)
    assert await message.nack(delay=0)
    assert (await anext(messages)).delivery_count == 2


async def test_a_lost_answer_settles_once(
    connect: Connect, network: Network, explicit: str
) -> None:
    queue = connect(network.url).queue(explicit)
    for payload in (b"one", b"two"):
        await queue.publish(payload)
    messages = queue.consume(prefetch=1)
    message = await anext(messages)
    network.lose_from_broker = True
    settling = asyncio.create_task(message.ack())
    direct = connect().queue(explicit).consume(prefetch=2)
    assert (await anext(direct)).payload == b"two"
    await network.cut()
    assert not await settling  # the client does not know that the broker has settled the message
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(direct)


async def test_a_lost_settlement_delivers_again(
    connect: Connect, network: Network, explicit: str
) -> None:
    queue = connect(network.url).queue(explicit)
    await queue.publish(b"one")
    messages = queue.consume()
    message = await anext(messages)
    network.lose_from_client = True
    settling = asyncio.create_task(message.ack())
    await asyncio.sleep(0.05)
    await network.cut()
    assert not await settling
    again = await anext(messages)
    assert (again.payload, again.delivery_count) == (b"one", 2)
    assert await again.ack()


async def test_a_worker_settles_by_what_its_handler_does(
    connect: Connect, network: Network, explicit: str
) -> None:
    queue = connect(network.url).queue(explicit)
    for payload in (b"good", b"rejected", b"retried", b"broken"):
        await queue.publish(payload)
    connections = network.connections
    found: list[tuple[bytes, int]] = []
    finished = asyncio.Event()

    async def handle(message: Message) -> None:
        found.append((message.payload, message.delivery_count))
        if len(found) == 7:
            finished.set()
        if message.payload == b"rejected":
            raise Reject("no such picture")
        if message.payload == b"retried" and message.delivery_count == 1:
            raise Retry(0.01)
        if message.payload == b"broken":
            raise KeyError("price")

    worker = Worker(queue, handle, concurrency=2, retries=2, backoff=Backoff(0.01, 1, 0.01))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(30):
        await finished.wait()
    worker.stop()
    assert await running == 0
    # Returning messages to the queue needed no new connection.
    assert network.connections == connections + 1
    expected = {b"good": 1, b"rejected": 1, b"retried": 2, b"broken": 3}
    assert sorted(found) == sorted(
        (payload, count) for payload, last in expected.items() for count in range(1, last + 1)
    )
    dead = [await dead_letter(connect(), explicit) for _ in range(2)]
    assert sorted((one.payload, about.reason, about.description) for one, about in dead) == [
        (b"broken", "rejected", "KeyError: 'price'"),
        (b"rejected", "rejected", "no such picture"),
    ]


async def test_the_backoff_of_the_group_is_used_without_one(
    connect: Connect, explicit: str
) -> None:
    queue = connect().queue(explicit)
    await queue.publish(b"x")
    counts: list[int] = []
    finished = asyncio.Event()

    async def handle(message: Message) -> Any:
        counts.append(message.delivery_count)
        if len(counts) < 3:
            raise RuntimeError("at once")
        finished.set()

    worker = Worker(queue, handle, backoff=None)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(30):
        await finished.wait()
    worker.stop()
    assert await running == 0
    assert counts == [1, 2, 3]


async def test_stop_lets_handlers_settle_and_takes_no_more(connect: Connect, explicit: str) -> None:
    queue = connect().queue(explicit)
    for payload in (b"0", b"1", b"2"):
        await queue.publish(payload)
    started, finish = asyncio.Event(), asyncio.Event()
    done: list[bytes] = []

    async def handle(message: Message) -> None:
        started.set()
        await finish.wait()
        done.append(message.payload)

    worker = Worker(queue, handle)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    await asyncio.sleep(0.05)
    finish.set()
    assert await running == 0
    assert done == [b"0"]
    rest = queue.consume()
    found = [await anext(rest) for _ in range(2)]
    assert [(one.payload, one.delivery_count) for one in found] == [(b"1", 1), (b"2", 1)]


async def test_a_reason_that_mqtt_cannot_carry(connect: Connect, explicit: str) -> None:
    client = connect()
    queue = client.queue(explicit)
    await queue.publish(b"bad \0 text")

    async def handle(message: Message) -> None:
        with pytest.raises(ValueError, match=r"'reason' contains U\+0000"):
            await message.nack(reason="\0")
        assert not message.settled
        raise Reject(message.payload.decode() + "\udc80")

    worker = Worker(queue, handle)
    running = asyncio.create_task(worker.run())
    _, found = await dead_letter(client, explicit)
    assert found.description == "bad \\0 text\\udc80"
    worker.stop()
    assert await running == 0
