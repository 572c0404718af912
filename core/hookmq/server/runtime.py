"""The core's `Runtime` over a running asyncio or uvloop loop."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from hookmq.logs import LEVELS, write
from hookmq.runtime import Cancel, Done, Promise, Timer


async def _drive(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class AsyncioRuntime:
    """Clock, timers, coroutines, threads, chance and log of one broker on `loop`.

    Log records go to the logger ``hookmq`` with the event's name as the message and as ``record.event`` and its fields
    as ``record.fields``. `threads` bounds the pool of `run_blocking`.
    """

    __slots__ = (
        "_call_later",
        "_call_soon",
        "_context",
        "_logger",
        "_pool",
        "_tasks",
        "loop",
        "now",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        threads: int = 8,
        logger: logging.Logger | None = None,
    ) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.now: Callable[[], float] = time.monotonic
        # The core's calls do not inherit the context of the hook that happened to cause them.
        self._context = copy_context()
        self._call_soon = self.loop.call_soon
        self._call_later = self.loop.call_later
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hookmq")
        self._tasks: set[asyncio.Future[Any]] = set()
        self._logger = logger or logging.getLogger("hookmq")

    def time(self) -> float:
        """Epoch seconds; may jump."""
        return time.time()

    def random(self) -> float:
        """A number in [0, 1)."""
        return random.random()

    def token(self, size: int) -> str:
        """`size` random bytes as lower-case hex, from the operating system."""
        return secrets.token_hex(size)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in the next turn of the loop."""
        if not self.on_loop():
            raise RuntimeError("call_soon() is for the event loop, and this is a thread")
        self._call_soon(call, context=self._context)

    def on_loop(self) -> bool:
        """Whether the caller is on the loop's thread. Before the loop runs every caller is, after its end nobody."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return not (self.loop.is_running() or self.loop.is_closed())

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """As `call_soon`, from any thread. Raises RuntimeError when the loop is closed."""
        self.loop.call_soon_threadsafe(call, context=self._context)

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        """Run `call` once, `delay` seconds from now."""
        if not self.on_loop():
            raise RuntimeError("call_later() is for the event loop, and this is a thread")
        return self._call_later(delay, call, context=self._context)

    def promise(self) -> Promise:
        """A future of the loop."""
        if not self.on_loop():
            raise RuntimeError("promise() is for the event loop, and this is a thread")
        return self.loop.create_future()

    def spawn(self, awaitable: Awaitable[Any], done: Done) -> Cancel:
        """Drive `awaitable` in a task of its own; `done` is told in a later turn, never after the cancel."""
        if not self.on_loop():
            raise RuntimeError("spawn() is for the event loop, and this is a thread")
        task = self.loop.create_task(_drive(awaitable))
        return self._follow(task, done)

    def run_blocking(self, call: Callable[[], Any], done: Done) -> Cancel:
        """Run `call` in the pool. A call that has begun cannot be stopped; after the cancel its result is dropped."""
        if not self.on_loop():
            raise RuntimeError("run_blocking() is for the event loop, and this is a thread")
        return self._follow(self.loop.run_in_executor(self._pool, call), done)

    def _follow(self, future: asyncio.Future[Any], done: Done) -> Cancel:
        # The loop holds only weak references to tasks, so somebody must hold a strong one until the end.
        self._tasks.add(future)
        wanted = True

        def ended(future: asyncio.Future[Any]) -> None:
            self._tasks.discard(future)
            if future.cancelled():
                if wanted:
                    done(None, asyncio.CancelledError("the work was cancelled from outside"))
                return
            error = future.exception()  # also marks it as seen
            if wanted:
                done(None, error) if error is not None else done(future.result(), None)

        def cancel() -> None:
            nonlocal wanted
            wanted = False
            future.cancel()

        future.add_done_callback(ended)
        return cancel

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log `event` with `fields`; costs one comparison when nobody listens at `level`. The field ``traceback`` is an
        exception: the record has it as its `exc_info`."""
        number = LEVELS[level]
        if self._logger.isEnabledFor(number):
            write(self._logger, number, event, fields)

    def logs(self, level: str) -> bool:
        """Whether anybody listens at `level`."""
        return self._logger.isEnabledFor(LEVELS[level])

    async def close(self) -> None:
        """Cancel what runs and let the pool go; calls that have begun end by themselves."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=1)
        self._pool.shutdown(wait=False, cancel_futures=True)
