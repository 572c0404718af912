"""The mark that a tool fills the cluster, or began to. No node joins while it is there."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import msgpack  # type: ignore[import-untyped]
from hookmq.plugin import Runtime, StoreError

from hookmq_cluster.engine import Engine, Stored, Unavailable
from hookmq_cluster.names import Names
from hookmq_cluster.waiting import answer, pause

T = TypeVar("T")
VERSION: Final = 1
RETRY: Final = 1.0
"""Seconds until the log is asked again."""
ATTEMPTS: Final = 20
"""How often the log is asked."""


def encode_mark(what: str) -> bytes:
    """Return the stored form of the mark of a command."""
    return bytes(msgpack.packb((VERSION, what)))


def command_of(data: bytes) -> str:
    """Return the command that made a mark."""
    try:
        return str(msgpack.unpackb(data)[1])
    except (ValueError, TypeError, IndexError, msgpack.UnpackException):
        return "a command of another version"


async def ask(runtime: Runtime, call: Callable[[Callable[[T | Unavailable], None]], object]) -> T:
    """Return the log's answer to `call`, which is repeated until there is one. Raises StoreError if there is none."""
    for attempt in range(ATTEMPTS):
        found: T | Unavailable = await answer(runtime, call)
        if not isinstance(found, Unavailable):
            return found
        reason = found.reason
        if not attempt:
            runtime.log("warning", "cluster.log_awaited", reason=reason)
        await pause(runtime, RETRY)
    raise StoreError(f"the cluster's log does not answer: {reason}")


async def read_mark(engine: Engine, runtime: Runtime, names: Names) -> tuple[str, int]:
    """Return the command that fills the cluster, or '', and the sequence of its mark."""
    stored: Stored | None = await ask(runtime, partial(engine.last, names.filling, exact=True))
    if stored is None:
        return "", 0
    return (command_of(stored.data) if stored.data else ""), stored.sequence


async def refuse_unfinished(engine: Engine, runtime: Runtime, names: Names) -> None:
    """Raise StoreError if a tool fills the cluster, or did not finish that. Its contents are then incomplete."""
    what, _ = await read_mark(engine, runtime, names)
    if what:
        raise StoreError(
            f"cluster {names.cluster!r} is incomplete, because this command has not finished: {what}; "
            "wait for it, or run it again"
        )
