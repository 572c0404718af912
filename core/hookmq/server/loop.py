"""Choose and run the event loop, and wait there for the end of a step."""

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, Literal

LoopKind = Literal["auto", "asyncio", "uvloop"]


def loop_factory(kind: LoopKind = "auto") -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a factory for event loops of `kind`. ``auto`` prefers uvloop. Raises ImportError if uvloop is missing."""
    if kind == "asyncio" or (kind == "auto" and find_spec("uvloop") is None):
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, Any], kind: LoopKind = "auto") -> Any:
    """Run `main` on a new event loop of `kind` and return its result."""
    with asyncio.Runner(loop_factory=loop_factory(kind)) as runner:
        return runner.run(main)


async def finished(step: Callable[[Callable[..., None]], object]) -> None:
    """Call `step(done)`, and wait until it has called `done`. Raise the error that it has passed, if any."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None = None) -> None:
        if not ended.done():
            ended.set_exception(error) if error is not None else ended.set_result(None)

    step(done)
    await ended
