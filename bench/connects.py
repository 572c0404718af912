"""Load a broker with clients that connect with credentials, wait for CONNACK, disconnect and close.

The native generator only supports connects without a user name. This one uses asyncio and can send any CONNECT.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from .launch import Broker, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

DISCONNECT = b"\xe0\x00"
PATIENCE = 200
"""The longest wait for the first CONNACK, as a multiple of the measured time. It only takes this long on a busy
machine."""


class Connects(NamedTuple):
    """Connections per second, the broker's CPU seconds per connection, and how often each CONNACK
    code occurred.
    """

    rate: float
    cpu: float
    codes: Counter[int]

    @property
    def refused(self) -> int:
        """The number of connects that the broker refused."""
        return self.codes.total() - self.codes[0]


async def load(
    broker: Broker, packet: Callable[[int, int], bytes], parallel: int, seconds: float
) -> Connects:
    """Connect for `seconds`, with `parallel` clients at a time, after a warm-up that takes a quarter as long.

    `packet(client, number)` returns a client's CONNECT. `number` counts all connects.
    """
    numbers = itertools.count()
    codes: Counter[int] = Counter()
    measuring = stop = False

    async def client(index: int) -> None:
        while not stop:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(packet(index, next(numbers)))
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                answer = await reader.readexactly(4)
                if measuring:
                    codes[answer[3]] += 1
                writer.write(DISCONNECT)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    clients = [asyncio.create_task(client(index)) for index in range(parallel)]
    await asyncio.sleep(seconds / 4)
    measuring, before, began = True, cpu_seconds(broker.pid), time.perf_counter()
    for _ in range(PATIENCE):
        await asyncio.sleep(seconds)
        if codes:
            break
    measuring, took = False, time.perf_counter() - began
    used = cpu_seconds(broker.pid) - before
    stop = True
    await asyncio.gather(*clients)
    done = codes.total()
    return Connects(done / took, used / max(1, done), codes)
