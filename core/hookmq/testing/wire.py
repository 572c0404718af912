"""The two ends of a connection in memory, with the turn of the loop in which everything was written."""

from collections.abc import Callable
from typing import Final, NamedTuple

from hookmq.broker import Connection
from hookmq.testing.runtime import VirtualRuntime

HIGH_WATER: Final = 65536
"""Bytes unsent above which a transport asks to pause, as asyncio's does."""


class Clock(VirtualRuntime):
    """The runtime of a harness: it also counts its turns."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.turns = 0

    def turn(self) -> bool:
        """As `VirtualRuntime.turn`."""
        self.turns += 1
        return super().turn()


class Write(NamedTuple):
    """One write of the broker: the turn of the loop it was made in, and its bytes."""

    turn: int
    data: bytes


class MemoryWire:
    """`hookmq.runtime.Wire` and the transport behind it. Bytes arrive at the other end in a later turn.

    `writes` holds every write the broker made, `took` tells the client of bytes that arrive and `ended` that the
    connection is closed. While `blocked`, the client reads nothing: above `high_water` unsent bytes the broker is told to
    pause, below a quarter of it to resume.
    """

    def __init__(
        self,
        clock: Clock,
        took: Callable[[bytes], None],
        ended: Callable[[], None],
        high_water: int = HIGH_WATER,
    ) -> None:
        self.clock = clock
        self.high_water = high_water
        self.writes: list[Write] = []
        self.connection: Connection | None = None
        self.reading = True
        """Whether the broker wants bytes."""
        self.closing = False
        """Whether the broker closed the connection; what it wrote before still arrives."""
        self.closed = False
        """Whether the connection is gone, whoever ended it."""
        self.aborted = False
        self.blocked = False
        self.paused = False
        """Whether the broker was told to pause writing."""
        self._took = took
        self._ended = ended
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._inbound: list[bytes] = []
        self._passing = False

    # hookmq.runtime.Wire -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send `data`; what is written after the end is lost."""
        if self.closing or self.closed:
            return
        self.writes.append(Write(self.clock.turns, data))
        self._unsent.append(data)
        self._unsent_size += len(data)
        self._pass_on()
        if self._unsent_size > self.high_water and self.blocked and not self.paused:
            self.paused = True
            assert self.connection is not None
            self.connection.pause_writing()

    def close(self) -> None:
        """Send what was written, then close."""
        if not self.closing and not self.closed:
            self.closing = True
            self._pass_on()

    def abort(self) -> None:
        """Close at once."""
        self.aborted = True
        self._unsent.clear()
        self._unsent_size = 0
        self.close()

    def pause_reading(self) -> None:
        """Keep what the client sends."""
        self.reading = False

    def resume_reading(self) -> None:
        """Let through what the client sent."""
        if not self.reading:
            self.reading = True
            self.clock.call_soon(self._feed)

    # the client's end --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Bytes of the client, one segment: the broker is fed them in the next turn."""
        self._inbound.append(data)
        self.clock.call_soon(self._feed)

    def lose(self, error: str = "") -> None:
        """The network fails, or the client closes: unsent bytes are lost, what the client sent still arrives."""
        self.clock.call_soon(lambda: self._end(error))

    def block(self) -> None:
        """Read nothing more."""
        self.blocked = True

    def unblock(self) -> None:
        """Read on: what waits arrives, and the broker may resume."""
        self.blocked = False
        self._pass_on()

    @property
    def unsent(self) -> int:
        """Bytes written that have not arrived."""
        return self._unsent_size

    def _feed(self) -> None:
        while self._inbound and self.reading and not self.closed and not self.closing:
            assert self.connection is not None
            self.connection.feed(self._inbound.pop(0))

    def _pass_on(self) -> None:
        if not self._passing and not (self.blocked and not self.aborted):
            self._passing = True
            self.clock.call_soon(self._arrive)

    def _arrive(self) -> None:
        self._passing = False
        if self.closed or (self.blocked and not self.aborted):
            return
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_size = 0
        if self.closing:
            # Before the client may answer: a closed transport takes nothing in.
            if data:
                self._took(data)
            self._end("")
            return
        if self.paused:
            self.paused = False
            assert self.connection is not None
            self.connection.resume_writing()
        if data:
            self._took(data)

    def _end(self, error: str) -> None:
        if self.closed:
            return
        self._feed()
        self.closed = True
        assert self.connection is not None
        self.connection.closed(error)
        self._ended()
