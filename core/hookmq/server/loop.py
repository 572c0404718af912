"""Which event loop runs the broker."""

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, Literal

LoopKind = Literal["auto", "asyncio", "uvloop"]


def loop_factory(kind: LoopKind = "auto") -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a loop of `kind`. ``auto`` is uvloop where it is installed, else asyncio.

    Raises ImportError when uvloop is asked for and not installed.
    """
    if kind == "asyncio" or (kind == "auto" and find_spec("uvloop") is None):
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, Any], kind: LoopKind = "auto") -> Any:
    """Run `main` to its end on a new loop of `kind` and return its result."""
    with asyncio.Runner(loop_factory=loop_factory(kind)) as runner:
        return runner.run(main)
