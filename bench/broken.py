"""`python -m bench.broken serve -c FILE`: HookMQ, altered to write each packet separately.

It exists only for `bench.check`, which must detect the extra writes. HookMQ itself is unchanged: this module patches
the transport.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hookmq.mqtt.framing import frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def packets(data: bytes) -> Iterator[bytes]:
    """Split `data`, which contains only complete packets, into single packets."""
    start = 0
    while start < len(data):
        found = frame(data, start)
        assert found is not None
        yield data[start : found[1]]
        start = found[1]


def one_by_one(write: Callable[..., None]) -> Callable[..., None]:
    """Wrap a transport's `write` method so that it is called once per packet."""

    def broken(self: object, data: bytes) -> None:
        for packet in packets(data):
            write(self, packet)

    return broken


def main() -> int:
    """Run `hookmq` with the patched transport, on asyncio's event loop. uvloop would still combine a turn's writes."""
    from hookmq.cli import main as hookmq
    from hookmq.server import tcp

    wire = tcp._Stream
    wire.write = one_by_one(wire.write)  # type: ignore[method-assign]
    sys.argv += ["--loop", "asyncio"]
    return hookmq()


if __name__ == "__main__":
    sys.exit(main())
