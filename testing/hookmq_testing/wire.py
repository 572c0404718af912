"""Both ends of an in-memory connection. Each write is recorded with its turn."""

from collections.abc import Callable
from typing import Final, NamedTuple

from hookmq.broker import PacketReader

from hookmq_testing.runtime import VirtualRuntime

HIGH_WATER: Final = 65536
"""The number of unsent bytes above which a transport asks the broker to pause, as in asyncio."""


class Clock(VirtualRuntime):
    """A harness's runtime, which also counts turns."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.turns = 0

    def turn(self) -> bool:
        """Run one turn, as `VirtualRuntime.turn` does, and count it."""
        self.turns += 1
        return super().turn()


class Write(NamedTuple):
    """One write by the broker: the turn and the bytes."""

    turn: int
    data: bytes


class MemoryWire:
    """A `hookmq.model.runtime.Wire` and its transport. Bytes arrive at the other end in a later turn.

    `writes` holds all writes by the broker. `took` is called with the bytes that arrive at the client, and `ended` when
    the connection is closed. While `blocked`, the client reads nothing. The broker is asked to pause above `high_water`
    unsent bytes, and to resume once they have arrived.
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
        self.connection: PacketReader | None = None
        self.reading = True
        """Whether the broker is reading."""
        self.closing = False
        """Whether the broker closed the connection. Earlier writes still arrive."""
        self.closed = False
        """Whether the connection is closed, by either end."""
        self.aborted = False
        self.blocked = False
        self.paused = False
        """Whether the broker was asked to pause writing."""
        self._took = took
        self._ended = ended
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._inbound: list[bytes] = []
        self._passing = False

    # hookmq.model.runtime.Wire -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send `data` to the client. Writes after the connection is closed are lost."""
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
        """Send everything already written, then close the connection."""
        if not self.closing and not self.closed:
            self.closing = True
            self._pass_on()

    def abort(self) -> None:
        """Close the connection at once."""
        self.aborted = True
        self._unsent.clear()
        self._unsent_size = 0
        self.close()

    def pause_reading(self) -> None:
        """Hold back the bytes that the client sends."""
        self.reading = False

    def resume_reading(self) -> None:
        """Pass on the bytes that the client sent."""
        if not self.reading:
            self.reading = True
            self.clock.call_soon(self._feed)

    # the client's end --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes from the client, as one segment. The broker reads them in the next turn."""
        self._inbound.append(data)
        self.clock.call_soon(self._feed)

    def lose(self, error: str = "") -> None:
        """Close the connection, as a network failure or a client would. The broker's unsent bytes are lost; bytes
        already sent by the client still arrive."""
        self.clock.call_soon(lambda: self._end(error))

    def block(self) -> None:
        """Make the client stop reading."""
        self.blocked = True

    def unblock(self) -> None:
        """Make the client resume reading. Unsent bytes arrive, and the broker may resume writing."""
        self.blocked = False
        self._pass_on()

    @property
    def unsent(self) -> int:
        """The number of bytes that have been written but have not arrived."""
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
            # Close before the client can respond: a closed transport reads nothing.
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
