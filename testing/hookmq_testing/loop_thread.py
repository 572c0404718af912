"""An event loop in a thread, so that blocking tests can use `AsyncioClient`."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from hookmq_testing.asyncio_client import WAIT

T = TypeVar("T")


class LoopThread:
    """A running event loop. As a context manager, it cancels all running tasks and ends the loop on exit.

    with LoopThread() as thread:
        client = thread.run(AsyncioClient("one").connect(port))
        thread.call(client.send_publish, "greetings/all", b"hello", 1)
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="hookmq-testing", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float = 2 * WAIT) -> T:
        """Run a coroutine on the loop, wait for it, and return its result. Raises the coroutine's exception, or
        TimeoutError.
        """
        future = self.start(coroutine)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine on the loop without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a function on the loop, wait for it, and return its result. Raises the function's exception."""

        async def called() -> T:
            return function(*arguments, **named)

        return self.run(called())

    def close(self) -> None:
        """Cancel all running tasks, and end the loop and its thread."""
        if self._loop.is_closed():
            return
        self.run(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
