"""Detect a blocked event loop, and log the code that blocks it.

A timer on the loop beats 20 times a second, and a thread checks the beats. If one is late, the thread captures the stack
of the loop's thread. The stack is logged as ``loop.blocked`` once the loop continues, or as ``loop.stuck`` after a few
seconds. The watchdog adds no cost per message.
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

from hookmq.hooks.instance import PluginInstance
from hookmq.model.metrics import Metrics
from hookmq.plugin import Plugin

BEAT: Final = 0.05
DEPTH: Final = 40
"""How many frames of a stack are captured, innermost first."""

CodeOwner = Callable[[str], str | None]
"""Returns the id of the plugin that contains a source file, or None."""


class BlockedLoop(NamedTuple):
    """The place where the loop is blocked: the innermost frame in a plugin or, if there is none, the innermost frame of
    all.
    """

    plugin: str
    """The plugin id."""
    file: str
    line: int
    function: str
    stack: tuple[str, ...]
    """``file:line function``, innermost first."""


def plugin_package(file: str) -> str | None:
    """Return the package that contains `file`, for a plugin whose id is unknown. Plugin packages are ``hookmq_NAME``."""
    parts = PurePath(file).parts
    found = next((part for part in reversed(parts) if part.startswith("hookmq_")), None)
    return found and found.removesuffix(".py")


def owner_among(plugins: Iterable[PluginInstance]) -> CodeOwner:
    """Return a `CodeOwner` for `plugins`. If several plugins share their code, the result contains all their ids,
    separated by commas.
    """
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
    """Return the folder that contains a plugin's code, with a trailing slash, or the path of a single-file plugin. Return
    '' if unknown.
    """
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


def blocked_at(frame: FrameType | None, owner: CodeOwner = plugin_package) -> BlockedLoop:
    """Return where the loop is blocked. `frame` is the innermost frame of the loop's thread.

    If several plugins share the code, the plugin is identified by the innermost frame whose ``self`` is a plugin object.
    """
    stack: list[str] = []
    top = culprit = None
    acting = ""
    while frame is not None and len(stack) < DEPTH:
        code = frame.f_code
        place = (code.co_filename, frame.f_lineno, code.co_qualname)
        stack.append(f"{place[0]}:{place[1]} {place[2]}")
        top = top or ("", *place)
        plugin = owner(code.co_filename)
        if culprit is None and plugin:
            culprit = (plugin, *place)
        if plugin and not acting and isinstance(self := frame.f_locals.get("self"), Plugin):
            acting = self.id
        frame = frame.f_back
    if culprit is not None and acting in culprit[0].split(", "):
        culprit = (acting, *culprit[1:])
    return BlockedLoop(*(culprit or top or ("", "", 0, "")), tuple(stack))


class LoopWatchdog:
    """Watches the running loop from `start` to `stop`.

    A turn longer than `limit` seconds is counted in `metrics` and logged. If a turn takes longer than `stuck` seconds,
    the thread also logs ``loop.stuck`` during the turn.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        log: Callable[..., None],
        *,
        limit: float = 0.1,
        stuck: float = 5.0,
        owner: CodeOwner = plugin_package,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self._limit = limit
        self._stuck = stuck
        self.owner = owner
        self._beaten = 0.0
        self._found: BlockedLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = 0

    def start(self) -> None:
        """Start watching. Call it on the loop's thread."""
        self._watched = threading.get_ident()
        self._beaten = time.monotonic()
        self._timer = self._loop.call_later(BEAT, self._beat)
        self._thread = threading.Thread(target=self._watch, name="hookmq-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. The call is harmless if the watchdog was never started."""
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
        self._metrics.loop_lag.add(max(0.0, late))
        self._timer = self._loop.call_later(BEAT, self._beat)
        found, self._found = self._found, None
        if late > self._limit:
            self._metrics.watchdog_blocked += 1
            self._tell("warning", "loop.blocked", late, found)

    def _tell(self, level: str, event: str, seconds: float, found: BlockedLoop | None) -> None:
        where = found or BlockedLoop("", "", 0, "", ())
        self._log(level, event, seconds=round(seconds, 3), **where._asdict())

    def _watch(self) -> None:
        told = seen = 0.0  # the late beats already logged as stuck, and already captured
        while not self._stopped.wait(BEAT):
            beaten = self._beaten
            late = time.monotonic() - beaten - BEAT
            if late <= self._limit / 2:  # half, to capture the stack before the limit is exceeded
                continue
            if seen != beaten:
                found = blocked_at(sys._current_frames().get(self._watched), self.owner)
                if self._beaten == beaten:  # otherwise the loop has continued
                    self._found, seen = found, beaten
            if late > self._stuck and told != beaten:
                told = beaten
                self._tell("error", "loop.stuck", late, self._found)
