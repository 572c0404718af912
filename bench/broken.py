"""`python -m bench.broken serve -c FILE`: HookMQ as it would be if it wrote every packet by itself.

For `bench.check` only, to show that it is noticed. Nothing in the product knows of it: the wire is replaced from here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hookmq.codec import frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def packets(data: bytes) -> Iterator[bytes]:
    """The control packets in `data`, which holds whole ones."""
    start = 0
    while start < len(data):
        found = frame(data, start)
        assert found is not None
        yield data[start : found[1]]
        start = found[1]


def one_by_one(write: Callable[..., None]) -> Callable[..., None]:
    """`write`, a method of a wire, called for each packet."""

    def broken(self: object, data: bytes) -> None:
        for packet in packets(data):
            write(self, packet)

    return broken


def main() -> int:
    """Run `hookmq` so broken. asyncio's loop: uvloop gathers what is written in a turn all the same."""
    from hookmq.cli import main as hookmq
    from hookmq.server import tcp

    wire = tcp._Stream
    wire.write = one_by_one(wire.write)  # type: ignore[method-assign]
    sys.argv += ["--loop", "asyncio"]
    return hookmq()


if __name__ == "__main__":
    sys.exit(main())
