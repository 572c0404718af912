"""Track the depth of the current call: the number of plugin messages that led to it. A message that a plugin publishes in
response to another message is one level deeper.

The depth is a context variable, so a coroutine keeps its depth while it waits. Calls from the runtime start at 0.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

T = TypeVar("T")
DEPTH: Final[ContextVar[int]] = ContextVar("hookmq_depth", default=0)


def at_depth(depth: int, call: Callable[..., T], *args: Any) -> T:
    """Run `call` at the given depth. Coroutines spawned by `call` keep this depth."""
    token = DEPTH.set(depth)
    try:
        return call(*args)
    finally:
        DEPTH.reset(token)
