"""The core's environment: time, timers, coroutines, threads, random numbers, logs and transports.

This module only defines protocols. The server implements them with asyncio, the testing kit with a virtual clock.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol

Done = Callable[[Any, BaseException | None], None]
"""Called when asynchronous work ends, with (result, None) or (None, error). It is called once, on the event loop, and
not at all after a cancellation."""
Cancel = Callable[[], None]
"""Cancels work. Does nothing if the work has already ended."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing if it already ran."""


class Promise(Protocol):
    """An awaitable whose result other code sets, such as an `asyncio.Future`."""

    def __await__(self) -> Generator[Any, Any, Any]: ...

    def done(self) -> bool:
        """Return whether the promise has a result or an exception, or was cancelled."""

    def set_result(self, result: Any, /) -> None:
        """Set the result. Call it once."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Set the exception that awaiting raises. Call it once."""


class Runtime(Protocol):
    """The clock, timers, coroutines, threads, random numbers and log of one broker.

    Any thread may call `on_loop`, `call_threadsafe`, `now`, `time`, `log` and `logs`. Call `random` and `token` only
    on the event loop. All other methods raise RuntimeError if called from another thread.
    """

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def time(self) -> float:
        """Return the current time in epoch seconds. It may jump."""

    def random(self) -> float:
        """Return a random number in [0, 1)."""

    def token(self, size: int) -> str:
        """Return `size` random bytes as lower-case hex. They are cryptographically secure, except in tests."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` once, at the end of this turn or in the next. Calls run in order, in the runtime's own
        `contextvars` context."""

    def on_loop(self) -> bool:
        """Return whether the caller is running on the event loop's thread."""

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """Schedule `call` like `call_soon`, from any thread. Calls from the same thread run in order. Raises
        RuntimeError if the loop is closed."""

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        """Run `call` once after `delay` seconds, in the runtime's own `contextvars` context."""

    def promise(self) -> Promise:
        """Return a new promise, for use in a coroutine that `spawn` runs."""

    def spawn(self, awaitable: Awaitable[Any], done: Done) -> Cancel:
        """Run `awaitable` in a copy of the caller's `contextvars` context. `done` is called in a later turn, never
        during this call."""

    def run_blocking(self, call: Callable[[], Any], done: Done) -> Cancel:
        """Run `call` in a bounded thread pool. `done` is called on the event loop in a later turn."""

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log `event`, a stable dotted name such as ``client.connected``.

        `level` is ``debug``, ``info``, ``warning`` or ``error``. Never put payloads or secrets in `fields`. If the
        field ``traceback`` is an exception, its traceback is logged.
        """

    def logs(self, level: str) -> bool:
        """Return whether events at `level` are logged. If not, callers need not compute their fields."""


class Wire(Protocol):
    """The transport of one connection. No method blocks or raises, even after the connection has closed."""

    def write(self, data: bytes) -> None:
        """Send `data` after all data written earlier."""

    def close(self) -> None:
        """Send all data written earlier, then close the connection."""

    def abort(self) -> None:
        """Close the connection at once. Unsent data is lost."""

    def pause_reading(self) -> None:
        """Stop calling `feed`. Does nothing if reading is already paused."""

    def resume_reading(self) -> None:
        """Resume reading after `pause_reading`. Does nothing if reading is not paused."""
