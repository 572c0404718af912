"""Live reload: the file is looked at now and then, and read when it has come to rest."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hookmq.errors import HookMQError
from hookmq.runtime import Runtime, Timer

from hookmq_auth_password.files import Stamp, stamp


class Watch:
    """Tells `took` what `load` made of a changed file, and `failed` why it cannot be used, once for each state it is in.

    A file that changes is read when two looks in a row find it the same: a writer that truncates it first is not caught
    half-way. All methods are for the loop's thread; files are looked at in the runtime's threads.
    """

    def __init__(
        self,
        runtime: Runtime,
        path: Path,
        interval: float,
        loaded: Stamp,
        load: Callable[[], tuple[Stamp, Any]],
        took: Callable[[Any], None],
        failed: Callable[[str], None],
        each: Callable[[Callable[[], None]], None],
    ) -> None:
        self._runtime = runtime
        self._path = path
        self._interval = interval
        self.loaded = loaded
        """The state that was read last."""
        self._seen: Stamp | None = loaded
        self._refused: Stamp | None = None
        self._missing = ""
        self._load = load
        self._took = took
        self._failed = failed
        self._each = each
        self._timer: Timer | None = None
        self._stopped = False
        self._again()

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        if self._interval > 0 and not self._stopped:
            self._timer = self._runtime.call_later(self._interval, self._tick)

    def _tick(self) -> None:
        # What else is to be done at every look comes first: it may write the file.
        self._each(self._look)

    def _look(self) -> None:
        if not self._stopped:
            self._runtime.run_blocking(partial(stamp, self._path), self._looked)

    def _looked(self, found: Stamp | None, error: BaseException | None) -> None:
        if self._stopped:
            return
        if error is not None or found is None:
            self._seen = None
            self._lost(getattr(error, "strerror", None) or str(error))
            self._again()
            return
        if found == self.loaded and (self._missing or self._refused is not None):
            # It is back as it was; it is read again, so that this is told.
            self._missing, self._refused, self._seen = "", None, None
            self.loaded = Stamp(0, 0, 0, 0)
        rested = found == self._seen
        self._seen = found
        if not rested or found in (self.loaded, self._refused):
            self._again()
            return
        self.read(self._again)

    def _lost(self, why: str) -> None:
        if why != self._missing:
            self._missing = why
            self._failed(f"{self._path}: {why}")

    def read(self, then: Callable[[], None]) -> None:
        """Read the file now, whatever state it is in, and go on with `then`."""
        self._runtime.run_blocking(self._load, partial(self._read, then))

    def _read(self, then: Callable[[], None], found: Any, error: BaseException | None) -> None:
        if self._stopped:
            then()
            return
        if error is None:
            self._missing, self._refused = "", None
            self.loaded, made = found
            self._seen = self.loaded
            self._took(made)
        else:
            self._refused = self._seen
            # Only our own errors are known to say nothing of what is in the file.
            told = str(error) if isinstance(error, HookMQError) else type(error).__name__
            self._failed(told)
        then()
