"""Report arrivals to the publishers waiting for them, in this process and in others."""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Final, cast

from hookmq_bench.connection import Turn
from hookmq_bench.plan import Homes
from hookmq_bench.publisher import Publisher

_RECORD: Final = struct.Struct(">IQ")


class Credit:
    """Collects the arrivals of one event-loop turn, and reports them when the turn ends. `others` maps each other
    process's number to the socket that leads to it.
    """

    def __init__(
        self,
        turn: Turn,
        homes: Homes,
        own: Mapping[int, Publisher],
        others: Mapping[int, socket.socket],
    ) -> None:
        self._turn = turn
        self._homes = homes
        self._own = own
        self._others = others
        self._streams: dict[int, asyncio.Transport] = {}
        self._arrived: dict[int, int] = {}
        turn.before = self._settle

    async def start(self) -> None:
        """Start listening for reports from the other processes."""
        loop = asyncio.get_running_loop()
        for process, other in self._others.items():
            transport, _ = await loop.create_connection(
                lambda: _Stream(self.arrived_elsewhere), sock=other
            )
            self._streams[process] = transport

    def arrived(self, publisher: int, gained: int) -> None:
        """Record that some of a publisher's messages have arrived in this process."""
        arrived = self._arrived
        arrived[publisher] = arrived.get(publisher, 0) + gained
        self._turn.schedule()

    def arrived_elsewhere(self, records: bytes) -> None:
        """Process another process's report of the messages that arrived there."""
        for publisher, gained in _RECORD.iter_unpack(records):
            self._own[publisher].arrived(gained)

    def _settle(self) -> None:
        arrived, self._arrived = self._arrived, {}
        elsewhere: dict[int, list[bytes]] = {}
        for publisher, gained in arrived.items():
            one = self._own.get(publisher)
            if one is not None:
                one.arrived(gained)
            else:
                process = self._homes.publisher(publisher)
                elsewhere.setdefault(process, []).append(_RECORD.pack(publisher, gained))
        for process, records in elsewhere.items():
            self._streams[process].write(b"".join(records))

    def close(self) -> None:
        """Stop listening to the other processes."""
        for transport in self._streams.values():
            transport.close()


class _Stream(asyncio.Protocol):
    """Splits a byte stream into records."""

    def __init__(self, taken: Callable[[bytes], None]) -> None:
        self._taken = taken
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=1 << 30)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % _RECORD.size
        self._rest = data[whole:]
        if whole:
            self._taken(data[:whole])
