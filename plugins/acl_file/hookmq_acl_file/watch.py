"""Watching a file of rules: a change is taken whole, or the rules of before stay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookmq.plugin import BrokerHandle, ConfigError, Log, no_log
from hookmq.runtime import Cancel, Runtime, Timer

from hookmq_acl_file.file import Format, Loaded, Stamp, load, stamp_of
from hookmq_acl_file.index import Index


class Watch:
    """Looks at the file every `interval` seconds, in a thread, and tells `changed` the new rules, on the loop.

    A file that somebody writes to is not read: only when it stood still from one look to the next. `look` does not wait
    for that. `stale` tells that the file cannot be used; `taken` and `failed` count changes.
    """

    def __init__(
        self,
        path: Path,
        format: Format,
        interval: float,
        loaded: Loaded,
        changed: Callable[[Index], None],
    ) -> None:
        self.path = path
        self.format = format
        self.interval = interval
        self.stale = False
        self.taken = 0
        self.failed = 0
        self._stamp = loaded.stamp
        self._digest = loaded.digest
        self._moving: Stamp | None = None
        self._refused: Stamp | None = None
        self._told = ""
        self._changed = changed
        self._runtime: Runtime | None = None
        self._log: Log = no_log
        self._timer: Timer | None = None
        self._looking: Cancel | None = None
        self._again = False

    def start(self, broker: BrokerHandle) -> None:
        """Begin."""
        self._runtime = broker.runtime
        self._log = broker.log
        self._wait()

    def stop(self) -> None:
        """End, once and for all."""
        self._runtime = None
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking()

    def look(self) -> None:
        """Look now, and read whatever is there."""
        if self._runtime is None:
            return
        if self._looking is not None:
            self._again = True
            return
        self._refused = self._moving = None
        self._begin(True)

    def _wait(self) -> None:
        if self._runtime is not None and self.interval > 0:
            self._timer = self._runtime.call_later(self.interval, self._due)

    def _due(self) -> None:
        if self._looking is None:
            self._begin(False)
        self._wait()

    def _begin(self, at_once: bool) -> None:
        assert self._runtime is not None
        stamp, moving, refused = self._stamp, self._moving, self._refused

        def read() -> Loaded | Stamp:
            now = stamp_of(self.path)
            if now in (stamp, refused) or (now != moving and not at_once):
                return now
            return load(self.path, self.format)

        self._looking = self._runtime.run_blocking(read, self._read)

    def _read(self, found: Any, error: BaseException | None) -> None:
        self._looking = None
        if isinstance(found, Loaded):
            self._stamp, self._moving, self._refused = found.stamp, None, None
            self._well()
            if found.digest != self._digest:  # touched only: nobody's rights changed
                self._digest = found.digest
                self.taken += 1
                self._changed(found.rules)
        elif isinstance(found, Stamp):
            if found == self._stamp:
                self._moving = None
                self._well()
            elif found != self._refused:
                self._moving = found
        else:
            self._failed(error)
        if self._again:
            self._again = False
            self.look()

    def _well(self) -> None:
        if self.stale:
            self._log("info", "acl.file_good", file=str(self.path))
        self.stale = False
        self._told = ""

    def _failed(self, error: BaseException | None) -> None:
        """Say it once for each mistake: it is met again at every look."""
        self._refused, self._moving = self._moving, None
        text = str(error) if isinstance(error, ConfigError) else repr(error)
        if text != self._told:
            self.failed += 1
            self._told = text
            self._log(
                "error", "acl.file_bad", file=str(self.path), error=text, kept="the rules of before"
            )
        self.stale = True
