"""An alarm that is accurate to about 50 microseconds, on kernels whose timers an event loop can wait for (Linux).

Event-loop timers are accurate only to a millisecond. At a fixed rate, that error would be counted as the broker's
latency.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from hookmq_bench.plan import SECOND

_ABSOLUTE: Final = 1
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC if sys.platform != "win32" else 0


class _Spec(ctypes.Structure):
    """The C struct `itimerspec`: an interval, always 0 here, and an expiry time."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "s", "ns")]


def _library() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    return library if hasattr(library, "timerfd_create") else None


class Alarm:
    """Calls `callback` from the event loop at the time passed to `set`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], precise: bool = True
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        self._library: Any = _library() if precise else None
        if self._library is not None:
            self._fd = self._library.timerfd_create(time.CLOCK_MONOTONIC, _FLAGS)
            if self._fd >= 0:
                loop.add_reader(self._fd, self._ring)

    @property
    def precise(self) -> bool:
        """Whether the alarm uses the kernel's timer."""
        return self._fd >= 0

    def set(self, at: int) -> None:
        """Set the alarm to `at`, in `time.monotonic_ns` nanoseconds. Replaces any earlier time."""
        if self._fd >= 0:
            spec = _Spec(0, 0, *divmod(max(at, 1), SECOND))
            self._library.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        delay = (at - time.monotonic_ns()) / SECOND
        self._handle = self._loop.call_later(max(0.0, delay), self._callback)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the alarm has been set again
            os.read(self._fd, 8)
            self._callback()

    def close(self) -> None:
        """Cancel the alarm for good."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
