"""The core's `Runtime`, implemented on a running asyncio or uvloop loop."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from hookmq.model.runtime import Cancel, Done, Promise, Timer
from hookmq.server.logs import LEVELS, write


async def _drive(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class _Job:
    """A call in the thread pool. It needs no asyncio future, because that would double its cost on the loop."""

    __slots__ = ("_call", "_done", "_runtime", "future")

    def __init__(self, runtime: "AsyncioRuntime", call: Callable[[], Any], done: Done) -> None:
        self._runtime = runtime
        self._call = call
        self._done: Done | None = done
        self.future: Future[None] | None = None
        """The job in the pool."""

    def run(self) -> None:
        """Run the call. This runs in a thread of the pool."""
        result: Any = None
        failed: BaseException | None = None
        try:
            result = self._call()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._runtime.call_threadsafe(partial(self.end, result, failed))

    def end(self, result: Any, error: BaseException | None) -> None:
        """Call `done`, unless it was called or the job was cancelled."""
        self._runtime._jobs.discard(self)
        done, self._done = self._done, None
        if done is not None:
            done(result, error)

    def cancel(self) -> None:
        """Drop the result, and do not start the call if it is still waiting."""
        self._done = None
        if self.future is not None and self.future.cancel():
            self._runtime._jobs.discard(self)


class AsyncioRuntime:
    """Gives one broker a clock, timers, coroutines, threads, random numbers and a log, all on `loop`.

    Log records go to the ``hookmq`` logger. The event name is both the message and ``record.event``; the event's fields
    are in ``record.fields``. `threads` limits the thread pool of `run_blocking`.
    """

    __slots__ = (
        "_call_later", "_call_soon", "_context", "_jobs", "_logger", "_pool", "_tasks", "loop", "now",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        threads: int = 8,
        logger: logging.Logger | None = None,
    ) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.now: Callable[[], float] = time.monotonic
        # Calls from the core must not inherit the context of the hook that triggered them.
        self._context = copy_context()
        self._call_soon = self.loop.call_soon
        self._call_later = self.loop.call_later
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hookmq")
        self._tasks: set[asyncio.Future[Any]] = set()
        self._jobs: set[_Job] = set()
        """The calls of `run_blocking` that have not ended."""
        self._logger = logger or logging.getLogger("hookmq")

    def time(self) -> float:
        """Return seconds since the epoch. The clock may jump."""
        return time.time()

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        return random.random()

    def token(self, size: int) -> str:
        """Return `size` random bytes from the operating system as lower-case hex."""
        return secrets.token_hex(size)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in the next turn."""
        self._need_loop("call_soon")
        self._call_soon(call, context=self._context)

    def on_loop(self) -> bool:
        """Return whether the caller runs on the loop's thread. The result is always True before the loop runs, and False
        once the loop has closed.
        """
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return not (self.loop.is_running() or self.loop.is_closed())

    def _need_loop(self, what: str) -> None:
        if not self.on_loop():
            raise RuntimeError(f"{what}() is for the event loop, and this is a thread")

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """Run `call` in the next turn. Any thread may call this. Raises RuntimeError if the loop is closed."""
        self.loop.call_soon_threadsafe(call, context=self._context)

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        """Run `call` once, `delay` seconds from now."""
        self._need_loop("call_later")
        return self._call_later(delay, call, context=self._context)

    def promise(self) -> Promise:
        """Return a new future on the loop."""
        self._need_loop("promise")
        return self.loop.create_future()

    def spawn(self, awaitable: Awaitable[Any], done: Done) -> Cancel:
        """Run `awaitable` in a task and call `done` in a later turn, unless the task is cancelled."""
        self._need_loop("spawn")
        return self._follow(self.loop.create_task(_drive(awaitable)), done)

    def run_blocking(self, call: Callable[[], Any], done: Done) -> Cancel:
        """Run `call` in the thread pool. Cancelling drops the result, but does not stop a call that has started."""
        self._need_loop("run_blocking")
        job = _Job(self, call, done)
        self._jobs.add(job)
        job.future = self._pool.submit(job.run)
        return job.cancel

    def _follow(self, future: asyncio.Future[Any], done: Done) -> Cancel:
        # The loop holds only weak references to tasks, so keep a strong one until the task ends.
        self._tasks.add(future)
        wanted = True

        def ended(future: asyncio.Future[Any]) -> None:
            self._tasks.discard(future)
            if future.cancelled():
                if wanted:
                    done(None, asyncio.CancelledError("the work was cancelled from outside"))
                return
            error = future.exception()  # also marks the exception as retrieved
            if wanted:
                done(None, error) if error is not None else done(future.result(), None)

        def cancel() -> None:
            nonlocal wanted
            wanted = False
            future.cancel()

        future.add_done_callback(ended)
        return cancel

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log `event` with `fields`; cheap if `level` is disabled. An exception in the ``traceback`` field becomes
        `exc_info`."""
        number = LEVELS[level]
        if self._logger.isEnabledFor(number):
            write(self._logger, number, event, fields)

    def logs(self, level: str) -> bool:
        """Return whether records of `level` are logged."""
        return self._logger.isEnabledFor(LEVELS[level])

    async def close(self) -> None:
        """Cancel all tasks and shut down the thread pool, without waiting for blocking calls that have started."""
        for task in tuple(self._tasks):
            task.cancel()
        for job in tuple(self._jobs):
            job.end(None, asyncio.CancelledError("the work was cancelled from outside"))
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=1)
        self._pool.shutdown(wait=False, cancel_futures=True)
