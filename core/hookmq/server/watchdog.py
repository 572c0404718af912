"""Notices a blocked event loop and says who blocks it.

The loop beats 20 times a second; a thread looks whether it does. When the beat is late the thread takes the stack of the
loop's thread, and once the loop is back (or after a few seconds, if it is not) it is logged as ``loop.blocked``. Nothing
is paid per message.
"""

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import PurePath
from types import FrameType
from typing import Final, NamedTuple

from hookmq.hooks.entry import PluginInstance
from hookmq.metrics import Metrics

BEAT: Final = 0.05
DEPTH: Final = 40
"""Innermost frames kept of a stack."""

Owner = Callable[[str], str | None]
"""The id of the plugin a source file belongs to, or None."""


class Blocked(NamedTuple):
    """Where the loop stood: the innermost frame of a plugin, else the innermost at all."""

    plugin: str
    """Its id."""
    file: str
    line: int
    function: str
    stack: tuple[str, ...]
    """``file:line function``, innermost first."""


def plugin_package(file: str) -> str | None:
    """The package or module of a plugin whose id is not known, by the convention that it is called ``hookmq_NAME``."""
    parts = PurePath(file).parts
    found = next((part for part in reversed(parts) if part.startswith("hookmq_")), None)
    return found and found.removesuffix(".py")


def owner_among(plugins: Iterable[PluginInstance]) -> Owner:
    """An `Owner` that knows the ids of `plugins`, several joined by commas if they share their code."""
    homes: dict[str, list[str]] = {}
    for one in plugins:
        home = _home(type(one.plugin))
        if home:
            homes.setdefault(home, []).append(one.id)

    def owner(file: str) -> str | None:
        for home, ids in homes.items():
            if file == home or (home.endswith("/") and file.startswith(home)):
                return ", ".join(ids)
        return plugin_package(file)

    return owner


def _home(kind: type) -> str:
    """The folder, with a slash behind it, or the file that holds a plugin's code; empty if it is not known."""
    package = kind.__module__.partition(".")[0]
    if package == "hookmq":
        return ""
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None:
        try:
            file = inspect.getfile(kind)
        except (TypeError, OSError):
            return ""
    return file.removesuffix("__init__.py")


def blocked_at(frame: FrameType | None, owner: Owner = plugin_package) -> Blocked:
    """What `frame`, the innermost of the loop's thread, says of who blocks it."""
    stack: list[str] = []
    top = culprit = None
    while frame is not None and len(stack) < DEPTH:
        code = frame.f_code
        place = (code.co_filename, frame.f_lineno, code.co_qualname)
        stack.append(f"{place[0]}:{place[1]} {place[2]}")
        top = top or ("", *place)
        if culprit is None and (plugin := owner(code.co_filename)):
            culprit = (plugin, *place)
        frame = frame.f_back
    return Blocked(*(culprit or top or ("", "", 0, "")), tuple(stack))


class Watchdog:
    """Watches the running loop from `start` to `stop`. A turn longer than `limit` seconds is counted in `metrics` and
    logged; one longer than `stuck` is logged while it lasts as well (``loop.stuck``, from the thread)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        log: Callable[..., None],
        *,
        limit: float = 0.1,
        stuck: float = 5.0,
        owner: Owner = plugin_package,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self._limit = limit
        self._stuck = stuck
        self.owner = owner
        self._beaten = 0.0
        self._found: Blocked | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = 0

    def start(self) -> None:
        """Begin, on the loop's thread."""
        self._watched = threading.get_ident()
        self._beaten = time.monotonic()
        self._timer = self._loop.call_later(BEAT, self._beat)
        self._thread = threading.Thread(target=self._watch, name="hookmq-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; harmless when it never began."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _beat(self) -> None:
        now = time.monotonic()
        late = now - self._beaten - BEAT
        self._beaten = now
        self._timer = self._loop.call_later(BEAT, self._beat)
        found, self._found = self._found, None
        if late > self._limit:
            self._metrics.watchdog_blocked += 1
            self._tell("warning", "loop.blocked", late, found)

    def _tell(self, level: str, event: str, seconds: float, found: Blocked | None) -> None:
        where = found or Blocked("", "", 0, "", ())
        self._log(level, event, seconds=round(seconds, 3), **where._asdict())

    def _watch(self) -> None:
        told = seen = (
            0.0  # the beat that was late, when it was logged as stuck and when its stack was taken
        )
        while not self._stopped.wait(BEAT):
            beaten = self._beaten
            late = time.monotonic() - beaten - BEAT
            if late <= self._limit / 2:  # half, so that the stack is there when the limit is passed
                continue
            if seen != beaten:
                found = blocked_at(sys._current_frames().get(self._watched), self.owner)
                if self._beaten == beaten:  # else it was on its way again
                    self._found, seen = found, beaten
            if late > self._stuck and told != beaten:
                told = beaten
                self._tell("error", "loop.stuck", late, self._found)
