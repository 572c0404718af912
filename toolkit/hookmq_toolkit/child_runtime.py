"""The other side of `hookmq_toolkit.child_process`: run the event loop of a process that the broker started."""

import asyncio
import importlib
import importlib.util
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hookmq.plugin import Cancel, Done, Promise, Timer

from hookmq_toolkit.channel import Channel


class ChildRuntime:
    """Implements `hookmq.plugin.Runtime` for the process. `log` receives what it logs."""

    def __init__(self, log: Callable[..., None]) -> None:
        self.loop = loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = time.monotonic
        self.time: Callable[[], float] = time.time
        self.random: Callable[[], float] = random.random
        self.token: Callable[[int], str] = secrets.token_hex
        self.call_soon: Callable[[Callable[[], None]], Any] = loop.call_soon
        self.call_later: Callable[[float, Callable[[], None]], Timer] = loop.call_later
        self.call_threadsafe: Callable[[Callable[[], None]], Any] = loop.call_soon_threadsafe
        self.promise: Callable[[], Promise] = loop.create_future
        self.log = log
        self._tasks: set[asyncio.Future[Any]] = set()

    def on_loop(self) -> bool:
        """Return whether the caller runs on the loop's thread."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def logs(self, level: str) -> bool:
        """Return True: the broker decides what is logged."""
        return True

    def spawn(self, awaitable: Awaitable[Any], done: Done) -> Cancel:
        """Run `awaitable` in a task; see `Runtime.spawn`."""
        return self._follow(asyncio.ensure_future(awaitable), done)

    def run_blocking(self, call: Callable[[], Any], done: Done) -> Cancel:
        """Run `call` in a thread; see `Runtime.run_blocking`."""
        return self._follow(self.loop.run_in_executor(None, call), done)

    def _follow(self, future: "asyncio.Future[Any]", done: Done) -> Cancel:
        self._tasks.add(future)
        wanted = True

        def ended(future: "asyncio.Future[Any]") -> None:
            self._tasks.discard(future)
            if future.cancelled():
                if wanted:
                    done(None, asyncio.CancelledError("the work was cancelled from outside"))
                return
            error = future.exception()
            if wanted:
                done(None, error) if error is not None else done(future.result(), None)

        def cancel() -> None:
            nonlocal wanted
            wanted = False
            future.cancel()

        future.add_done_callback(ended)
        return cancel


def run_child(make: Callable[[], Channel]) -> None:
    """Serve the channel that the broker passed to this process, and exit when it closes. `make` is called on the event
    loop. This function does not return.

    The process exits at once, so what it must store has to be stored before the broker closes the channel.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the broker handles signals to the process group. It ends this process by closing the channel.
        signal.signal(number, signal.SIG_IGN)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(
            make, sock=socket.socket(fileno=int(sys.argv[1]))
        )
        await channel.closed

    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve())
        os._exit(0)  # the runner would wait for requests in progress and for threads


__all__ = ["ChildRuntime", "run_child"]
