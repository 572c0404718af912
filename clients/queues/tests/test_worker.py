"""Test workers on a real broker's queues, in groups that settle by PUBACK."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hookmq_queues_client import (
    Backoff,
    Client,
    Message,
    Queue,
    Reject,
    Retry,
    UnknownQueue,
    Worker,
)

Connect = Callable[..., Client]
SOON = Backoff(0.01, 1.0, 0.01)


@asynccontextmanager
async def working(*arguments: Any, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker during the block. Afterwards, it must stop and leave nothing unfinished."""
    worker = Worker(*arguments, **{"backoff": SOON, **options})
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        yield worker
        worker.stop()
        assert await running == 0


class Seen:
    """What a handler received. `reached` waits for a number of messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._arrived = asyncio.Condition()

    async def add(self, message: Message) -> None:
        async with self._arrived:
            self.messages.append(message)
            self._arrived.notify_all()

    async def reached(self, count: int) -> None:
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= count)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


async def fill(queue: Queue, count: int) -> None:
    """Publish `count` messages one after another."""
    for number in range(count):
        await queue.publish(b"%d" % number)


async def is_empty(client: Client, name: str) -> bool:
    """Publish a message and return whether it is the first to arrive, which means that the queue was empty."""
    await client.queue(name).publish(b"end")
    async with client.queue(name).consume() as messages:
        message = await anext(messages)
        await message.ack()
        return message.payload == b"end"


async def test_a_handler_that_returns_acknowledges(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    await fill(queue, 5)
    seen = Seen()
    async with working(queue, seen.add):
        await seen.reached(5)
    assert seen.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert await is_empty(client, name)


async def test_at_most_concurrency_handlers_run(connect: Connect, name: str) -> None:
    queue = connect().queue(name)
    await fill(queue, 9)
    running = highest = 0
    seen = Seen()

    async def handle(message: Message) -> None:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0.01)
        running -= 1
        await seen.add(message)

    async with working(queue, handle, concurrency=3, prefetch=9):
        await seen.reached(9)
    assert highest == 3


async def test_a_function_runs_in_a_thread(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    await fill(queue, 3)
    meeting = threading.Barrier(3, timeout=30)
    names: list[str] = []
    met = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(message: Message) -> None:
        names.append(threading.current_thread().name)
        meeting.wait()
        loop.call_soon_threadsafe(met.set)

    async with working(queue, handle, concurrency=3):
        await met.wait()
    assert len(set(names)) == 3
    assert all(one.startswith("hookmq-worker") for one in names)
    assert await is_empty(client, name)


async def test_what_a_function_returns_is_awaited(connect: Connect, name: str) -> None:
    queue = connect().queue(name)
    await fill(queue, 2)
    seen = Seen()
    async with working(queue, lambda message: seen.add(message)):
        await seen.reached(2)
    assert seen.payloads == [b"0", b"1"]


async def test_a_failed_message_comes_again(
    connect: Connect, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    queue = client.queue(name)
    await fill(queue, 3)
    seen = Seen()
    failed: list[bytes] = []

    async def handle(message: Message) -> None:
        if message.payload == b"1" and message.delivery_count < 3:
            failed.append(message.payload)
            raise RuntimeError("not yet")
        await seen.add(message)

    with caplog.at_level(logging.INFO, "hookmq_queues_client"):
        async with working(queue, handle):
            await seen.reached(3)
    assert failed == [b"1", b"1"]
    assert {message.payload: message.delivery_count for message in seen.messages}[b"1"] == 3
    assert sorted(seen.payloads) == [b"0", b"1", b"2"]
    [first, _] = [r for r in caplog.records if "failed" in r.message]
    assert f"message {name}:1: delivery 1 failed, it is given back" in first.message
    assert first.exc_info is not None
    assert len([r for r in caplog.records if "done in" in r.message]) == 3
    assert await is_empty(client, name)


async def test_others_finish_before_a_failed_message_comes_again(
    connect: Connect, name: str
) -> None:
    client = connect()
    queue = client.queue(name)
    await fill(queue, 2)
    seen = Seen()
    started, failed = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.payload == b"0":
            await started.wait()
            if message.delivery_count == 1:
                failed.set()
                raise RuntimeError("not yet")
        else:
            started.set()
            await failed.wait()
            await asyncio.sleep(0.05)
        await seen.add(message)

    async with working(queue, handle, concurrency=2):
        await seen.reached(2)
    assert [(one.payload, one.delivery_count) for one in seen.messages] == [(b"1", 1), (b"0", 2)]
    assert await is_empty(client, name)


async def test_a_timeout_and_retry_deliver_again(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    await fill(queue, 1)
    seen = Seen()

    async def handle(message: Message) -> None:
        if message.delivery_count == 1:
            await asyncio.sleep(60)
        if message.delivery_count == 2:
            raise Retry(0.01)
        await seen.add(message)

    async with working(queue, handle, timeout=0.1):
        await seen.reached(1)
    assert seen.messages[0].delivery_count == 3


async def test_reject_says_that_the_group_settles_by_puback(
    connect: Connect, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = connect().queue(name)
    await fill(queue, 1)
    seen = Seen()

    async def handle(message: Message) -> None:
        if message.delivery_count == 1:
            raise Reject("no such picture")
        await seen.add(message)

    async with working(queue, handle):
        await seen.reached(1)
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert f"message {name}:0: cannot be rejected" in record.message
    assert record.message.endswith("delivered again: no such picture")


async def test_stop_finishes_what_runs_and_gives_back_the_rest(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    await fill(queue, 5)
    started, finish = asyncio.Event(), asyncio.Event()
    done: list[bytes] = []

    async def handle(message: Message) -> None:
        started.set()
        await finish.wait()
        done.append(message.payload)

    worker = Worker(queue, handle, prefetch=3)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    await asyncio.sleep(0.05)
    assert not running.done()
    finish.set()
    assert await running == 0
    assert done == [b"0"]
    rest = queue.consume()
    assert [(await anext(rest)).payload for _ in range(4)] == [b"1", b"2", b"3", b"4"]


async def test_a_handler_that_takes_too_long_is_cancelled(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    await fill(queue, 1)
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    worker = Worker(queue, handle, grace=0.05)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    assert await running == 1
    assert cancelled.is_set()
    assert (await anext(queue.consume())).delivery_count == 2


async def test_a_cancelled_worker_waits_for_nobody(connect: Connect, name: str) -> None:
    queue = connect().queue(name)
    await fill(queue, 1)
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await asyncio.sleep(60)

    running = asyncio.create_task(Worker(queue, handle).run())
    await started.wait()
    before = time.process_time()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    assert time.process_time() - before < 10
    assert (await anext(queue.consume())).delivery_count == 2


async def test_a_message_that_the_handler_settled_is_left_alone(
    connect: Connect, name: str
) -> None:
    client = connect()
    queue = client.queue(name)
    await fill(queue, 2)
    seen = Seen()

    async def handle(message: Message) -> None:
        await message.ack()
        await seen.add(message)
        raise RuntimeError("after the acknowledgement")

    async with working(queue, handle):
        await seen.reached(2)
    assert [message.delivery_count for message in seen.messages] == [1, 1]
    assert await is_empty(client, name)


async def test_a_refusal_ends_the_worker(connect: Connect) -> None:
    with pytest.raises(UnknownQueue):
        await Worker(connect().queue("nowhere"), print).run()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"concurrency": 3, "prefetch": 2}, "prefetch must be at least concurrency, 3, not 2"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": 1}, "timeout needs a handler that is async def"),
    ],
)
async def test_a_wrong_argument_is_refused(
    connect: Connect, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Worker(connect().queue("full"), print, **options)
