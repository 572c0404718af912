"""What the core needs from the world: time, turns of the loop, coroutines, threads, chance and a log; and what it
needs of one connection's transport. Only protocols: the shell implements them over asyncio, the testing kit over a
virtual clock.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol

Done = Callable[[Any, BaseException | None], None]
"""Completion of asynchronous work: (result, None) or (None, error). Called once, on the loop, never after a cancel."""
Cancel = Callable[[], None]
"""Stops work whose result nobody wants any more; harmless when it has ended."""


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Make sure that it never runs; harmless when it has."""


class Promise(Protocol):
    """An awaitable whose result somebody else gives; `asyncio.Future` is one."""

    def __await__(self) -> Generator[Any, Any, Any]: ...

    def done(self) -> bool:
        """Whether it has a result, an exception or was cancelled."""

    def set_result(self, result: Any, /) -> None:
        """Give the result; once."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Give the exception that awaiting raises; once."""


class Runtime(Protocol):
    """Clock, timers, coroutines, threads, chance and log of one broker. Any thread may call `on_loop`,
    `call_threadsafe`, `now`, `time`, `log` and `logs`. The others raise RuntimeError off the event loop's thread, except
    `random` and `token`, which must not be called there."""

    def now(self) -> float:
        """Monotonic seconds."""

    def time(self) -> float:
        """Epoch seconds; may jump."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def token(self, size: int) -> str:
        """`size` random bytes as lower-case hex; unguessable outside tests."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` once at the end of this turn or in the next, in the order of the requests; in a context
        (`contextvars`) of the runtime's own, not the caller's."""

    def on_loop(self) -> bool:
        """Whether the caller is on the event loop's thread."""

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """As `call_soon`, from any thread. Calls of one thread keep their order. Raises RuntimeError when the loop is
        closed."""

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        """Run `call` once, `delay` seconds from now, in a context of the runtime's own."""

    def promise(self) -> Promise:
        """A result to be awaited by a coroutine that `spawn` drives, and given later."""

    def spawn(self, awaitable: Awaitable[Any], done: Done) -> Cancel:
        """Drive `awaitable` to its end, in a copy of the caller's context, and tell `done`, always in a later turn than
        this call."""

    def run_blocking(self, call: Callable[[], Any], done: Done) -> Cancel:
        """Run `call` in a bounded pool of threads and tell `done` on the loop, always in a later turn than this call."""

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log `event` (a stable dotted name such as ``client.connected``) at `level`: ``debug``, ``info``, ``warning`` or
        ``error``. `fields` never hold payloads or secrets. The field ``traceback``, if given, is an exception: its
        traceback is logged."""

    def logs(self, level: str) -> bool:
        """Whether anybody reads what is logged at `level`; where nobody does, its fields need not be made."""


class Wire(Protocol):
    """The transport under one connection. No call blocks or raises, also after the end."""

    def write(self, data: bytes) -> None:
        """Send `data` after all that was written before."""

    def close(self) -> None:
        """Send what was written, then close."""

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""

    def pause_reading(self) -> None:
        """Stop calling `feed`; harmless when paused."""

    def resume_reading(self) -> None:
        """Undo `pause_reading`; harmless when not paused."""
