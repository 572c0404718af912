"""How many messages of plugins led to what runs now: what a plugin publishes in answer to a message is one deeper.

A context variable, so that a coroutine keeps the depth of what it was started for however long it waits; the calls that
the runtime makes for the core begin at 0.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

T = TypeVar("T")
DEPTH: Final[ContextVar[int]] = ContextVar("hookmq_depth", default=0)


def at_depth(depth: int, call: Callable[..., T], *args: Any) -> T:
    """Call with that depth, and spawn coroutines that keep it."""
    token = DEPTH.set(depth)
    try:
        return call(*args)
    finally:
        DEPTH.reset(token)
