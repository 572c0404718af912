"""A worker, which calls a function with each message in a queue and settles the message depending on the result."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from hookmq_queues_client.client import Queue
from hookmq_queues_client.consumer import Consumer
from hookmq_queues_client.errors import Refused
from hookmq_queues_client.message import Message
from hookmq_queues_client.options import Backoff

log: Final = logging.getLogger("hookmq_queues_client.worker")
BACKOFF: Final = Backoff(1.0, 2.0, 300.0)
Handler = Callable[[Message], Awaitable[object] | object]


class Reject(Exception):
    """Raise this in a handler if a message can never be processed. The message then becomes a dead letter at once."""


class Retry(Exception):
    """Raise this in a handler if a message should be redelivered after `delay` seconds, at least 0."""

    def __init__(self, delay: float, reason: str = "") -> None:
        if delay < 0:
            raise ValueError(f"delay must be at least 0 seconds, not {delay}")
        self.delay = delay
        super().__init__(reason or f"again in {delay:g} s")


class Worker:
    """Calls `handler` with each message for a group of `queue`, `concurrency` messages at a time.

    A handler is an ``async def``, or a function that runs in a thread. If it returns, the message is acknowledged. If
    it raises Reject, the message is rejected. If it raises another exception, or takes longer than `timeout` seconds,
    the message is redelivered after `backoff`; None means the group's backoff. After `retries` redeliveries, it is
    rejected. Without `retries`, the queue's `delivery_limit` decides.

    In a group that settles by PUBACK, a message goes back only when the connection ends. After a failure, the worker
    waits for the other handlers, then reconnects after `backoff`. It cannot reject messages.

    `prefetch` is how many messages this worker may have at most; by default, `concurrency`. Raises ValueError for an
    invalid argument.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        *,
        group: str | None = None,
        concurrency: int = 1,
        prefetch: int | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: Backoff | None = BACKOFF,
        grace: float = 30.0,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        if prefetch is not None and prefetch < concurrency:
            raise ValueError(
                f"prefetch must be at least concurrency, {concurrency}, not {prefetch}"
            )
        if retries is not None and retries < 0:
            raise ValueError(f"retries must be at least 0, not {retries}")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout must be above 0 seconds, not {timeout}")
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004  an object with an async __call__
        )
        if timeout is not None and not self._is_async:
            raise ValueError(
                "timeout needs a handler that is async def, because a thread cannot be stopped"
            )
        self._queue = queue
        self._handler = handler
        self._group = group
        self._concurrency = concurrency
        self._prefetch = prefetch or concurrency
        self._timeout = timeout
        self._retries = retries
        self._backoff = backoff
        self._grace = grace
        self._stopping = asyncio.Event()
        self._room = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._giving_back: asyncio.Task[None] | None = None
        self._consumer: Consumer | None = None
        self._threads: ThreadPoolExecutor | None = None

    def stop(self) -> None:
        """Take no more messages. `run` returns once the handlers have returned, or after `grace` seconds. Call this
        only on the event loop, such as in a signal handler.
        """
        self._stopping.set()

    async def run(self) -> int:
        """Process messages until `stop` is called. Return the number of handlers that did not return within `grace`
        seconds. These handlers were cancelled, and their messages went back to the queue. Threads keep running. Raises
        the same errors as iterating over a Consumer.
        """
        if not self._is_async:
            self._threads = ThreadPoolExecutor(self._concurrency, "hookmq-worker")
        consumer = self._consumer = self._queue.consume(group=self._group, prefetch=self._prefetch)
        stopping = asyncio.create_task(self._stop(consumer))
        try:
            async with consumer:
                try:
                    await self._take(consumer)
                    return await self._finish(self._grace)
                except BaseException:
                    await self._finish(0)
                    raise
        finally:
            stopping.cancel()
            if self._giving_back is not None:
                self._giving_back.cancel()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    async def _stop(self, consumer: Consumer) -> None:
        await self._stopping.wait()
        self._may_start.set()
        self._room.release()
        await consumer.stop()

    async def _take(self, consumer: Consumer) -> None:
        """Start a handler for each message until the worker stops."""

        def done(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            self._room.release()

        while True:
            await self._room.acquire()
            message = await anext(consumer, None)
            if message is not None:
                await self._may_start.wait()
            if message is None or self._stopping.is_set():
                return
            if message.lost:
                self._room.release()
                continue
            task = asyncio.create_task(self._process(message))
            self._running.add(task)
            task.add_done_callback(done)

    async def _finish(self, grace: float) -> int:
        """Wait for the handlers. Cancel those that take longer than `grace` seconds, and return their number."""
        if not self._running:
            return 0
        log.info("waiting for %d handlers, at most %g s", len(self._running), grace)
        _, late = await asyncio.wait(self._running, timeout=grace)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        return len(late)

    # one message -----------------------------------------------------------------------------------------------------

    async def _process(self, message: Message) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._timeout):
                await self._call(message)
        except asyncio.CancelledError:
            log.warning("message %s: cancelled, it goes back to the queue", message.id)
            raise
        except Reject as error:
            await self._reject(message, _sendable(str(error)))
        except Exception as error:
            await self._fail(message, error)
        else:
            if not message.settled and await self._settle(message, message.ack()):
                log.info("message %s: done in %.3f s", message.id, clock() - began)

    async def _call(self, message: Message) -> None:
        loop = asyncio.get_running_loop()
        result: Any
        if self._threads is None:
            result = self._handler(message)
        else:
            result = await loop.run_in_executor(self._threads, self._handler, message)
        if inspect.isawaitable(result):
            await result

    async def _fail(self, message: Message, error: Exception) -> None:
        reason = _sendable(f"{type(error).__name__}: {error}")
        if self._retries is not None and message.delivery_count > self._retries:
            log.error("message %s: failed for the last time", message.id, exc_info=error)
            await self._reject(message, reason)
            return
        retry = error if isinstance(error, Retry) else None
        log.warning(
            "message %s: delivery %d failed, it is given back: %s", message.id, message.delivery_count, reason,
            exc_info=None if retry else error,
        )  # fmt: skip
        if message.settled:
            return
        delay = retry.delay if retry else self._delay(message)
        if message.explicit:
            await self._settle(message, message.nack(delay=delay, reason=reason))
        else:
            self._give_back(delay)

    def _delay(self, message: Message) -> float | None:
        return None if self._backoff is None else self._backoff.delay(message.delivery_count)

    async def _reject(self, message: Message, reason: str) -> None:
        if message.settled:
            return
        if message.explicit:
            if await self._settle(message, message.reject(reason=reason)):
                log.warning("message %s: rejected: %s", message.id, reason)
            return
        log.error(
            "message %s: cannot be rejected, because the group %s settles by PUBACK; it is delivered again: %s",
            message.id, message.group, reason,
        )  # fmt: skip
        self._give_back(self._delay(message))

    async def _settle(self, message: Message, settling: Awaitable[bool]) -> bool:
        try:
            if await settling:
                return True
            log.warning("message %s: the connection has ended, it is delivered again", message.id)
        except Refused as error:
            log.warning("message %s: %s", message.id, error)
        return False

    def _give_back(self, delay: float | None) -> None:
        """Give back unsettled messages by reconnecting, once the running handlers have returned."""
        if self._giving_back is None or self._giving_back.done():
            self._may_start.clear()
            self._giving_back = asyncio.create_task(self._connect_again(delay or 0.0))

    async def _connect_again(self, delay: float) -> None:
        assert self._consumer is not None
        if self._running:
            await asyncio.wait(self._running)
        if not self._stopping.is_set():
            await self._consumer.reconnect(delay)
        self._may_start.set()


def _sendable(reason: str) -> str:
    """Return the start of a reason, without characters that MQTT and logs cannot carry. A reason may quote part of a
    message."""
    return reason[:200].replace("\0", "\\0").encode(errors="backslashreplace").decode()[:256]
